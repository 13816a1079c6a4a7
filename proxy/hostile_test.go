package proxy

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A hostile is one request and what must come of it.
type hostile struct {
	name   string
	send   string
	status int
	line   string // request line upstream; empty: nothing may reach it
}

func get(target string, fields ...string) string {
	return "GET " + target + " HTTP/1.1\r\n" + lines(fields) + "Connection: close\r\n\r\n"
}

func send(t *testing.T, all []hostile, check func(t *testing.T, h hostile, up *rawUpstream, e Event, wire string)) {
	for _, h := range all {
		t.Run(h.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			turns := &turnstile{}
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), turns)}})
			wire := f.wire(t, h.send)
			if got := statuses(t, wire); !slices.Equal(got, []int{h.status}) {
				t.Fatalf("answered %v, want %d", got, h.status)
			}
			e := f.next(t)
			if e.Status != h.status {
				t.Errorf("counted as %d, answered %d", e.Status, h.status)
			}
			var want []string
			if h.line != "" {
				want = []string{h.line}
			} else if !strings.Contains(wire, "\r\nProxy-Status: shapeproxy; error=") {
				t.Errorf("an answer of ours without Proxy-Status: %q", wire)
			}
			if got := up.lines(); !slices.Equal(got, want) {
				t.Errorf("the upstream got %q, want %q", got, want)
			}
			if int(turns.turns.Load()) != len(want) {
				t.Errorf("%d turns were taken", turns.turns.Load())
			}
			if check != nil {
				check(t, h, up, e, wire)
			}
		})
	}
}

// TestS10Underscores: CGI and WSGI fold X_Forwarded_For onto X-Forwarded-For
// (CVE-2025-64484).
func TestS10Underscores(t *testing.T) {
	send(t, []hostile{{
		"dropped", get("/", "Host: front.test", "X_Forwarded_For: 6.6.6.6", "Transfer_Encoding: chunked", "_: x", "x_: y", "X-Fine: z"), 200, "GET / HTTP/1.1",
	}}, func(t *testing.T, _ hostile, up *rawUpstream, _ Event, _ string) {
		head := up.bytes()
		if strings.Contains(head, "_") || !strings.Contains(head, "X-Fine: z\r\n") {
			t.Errorf("the upstream got %q", head)
		}
	})
}

// TestS12Connect: refused, the connection ended, and nothing behind it read as
// requests (CVE-2026-71324).
func TestS12Connect(t *testing.T) {
	for _, target := range []string{"front.test:443", "/x", "http://front.test/"} {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		wire := f.wire(t, "CONNECT "+target+" HTTP/1.1\r\nHost: front.test\r\n\r\n"+smuggled)
		if got := statuses(t, wire); !slices.Equal(got, []int{405}) || up.count() != 0 {
			t.Errorf("CONNECT %s: answered %v, the upstream got %q", target, got, up.lines())
		}
	}
}

func TestS13TraceS14OptionsS15Targets(t *testing.T) {
	host := "Host: front.test"
	send(t, []hostile{
		{"S13", strings.Replace(get("/", host), "GET", "TRACE", 1), 405, ""},
		{"S14", strings.Replace(get("*", host), "GET", "OPTIONS", 1), 405, ""},
		{"S14 with a path", strings.Replace(get("/", host), "GET", "OPTIONS", 1), 200, "OPTIONS / HTTP/1.1"},
		{"S15 asterisk", get("*", host), 400, ""},
		{"S15 another scheme", get("ftp://front.test/x", host), 400, ""},
		{"S15 no authority", get("http:///x", host), 400, ""},
		{"S15 opaque", get("http:x", host), 400, ""},
		{"S15 userinfo", get("http://u:p@front.test/", host), 400, ""},
		{"S15 fragment", get("/a#b", host), 400, ""},
		{"S15 fragment alone", get("/#", host), 400, ""},
	}, nil)
}

