package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
)

func defaultUpstream(name string) Upstream {
	return Upstream{
		Name:                  name,
		SendHost:              "upstream",
		DialTimeout:           5 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		MaxIdleConns:          256,
		IdleConnTimeout:       90 * time.Second,
	}
}

const urlForm = `a URL such as "http://127.0.0.1:3000", "https://api.example.com/v1", "h2c://127.0.0.1:50051" or "unix:/run/app.sock"`

// upstream reads one [upstream.NAME] table; own are the addresses that
// shapeproxy itself listens on.
func (d *decoder) upstream(t *table, own []string) Upstream {
	u := defaultUpstream(t.name())
	t.require("url", `"http://127.0.0.1:3000"`)
	t.text("url", urlForm, func(s string) error {
		if err := u.parseURL(s); err != nil {
			return err
		}
		// A route to the admin listener would put it before everybody, and
		// one to itself would go in a circle.
		if i := slices.IndexFunc(own, u.reaches); i >= 0 {
			return discreet("points at a listener of shapeproxy itself; write the address of the server behind it")
		}
		return nil
	})
	t.text("host", `"upstream", "client" or a host name`, func(s string) error {
		u.SendHost = s
		return checkSendHost(s)
	})
	t.duration("dial_timeout", &u.DialTimeout)
	t.duration("response_header_timeout", &u.ResponseHeaderTimeout)
	t.int("max_idle_conns", &u.MaxIdleConns, 1, 1<<20)
	t.duration("idle_conn_timeout", &u.IdleConnTimeout)
	u.SetHeaders = d.headers(t.sub("set_headers", "set_headers"))
	t.finish()
	return u
}

func checkSendHost(s string) error {
	words := []string{"upstream", "client"}
	if slices.Contains(words, s) {
		return nil
	}
	h, port, err := net.SplitHostPort(s)
	if err != nil {
		h, port = s, "80"
	}
	_, err = strconv.ParseUint(port, 10, 16)
	switch meant := near(s, words); {
	case meant != "":
		return fmt.Errorf("%q is not known here; did you mean %q?", s, meant)
	case err != nil || checkHost(strings.Trim(h, "[]")) != nil:
		return fmt.Errorf("%q is not a host; write \"upstream\", \"client\" or a name such as \"api.example.com\"", s)
	}
	return nil
}

// parseURL fills in where the upstream is. Its errors never quote the URL, which
// may hold a password.
func (u *Upstream) parseURL(s string) error {
	if socket, ok := strings.CutPrefix(s, identity.UnixWord); ok {
		p, err := parseSocket(socket)
		if err == nil && strings.ContainsAny(p, "?#") {
			err = discreet("a Unix socket takes no query or fragment; write \"unix:/run/app.sock\"")
		}
		u.Scheme, u.UnixSocket, u.Host = "http", p, "localhost"
		return err
	}
	parsed, err := url.Parse(s)
	if err != nil {
		if !strings.Contains(s, "://") {
			return discreet("lacks a scheme; write http://, https:// or h2c:// before it")
		}
		return discreet("is not a URL; write " + urlForm)
	}
	switch parsed.Scheme {
	case "http", "https", "h2c":
	case "unix":
		return discreet("a Unix socket needs an absolute path; write it as \"unix:/run/app.sock\"")
	default:
		if parsed.Host == "" {
			return discreet("lacks a scheme; write http://, https:// or h2c:// before it")
		}
		return discreet("its scheme is not known; " + didYouMean(parsed.Scheme, []string{"http", "https", "h2c", "unix"}))
	}
	switch {
	case parsed.User != nil:
		return discreet("a user or password does not belong into the URL; write set_headers = { Authorization = \"Basic ${NAME}\" }")
	case parsed.RawQuery != "" || parsed.ForceQuery:
		return discreet("a query does not belong into the URL; remove \"?\" and what follows")
	case parsed.Fragment != "" || strings.Contains(s, "#"):
		return discreet("a fragment does not belong into the URL; remove \"#\" and what follows")
	case parsed.Opaque != "" || parsed.Hostname() == "":
		return discreet("has no host; write " + urlForm)
	case strings.HasSuffix(parsed.Host, ":"):
		return discreet("lacks a port after the colon; write one, or remove the colon")
	case checkHost(strings.TrimSuffix(parsed.Hostname(), ".")) != nil:
		return discreet("its host is not a name or an address; write " + urlForm)
	}
	port := cmp.Or(parsed.Port(), map[string]string{"https": "443"}[parsed.Scheme], "80")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return discreet("its port must be a number from 1 to 65535")
	}
	u.BasePath = strings.TrimRight(parsed.EscapedPath(), "/")
	if u.BasePath != "" && path.Clean(u.BasePath) != u.BasePath {
		return discreet("its path holds \"//\", \".\" or \"..\"; write it without")
	}
	u.Scheme = parsed.Scheme
	u.Host = parsed.Host
	u.Address = net.JoinHostPort(parsed.Hostname(), port)
	return nil
}

