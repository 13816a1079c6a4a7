package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
)

func defaultUpstream(name string) Upstream {
	return Upstream{
		Name:                  name,
		SendHost:              "upstream",
		ResolveInterval:       30 * time.Second,
		DialTimeout:           5 * time.Second,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 60 * time.Second,
		BodyTimeout:           5 * time.Minute,
		MaxIdleConns:          256,
		IdleConnTimeout:       90 * time.Second,
		Health:                defaultHealth(),
		Obey:                  defaultObey(),
		Retry:                 defaultRetry(),
	}
}

// upstream reads one [upstream.NAME] table; own are the addresses that
// shapeproxy itself listens on.
func (d *decoder) upstream(t *table, own []string) Upstream {
	u := defaultUpstream(t.name())
	d.places(t, &u, own)
	t.text("host", `"upstream", "client" or a host name`, func(s string) error {
		u.SendHost = s
		return checkSendHost(s)
	})
	t.duration("resolve_interval", &u.ResolveInterval)
	t.duration("dial_timeout", &u.DialTimeout)
	t.duration("tls_handshake_timeout", &u.TLSHandshakeTimeout)
	t.duration("response_header_timeout", &u.ResponseHeaderTimeout)
	t.duration("body_timeout", &u.BodyTimeout)
	t.int("max_idle_conns", &u.MaxIdleConns, 1, 1<<20)
	t.duration("idle_conn_timeout", &u.IdleConnTimeout)
	u.SetHeaders = d.headers(t.sub("set_headers", "set_headers"))
	d.upstreamTLS(t, &u)
	d.health(t, &u)
	d.breaker(t, &u)
	d.obey(t, &u.Obey, u.Breaker)
	d.retry(t, &u.Retry)
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

// hopByHop are the headers that concern one connection only (RFC 9110, section
// 7.6.1), and those that frame the message.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

// headers reads set_headers, whose keys are the names.
func (d *decoder) headers(t *table) []Header {
	t.anyFields(&node{Type: "string"})
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