// TestS18Host: one Host, and one that is a name or an address.
func TestS18Host(t *testing.T) {
	all := []hostile{{"HTTP/1.0 without one", "GET / HTTP/1.0\r\n\r\n", 400, ""}}
	for _, bad := range []string{"", "a/b", "u@h", "a b", "a:b", "a,b", "[::1", "a\\b", "a?b", "a#b", "a%41", ".", ":80", "a:1:2", "é"} {
		all = append(all, hostile{fmt.Sprintf("%q", bad), get("/", "Host: "+bad), 400, ""})
	}
	// net/http answers some of these itself, without our fields or an Event.
	for _, h := range all {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		if got := statuses(t, f.wire(t, h.send)); !slices.Equal(got, []int{400}) || up.count() != 0 {
			t.Errorf("%s: answered %v, the upstream got %q", h.name, got, up.lines())
		}
	}
	for _, raw := range []string{get("/"), get("/", "Host: a", "Host: b"), get("/", "Host: a", "Host: a")} {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		if got := statuses(t, f.wire(t, raw)); !slices.Equal(got, []int{400}) || up.count() != 0 {
			t.Errorf("%q: answered %v, the upstream got %q", raw, got, up.lines())
		}
	}
}

// TestS19AbsoluteForm: the target's host is the one for matching, keys and
// forwarding.
func TestS19AbsoluteForm(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	strict, loose := &turnstile{}, &turnstile{}
	var keyed string
	a := limited(route("a.test/", up.addr, func(o *UpstreamOptions) { o.SendHost = "client" }), strict)
	identify := a.Identify
	a.Identify = func(id Identity) ([]limiter.Key, error) { keyed = id.Host; return identify(id) }
	f := newFront(t, &Site{Routes: []*Route{a, limited(route("/", up.addr), loose)}})
	wire := f.wire(t, get("http://A.test:81/p?q#", "Host: b.test"))
	if got := statuses(t, wire); !slices.Equal(got, []int{400}) {
		t.Errorf("a fragment: answered %v", got)
	}
	f.next(t)
	for _, target := range []string{"http://A.test:81/p?q", "HTTP://A.test:81/p?q"} {
		if got := statuses(t, f.wire(t, get(target, "Host: b.test"))); !slices.Equal(got, []int{200}) {
			t.Errorf("answered %v", got)
		}
		if e := f.next(t); e.Host != "A.test:81" || e.Route != "a.test/" || keyed != "a.test" {
			t.Errorf("host %q, route %q, keyed by %q", e.Host, e.Route, keyed)
		}
	}
	head := up.bytes()
	if !strings.HasPrefix(head, "GET /p?q HTTP/1.1\r\nHost: A.test:81\r\n") || !strings.Contains(head, "X-Forwarded-Host: A.test:81\r\n") || strings.Contains(head, "b.test") {
		t.Errorf("the upstream got %q", head)
	}
	if strict.turns.Load() != 2 || loose.turns.Load() != 0 {
		t.Errorf("turns: %d at the target's host, %d elsewhere", strict.turns.Load(), loose.turns.Load())
	}
}

// TestS20NeverALooserRoute: no spelling of a path reaches another limit than
// the one of the path that the upstream reads.
func TestS20NeverALooserRoute(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	strict, loose := &turnstile{}, &turnstile{}
	f := newFront(t, &Site{Routes: []*Route{limited(route("/admin/", up.addr), strict), limited(route("/", up.addr), loose)}})
	for i, path := range []string{
		"/admin", "/admin/", "//admin", "/./admin/x", "/x/../admin", "/x/%2e%2e/admin", "/x/.%2E/admin", "/%61dmin", "/%61%64%6d%69%6e/",
		"/%2fadmin", "/admin%2fx", "///admin//", "/x/..//admin/", "/../admin", "/admin?x", "/admin/?", "/admin/%2e",
	} {
		if got := statuses(t, f.wire(t, get(path, "Host: front.test"))); !slices.Equal(got, []int{200}) {
			t.Errorf("%s: answered %v", path, got)
		}
		if int(strict.turns.Load()) != i+1 || loose.turns.Load() != 0 {
			t.Fatalf("%s took another limit's turn", path)
		}
		if want := "GET " + path + " HTTP/1.1"; up.lines()[i] != want {
			t.Errorf("%s was forwarded as %q", path, up.lines()[i])
		}
	}
	for _, path := range []string{"/%00", "/a%00b", "/%zz", "/%", "/%4", "/a%2"} {
		n := up.count()
		if got := statuses(t, f.wire(t, get(path, "Host: front.test"))); !slices.Equal(got, []int{400}) || up.count() != n {
			t.Errorf("%s: answered %v", path, got)
		}
	}
}