// reaches reports whether the upstream is that listener, as far as can be seen
// without asking DNS.
func (u *Upstream) reaches(listen string) bool {
	if u.UnixSocket != "" {
		return listen == identity.UnixWord+u.UnixSocket
	}
	lHost, lPort, err := net.SplitHostPort(listen)
	uHost, uPort, _ := net.SplitHostPort(strings.ToLower(u.Address))
	switch {
	case err != nil || lPort != uPort:
		return false
	case sameHost(uHost, lHost):
		return true
	case unspecified(lHost):
		return loopback(uHost) || unspecified(uHost)
	case unspecified(uHost): // dialling it reaches this machine
		return loopback(lHost)
	}
	return loopback(uHost) && loopback(lHost) && (uHost == "localhost" || lHost == "localhost")
}

func sameHost(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	return a == b || errX == nil && errY == nil && x.Unmap() == y.Unmap()
}

func unspecified(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "" || err == nil && a.IsUnspecified()
}

func literal(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// hopByHop are the headers that concern one connection only (RFC 9110, section
// 7.6.1), and those that frame the message.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

// headers reads set_headers, whose keys are the names.
func (d *decoder) headers(t *table) []Header {
	var list []Header
	// In the file's order, so that of two spellings the second is at fault.
	for _, n := range slices.SortedFunc(maps.Keys(t.values), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.lines.offset(t.at(a)), d.lines.offset(t.at(b))), cmp.Compare(a, b))
	}) {
		canonical := textproto.CanonicalMIMEHeaderKey(n)
		switch {
		case !fieldName(n):
			t.bad(n, "is not a header's name; use letters, digits and \"-\"")
		case canonical == "Host":
			t.bad(n, "is set by the field host of the upstream; write host = \"NAME\"")
		case slices.Contains(hopByHop, canonical):
			t.bad(n, "belongs to a single connection and is set by shapeproxy; remove it")
		case slices.ContainsFunc(list, func(h Header) bool { return h.Name == canonical }):
			t.bad(n, "stands twice, as header names have no case; remove one")
		}
		t.text(n, "a header's value in one line", func(v string) error {
			if !fieldValue(v) {
				return discreet("holds a control character, or a space at its start or end; remove these")
			}
			list = append(list, Header{canonical, v})
			return nil
		})
	}
	slices.SortFunc(list, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// fieldName reports whether s is a token of RFC 9110, section 5.6.2.
func fieldName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// fieldValue reports whether s may stand in a header (RFC 9110, section 5.5).
func fieldValue(s string) bool {
	return s == strings.Trim(s, " \t") && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' || r == 0x7f
	})
}

// checkHost checks a host name or an address without port and brackets.
func checkHost(h string) error {
	if literal(h) {
		return nil
	}
	bare := strings.Trim(h, "[]")
	switch {
	case h == "":
		return errors.New("\"\" is not a host name; write one such as \"api.example.com\"")
	case strings.Contains(h, "*"):
		return fmt.Errorf("%q: hosts have no wildcards; write each name, or leave the host out", h)
	case literal(bare):
		return fmt.Errorf("%q: write the address without brackets", h)
	case identity.NormalHost(h) != strings.ToLower(h):
		return fmt.Errorf("%q: hosts are compared without port and trailing dot; write %q", h, identity.NormalHost(h))
	}
	for _, r := range h {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '.' || r == '_') {
			return fmt.Errorf("%q is not a host name; write one such as \"api.example.com\" (names in other scripts in their xn-- form)", h)
		}
	}
	return nil
}
