package proxy

import (
	"net/http"
	"net/url"
	"path"
	"strings"
)

// A target is what a request asks for, read once and in one way, so that
// matching, keys and forwarding cannot see different things.
type target struct {
	host     string // in lower case, without port and trailing dot
	path     string // percent-decoded once, without dot segments and double slashes: what routes match
	rawPath  string // as it came
	rawQuery string // as it came, without the question mark
	hasQuery bool   // there was a question mark
}

// badRequest is a request that is refused before any route is looked for.
type badRequest struct {
	status int
	detail string
}

// readTarget takes a request's target and host apart, or says why the request
// cannot be forwarded as what it claims to be.
func readTarget(r *http.Request) (target, *badRequest) {
	switch {
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace:
		return target{}, &badRequest{http.StatusMethodNotAllowed, r.Method + " is not forwarded"}
	case r.RequestURI == "*" && r.Method == http.MethodOptions:
		return target{}, &badRequest{http.StatusMethodNotAllowed, "OPTIONS * is not forwarded"}
	// Over HTTP/2, net/http takes what no HTTP/1 request line can hold. It could
	// not be sent, and that must not look like a fault of the upstream.
	case strings.ContainsFunc(r.Method, notInToken):
		return target{}, &badRequest{http.StatusBadRequest, "the method has a character that no method may have"}
	case strings.Contains(r.RequestURI, " "):
		return target{}, &badRequest{http.StatusBadRequest, "the request target has a blank"}
	}
	host, ok := canonicalHost(r.Host)
	if !ok {
		return target{}, &badRequest{http.StatusBadRequest, "the Host is missing or malformed"}
	}

	raw := r.RequestURI
	if !strings.HasPrefix(raw, "/") {
		// Absolute-form (RFC 9112, section 3.2.2). net/http has put its host
		// into r.Host already. HTTP/2 has no such form.
		if r.ProtoMajor != 1 || !isHTTP(r.URL.Scheme) || r.URL.Host == "" || r.URL.User != nil {
			return target{}, &badRequest{http.StatusBadRequest, "the request target has a form that is not forwarded"}
		}
		_, raw, _ = strings.Cut(raw, "://")
		i := strings.IndexAny(raw, "/?")
		if i < 0 {
			raw = "/"
		} else if raw = raw[i:]; raw[0] == '?' {
			raw = "/" + raw
		}
	}
	// No request target has a fragment (RFC 9112, section 3.2): an upstream
	// that cuts it off would read another path than the one limited.
	if strings.Contains(raw, "#") {
		return target{}, &badRequest{http.StatusBadRequest, "the request target has a fragment"}
	}

	t := target{host: host}
	t.rawPath, t.rawQuery, t.hasQuery = strings.Cut(raw, "?")
	decoded, err := url.PathUnescape(t.rawPath)
	if err != nil {
		return target{}, &badRequest{http.StatusBadRequest, "the path has a broken percent-encoding"}
	}
	if strings.Contains(decoded, "\x00") {
		return target{}, &badRequest{http.StatusBadRequest, "the path has a NUL"}
	}
	t.path = cleanPath(decoded)
	return t, nil
}

// notInToken reports whether no token may have r (RFC 9110, section 5.6.2).
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

func isHTTP(scheme string) bool { return scheme == "http" || scheme == "https" }

// cleanPath removes dot segments and double slashes and keeps a trailing slash
// as RFC 3986, section 5.2.4, does: "/a/." is "/a/".
func cleanPath(p string) string {
	clean := path.Clean(p)
	if clean != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		return clean + "/"
	}
	return clean
}

// canonicalHost is the host of host[:port] in lower case, without port and
// trailing dot. Names are letters, digits, '-', '.', '_' and '~': what else
// RFC 3986 would allow in a name is in no real one, and in many attacks.
func canonicalHost(hostport string) (string, bool) {
	host, port := hostport, ""
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 {
			return "", false
		}
		host, port = host[:end+1], host[end+1:]
		if inner := host[1:end]; inner == "" || strings.Trim(inner, "0123456789abcdefABCDEF:.") != "" {
			return "", false
		}
	} else {
		if i := strings.IndexByte(host, ':'); i >= 0 {
			host, port = host[:i], host[i:]
		}
		host = strings.TrimSuffix(host, ".")
		if !isName(host) {
			return "", false
		}
	}
	if port != "" && (port[0] != ':' || len(port) > 6 || strings.Trim(port[1:], "0123456789") != "") {
		return "", false
	}
	return strings.ToLower(host), true
}

func isName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_', c == '~':
		default:
			return false
		}
	}
	return true
}

// forwarded is the URL at the upstream, but for its host: the base path, then the
// target byte for byte, without the prefix that the route strips. The path is in
// Opaque, also where it begins with two slashes, which the transports know.
func (t target) forwarded(scheme, basePath, stripPrefix string) *url.URL {
	return &url.URL{
		Scheme: scheme, Opaque: basePath + t.stripped(stripPrefix),
		RawQuery: t.rawQuery, ForceQuery: t.hasQuery && t.rawQuery == "",
	}
}

// stripped is the raw path without prefix. Where the path is not in the form
// that routes match, the rest is written anew from that form, so that a
// detour such as //api/x or /api%2Fx cannot leave a part of the prefix behind.
func (t target) stripped(prefix string) string {
	rest, ok := strings.CutPrefix(t.path, prefix)
	if prefix == "" || !ok || rest != "" && rest[0] != '/' {
		return t.rawPath
	}
	if decoded, err := url.PathUnescape(t.rawPath); err == nil && decoded == t.path {
		i := 0
		for n := 0; n < len(prefix); n++ {
			if t.rawPath[i] == '%' {
				i += 2
			}
			i++
		}
		if raw := t.rawPath[i:]; strings.HasPrefix(raw, "/") {
			return raw
		}
	}
	if rest == "" {
		rest = "/"
	}
	return (&url.URL{Path: rest}).EscapedPath()
}
