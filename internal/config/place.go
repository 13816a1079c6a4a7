package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/internal/identity"
)

const urlForm = `a URL such as "http://127.0.0.1:3000", "https://api.example.com/v1", "h2c://127.0.0.1:50051" or "unix:/run/app.sock"`

// places reads url, or urls, which say where the upstream is; own are the
// addresses that shapeproxy itself listens on.
func (d *decoder) places(t *table, u *Upstream, own []string) {
	read := func(s string) error {
		scheme, basePath, p, err := parseURL(s)
		switch {
		case err != nil:
			return err
		// A route to the admin listener would put it before everybody, and
		// one to itself would go in a circle.
		case slices.ContainsFunc(own, p.reaches):
			return discreet("points at a listener of shapeproxy itself; write the address of the server behind it")
		case len(u.Places) == 0:
			u.Scheme, u.BasePath = scheme, basePath
		case scheme != u.Scheme:
			return discreet("has another scheme than the first; an upstream speaks one protocol at all its addresses")
		case basePath != u.BasePath:
			return discreet("has another path than the first; all addresses of an upstream serve the same, so write the same path")
		case slices.ContainsFunc(u.Places, func(q Place) bool { return q.Address == p.Address && q.UnixSocket == p.UnixSocket }):
			return discreet("stands twice; remove one")
		case len(u.Places) == maxPlaces:
			return discreet(fmt.Sprintf("is one too many; an upstream has at most %d addresses", maxPlaces))
		}
		u.Places = append(u.Places, p)
		return nil
	}
	switch {
	case t.has("url") && t.has("urls"):
		t.bad("urls", "stands beside url; write all addresses into urls and remove url")
	case !t.has("urls"):
		t.require("url", `"http://127.0.0.1:3000"`)
	}
	t.text("url", urlForm, read)
	if t.each("urls", urlForm, false, read) && len(u.Places) == 0 {
		t.bad("urls", "is empty; write [\"http://10.0.0.1:3000\", \"http://10.0.0.2:3000\"]")
	}
}

// maxPlaces bounds the addresses of one upstream in the file: choosing one
// looks at all of them.
const maxPlaces = 64

// parseURL reads where an upstream is. Its errors never quote the URL, which
// may hold a password.
func parseURL(s string) (scheme, basePath string, at Place, err error) {
	if socket, ok := strings.CutPrefix(s, identity.UnixWord); ok {
		p, err := parseSocket(socket)
		if err == nil && strings.ContainsAny(p, "?#") {
			err = discreet("a Unix socket takes no query or fragment; write \"unix:/run/app.sock\"")
		}
		return "http", "", Place{UnixSocket: p, Host: "localhost"}, err
	}
	parsed, err := url.Parse(s)
	if err == nil {
		err = checkURL(parsed, s)
	} else if err = discreet("is not a URL; write " + urlForm); !strings.Contains(s, "://") {
		err = discreet("lacks a scheme; write http://, https:// or h2c:// before it")
	}
	if err != nil {
		return "", "", Place{}, err
	}
	port := cmp.Or(parsed.Port(), map[string]string{"https": "443"}[parsed.Scheme], "80")
	basePath = strings.TrimRight(parsed.EscapedPath(), "/")
	return parsed.Scheme, basePath, Place{Host: parsed.Host, Address: net.JoinHostPort(parsed.Hostname(), port)}, nil
}

func checkURL(parsed *url.URL, s string) error {
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
	if n, err := strconv.ParseUint(cmp.Or(parsed.Port(), "80"), 10, 16); err != nil || n == 0 {
		return discreet("its port must be a number from 1 to 65535")
	}
	if p := strings.TrimRight(parsed.EscapedPath(), "/"); p != "" && path.Clean(p) != p {
		return discreet("its path holds \"//\", \".\" or \"..\"; write it without")
	}
	return nil
}

// reaches reports whether the place is that listener, as far as can be seen
// without asking DNS.
func (p Place) reaches(listen string) bool {
	if p.UnixSocket != "" {
		return listen == identity.UnixWord+p.UnixSocket
	}
	lHost, lPort, err := net.SplitHostPort(listen)
	uHost, uPort, _ := net.SplitHostPort(strings.ToLower(p.Address))
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
