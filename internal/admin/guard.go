package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// A guard decides who may ask what. Whoever can open a page in a browser on
// the operator's machine can make it send requests here: by a name of theirs
// that resolves to 127.0.0.1 (DNS rebinding), or across origins.
type guard struct {
	hosts    map[string]bool // in lower case, without port
	wildcard bool            // the listener takes connections to every address of the machine
	token    [sha256.Size]byte
	asked    bool // a token is asked for
	origin   *http.CrossOriginProtection
}

func newGuard(listen string, hosts []string, token string) *guard {
	g := &guard{
		hosts:  map[string]bool{"localhost": true},
		token:  sha256.Sum256([]byte(token)),
		asked:  token != "",
		origin: http.NewCrossOriginProtection(),
	}
	for _, h := range hosts {
		g.hosts[hostname(h)] = true
	}
	if !strings.HasPrefix(listen, "unix:") {
		host := hostname(listen)
		if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
			g.wildcard = true
		} else {
			g.hosts[host] = true
		}
	}
	delete(g.hosts, "")
	return g
}

// A denial is why the guard did not let a request through.
type denial struct {
	status int
	why    string
}

func (f *denial) write(w http.ResponseWriter) {
	if f.status == http.StatusUnauthorized {
		// Basic is for browsers, which have no other way to ask for a token.
		w.Header().Add("WWW-Authenticate", `Bearer realm="shapeproxy"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="shapeproxy", charset="UTF-8"`)
	}
	writeError(w, f.status, f.why)
}

// check returns nil when r may go on.
func (g *guard) check(r *http.Request) *denial {
	switch r.URL.Path {
	case "/healthz", "/readyz": // probes know neither name nor token
		return nil
	case "/metrics":
	default:
		if !g.knows(r) {
			return &denial{http.StatusMisdirectedRequest, "unknown Host; use a loopback address, the address of [admin] listen, or add the name to [admin] hosts"}
		}
	}
	if g.asked && !g.holdsToken(r) {
		return &denial{http.StatusUnauthorized, "send the token of [admin] token_file as a bearer token, or as the password of HTTP Basic"}
	}
	if err := g.origin.Check(r); err != nil {
		return &denial{http.StatusForbidden, "a page of another origin may not change anything here"}
	}
	// A form cannot send JSON, so that even a browser without Sec-Fetch-Site
	// has to ask first, and is not answered.
	if r.ContentLength != 0 {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return &denial{http.StatusUnsupportedMediaType, "a body must be application/json"}
		}
	}
	return nil
}

// knows reports whether r's Host is one that the operator uses. A loopback
// address is: a name that resolves to one is not.
func (g *guard) knows(r *http.Request) bool {
	host := hostname(r.Host)
	if g.hosts[host] {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	if ip.IsLoopback() {
		return true
	}
	if !g.wildcard {
		return false
	}
	// Listening everywhere, the listen address is the one connected to.
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && ip == local.AddrPort().Addr().Unmap()
}

// hostname is a Host or an address without port, brackets and trailing dot.
func hostname(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	s = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// holdsToken compares hashes, so that neither the time it takes nor a length
// says anything about the token.
func (g *guard) holdsToken(r *http.Request) bool {
	given, ok := "", false
	if scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		given, ok = strings.TrimSpace(rest), true
	} else {
		_, given, ok = r.BasicAuth()
	}
	sum := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1 && ok
}

func setSecurityHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}