// TestS21HostSpelling: letter case, a trailing dot and a port make no other
// route, with few routes and with many (Caddy CVE-2026-27588).
func TestS21HostSpelling(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	routes := []*Route{route("/", up.addr)}
	for i := range 150 {
		routes = append(routes, route(fmt.Sprintf("h%d.test/", i), up.addr))
	}
	f := newFront(t, &Site{Routes: routes})
	for _, host := range []string{"h7.test", "H7.TEST", "h7.test.", "H7.test.:8080", "h7.test:"} {
		if got := statuses(t, f.wire(t, get("/", "Host: "+host))); !slices.Equal(got, []int{200}) {
			t.Errorf("%s: answered %v", host, got)
		}
		if e := f.next(t); e.Route != "h7.test/" {
			t.Errorf("%s: route %q", host, e.Route)
		}
	}
}

// TestS22QueryUnchanged: no query is judged or written anew (CVE-2022-2880
// made ReverseProxy drop those that it cannot parse).
func TestS22QueryUnchanged(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	for i, query := range []string{
		"a;b", "%zz", "%", "a=1&a=2;a=3", "&&&", "?", "a=%00", strings.Repeat("a&", 11_000), "\xff", "a=/../b", "=",
	} {
		if got := statuses(t, f.wire(t, get("/p?"+query, "Host: front.test"))); !slices.Equal(got, []int{200}) {
			t.Errorf("%.20q: answered %v", query, got)
			continue
		}
		if got := up.lines()[i]; got != "GET /p?"+query+" HTTP/1.1" {
			t.Errorf("%.20q was forwarded as %.40q", query, got)
		}
		if e := f.next(t); e.Path != "/p" {
			t.Errorf("the Event holds a query: %q", e.Path)
		}
	}
}

// TestS27LogLines: what a client sends cannot end a line of the log, speak to a
// terminal, or grow without bound.
func TestS27LogLines(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		handler := slog.Handler(slog.NewTextHandler(&out, nil))
		if format == "json" {
			handler = slog.NewJSONHandler(&out, nil)
		}
		a := AccessLog{Log: slog.New(handler)}
		huge := strings.Repeat("x", 100_000)
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		for _, raw := range []string{
			get("/a\"\xe2\x80\xa8\xff", "Host: front.test"),
			get("/"+huge[:40_000], "Host: front.test"),
			get("/x?secret", "Host: "+huge[:300]),
			strings.Replace(get("/", "Host: front.test"), "GET", huge[:5000], 1),
		} {
			f.wire(t, raw)
			e := f.next(t)
			a.Done(&e)
		}
		// net/http lets none of these pass; the log does not rely on it.
		a.Done(&Event{Method: "GET\r\nlevel=ERROR", Host: "a\x1b[2J", Path: "/\n\x1b]0;x\x07"})
		got := out.String()
		if n := strings.Count(got, "\n"); n != 5 {
			t.Errorf("%s: %d lines for 5 requests", format, n)
		}
		if len(got) > 5*2500 {
			t.Errorf("%s: %d bytes for 5 requests", format, len(got))
		}
		if strings.ContainsAny(got, "\x1b\r") || strings.Contains(got, "secret") {
			t.Errorf("%s: %q", format, got)
		}
	}
}

// TestHTTP2Targets holds HTTP/2 to the same: what it calls :authority is one Host,
// and the forms of :path but origin-form are refused.
func TestHTTP2Targets(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	for _, c := range []struct {
		fields []string // pairs
		status int
	}{
		{[]string{":method", "GET", ":scheme", "http", ":path", "/x", ":authority", "front.test"}, 200},
		{[]string{":method", "GET", ":scheme", "http", ":path", "/x", "host", "front.test"}, 200},
		{[]string{":method", "GET", ":scheme", "http", ":path", "/x"}, 400},
		{[]string{":method", "GET", ":scheme", "http", ":path", "/x", ":authority", "a/b"}, 400},
		{[]string{":method", "GET", ":scheme", "http", ":path", "*", ":authority", "front.test"}, 400},
		{[]string{":method", "OPTIONS", ":scheme", "http", ":path", "*", ":authority", "front.test"}, 405},
		{[]string{":method", "GET", ":scheme", "http", ":path", "http://evil.test/x", ":authority", "front.test"}, 400},
		{[]string{":method", "CONNECT", ":authority", "front.test:443"}, 405},
		{[]string{":method", "TRACE", ":scheme", "http", ":path", "/x", ":authority", "front.test"}, 405},
		{[]string{":method", "GET", ":scheme", "http", ":path", "/x", ":authority", "front.test", "expect", "zzz"}, 417},
	} {
		before := up.count()
		status := h2Status(t, f.addr, c.fields)
		if status != c.status && !(c.status >= 400 && status == 0) { // 0: the stream was reset
			t.Errorf("%q: answered %d, want %d", c.fields, status, c.status)
		}
		want := before
		if c.status == 200 {
			want++
		}
		if up.count() != want {
			t.Errorf("%q: the upstream got %q", c.fields, up.lines()[before:])
		}
	}
}

