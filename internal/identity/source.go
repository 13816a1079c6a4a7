package identity

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// A Source is what keys are read from: a request and what is known of it.
type Source struct {
	// Request is the request as it came, before hop-by-hop headers are
	// removed: else a client could delete, by naming it in Connection, the
	// header that it is counted by (CVE-2024-45410).
	Request *http.Request
	// Client is the client's address as Resolver.Client gives it; the invalid
	// Addr for a Unix socket.
	Client netip.Addr
	// IPv6Prefix is the length of the prefix that makes one client; 0 means
	// DefaultIPv6Prefix.
	IPv6Prefix int
	// Host is the host the request asks for; a port, a trailing dot and letter
	// case do not matter.
	Host string
	// Route is the match of the request's route.
	Route string
	// PathValue returns the decoded value of a wildcard of the route's
	// pattern; nil if it has none.
	PathValue func(name string) string
}

// Of returns the request's value of the key, and whether it has one: present
// is false, and the value empty, if any part is missing or empty. The values of
// several parts are joined so that no two lists give the same text.
//
// An error means that the request is malformed and deserves a 400: the key
// reads the query, and the query can be read in two ways. It is returned
// whether or not the parts are present.
func (k Key) Of(s Source) (value string, present bool, err error) {
	switch len(k.parts) {
	case 0:
		return "", true, nil
	case 1:
		value, err = k.parts[0].of(s)
		return value, value != "", err
	}
	var joined []byte
	missing := false
	for _, p := range k.parts {
		v, err := p.of(s)
		if err != nil {
			return "", false, err
		}
		missing = missing || v == ""
		// With its length before it, ("a", "b") and ("ab", "") differ.
		joined = strconv.AppendInt(joined, int64(len(v)), 10)
		joined = append(append(joined, ':'), v...)
	}
	if missing {
		return "", false, nil
	}
	return string(joined), true, nil
}

func (p Part) of(s Source) (string, error) {
	switch p.Kind {
	case ClientIP:
		return clientValue(s.Client, s.IPv6Prefix), nil
	case ClientCert:
		return certValue(s.Request.TLS), nil
	case Host:
		return NormalHost(s.Host), nil
	case Route:
		return s.Route, nil
	case Header:
		if lines := s.Request.Header[p.Name]; len(lines) > 0 {
			return lines[0], nil
		}
	case Cookie:
		return cookieValue(s.Request.Header["Cookie"], p.Name), nil
	case Query:
		return queryValue(s.Request.URL.RawQuery, p.Name)
	case Path:
		if s.PathValue != nil {
			return s.PathValue(p.Name), nil
		}
	}
	return "", nil
}

// NormalHost is the host of a Host header in the one form that is compared:
// without port and trailing dot, in lower case, an IPv6 address in brackets.
func NormalHost(host string) string {
	if end := strings.IndexByte(host, ']'); end >= 0 && host[0] == '[' {
		host = host[:end+1]
	} else if colon := strings.IndexByte(host, ':'); colon >= 0 {
		host = host[:colon]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// cookieValue reads like http.Request.Cookie, but has no bound on the number
// of cookies, past which a client would have none and so lack its key.
func cookieValue(lines []string, name string) string {
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			if n, v, _ := strings.Cut(strings.Trim(pair, " \t"), "="); n == name {
				return v
			}
		}
	}
	return ""
}

var (
	errSemicolon = errors.New("the query holds a semicolon; write %3B for one that is meant literally")
	errEscape    = errors.New("the query holds a broken percent-encoding")
)

// queryValue reads a query by one strict rule, as servers disagree about
// semicolons and broken encodings (CVE-2022-2880), and a client could choose
// which of two keys it is counted by. It decodes no more than it compares.
func queryValue(raw, name string) (string, error) {
	if strings.IndexByte(raw, ';') >= 0 {
		return "", errSemicolon
	}
	for rest := raw; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			break
		}
		if len(rest) < i+3 || !isHex(rest[i+1]) || !isHex(rest[i+2]) {
			return "", errEscape
		}
		rest = rest[i+3:]
	}
	for pair := range strings.SplitSeq(raw, "&") {
		n, v, _ := strings.Cut(pair, "=")
		if n != name {
			// One encoded byte takes three.
			if !strings.ContainsAny(n, "%+") || len(n) > 3*len(name) {
				continue
			}
			if n, _ = url.QueryUnescape(n); n != name {
				continue
			}
		} else if strings.ContainsAny(n, "%+") {
			continue // equal as written, but not decoded
		}
		return url.QueryUnescape(v)
	}
	return "", nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}