// White space around a value, which no upstream sees, does not make another key
// of it: by an empty continuation line (RFC 9112, section 5.2) or in HTTP/2,
// where it is an error that net/http lets pass (RFC 9113, section 8.2.1).
func TestWhiteSpaceMakesNoKey(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	r := limited(route("/", up.addr), new(turnstile))
	keys := make(chan string, 1)
	r.Identify = func(id Identity) ([]limiter.Key, error) {
		keys <- id.Request.Header.Get("X-Api-Key")
		return []limiter.Key{{}}, nil
	}
	f := newFront(t, &Site{Routes: []*Route{r}})
	for _, fold := range []string{"", " \r\n", "\t\r\n \r\n"} {
		f.wire(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Api-Key: a b\r\n"+fold+"\r\n")
		if k := <-keys; k != "a b" {
			t.Errorf("behind %q the key is %q", fold, k)
		}
	}
	for _, v := range []string{"a b", "a b ", " a b", "\ta b\t "} {
		if s := h2Status(t, f.addr, []string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/", "x-api-key", v}); s != 200 {
			t.Errorf("%q: %d", v, s)
		}
		if k := <-keys; k != "a b" {
			t.Errorf("of %q the key is %q", v, k)
		}
	}
}

// TestS30NotTheUpstreamsFault: what HTTP/2 lets through and HTTP/1 cannot say is
// the client's fault. One client could else keep everybody from the upstream, by
// its circuit breaker.
func TestS30NotTheUpstreamsFault(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		up := newRawUpstream(t, always(ok200))
		turns := &turnstile{}
		r := limited(route("/", up.addr, func(o *UpstreamOptions) {
			o.Scheme = scheme
			o.Breaker = &BreakerPolicy{FailureRatio: 0.01, Window: time.Second, MinRequests: 1, OpenFor: time.Minute, Probes: 1}
		}), turns)
		f := newFront(t, &Site{Routes: []*Route{r}})
		for _, c := range []struct{ method, path string }{
			{"GET", "/a b"}, {"GET", "/a?b c"}, {"GET", "//a b"}, {"GET", " /"}, {"GET", "/ HTTP/1.1"},
			{"GE T", "/"}, {"GET ", "/"}, {"GET(", "/"}, {"GET\r\nA: b", "/"}, {"G\xc3\x89T", "/"}, {"G\xffT", "/"},
		} {
			code := h2Status(t, f.addr, []string{":method", c.method, ":scheme", "http", ":path", c.path, ":authority", "front.test"})
			if code != 0 && code != 400 {
				t.Errorf("%s: %q of %q is answered %d", scheme, c.method, c.path, code)
			}
		}
		if refusal := r.Upstream.refuses(); refusal != nil || up.bytes() != "" || turns.turns.Load() != 0 {
			t.Errorf("%s: the upstream got %q after %d turns, and is left alone: %v", scheme, up.bytes(), turns.turns.Load(), refusal)
		}
	}
}

// TestLongHeadForHTTP2: an upstream says by a setting of HTTP/2 what it would
// answer by 431 over HTTP/1, and is no more to blame for it.
func TestLongHeadForHTTP2(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	up := &http.Server{Handler: http.HandlerFunc(respond), MaxHeaderBytes: 4096, Protocols: new(http.Protocols)}
	up.Protocols.SetUnencryptedHTTP2(true)
	go up.Serve(l)
	t.Cleanup(func() { up.Close() })
	r := route("/", l.Addr().String(), func(o *UpstreamOptions) {
		o.Scheme = "h2c"
		o.Breaker = &BreakerPolicy{FailureRatio: 0.01, Window: time.Second, MinRequests: 1, OpenFor: time.Minute, Probes: 1}
	})
	f := newFront(t, &Site{Routes: []*Route{r}})
	long := "A: " + strings.Repeat("x", 30_000)
	for i, c := range []struct {
		fields []string
		status int
	}{{nil, 204}, {[]string{long}, 431}, {nil, 204}} {
		if res := f.get(t, "GET", "/", c.fields...); res.StatusCode != c.status {
			t.Errorf("request %d is answered %d, want %d", i+1, res.StatusCode, c.status)
		}
	}
}
