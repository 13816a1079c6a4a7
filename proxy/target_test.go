package proxy

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
)

// TestCase54TargetUnchanged: the target is forwarded byte for byte, and no
// answer is ever a redirect (golang/go #42244, #21955, caddyserver/caddy #1582).
func TestCase54TargetUnchanged(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr), route("/tree/", up.addr)}})
	for _, target := range []string{
		"/", "/api/queues/%2F/q", "//a//b", "/a/../b", "/a%2e%2e/b", "/%2F%2Fx", "/tree", "/a?", "/a?x=1;y=%zz&&", "/%61dmin",
		`/a"<>\^{|}`, "/\xff\xfe", "/a;x=1/b", "/a//", "/.", "/%7e~", "/a?b?c", "//",
		`//a"<>\^{|}?`, "//\xff", "//h:x/y", "///[",
	} {
		res := f.get(t, "GET", target)
		if res.StatusCode != 200 {
			t.Errorf("GET %s: status %d", target, res.StatusCode)
		}
		if want := "GET " + target + " HTTP/1.1\r\n"; !strings.Contains(up.bytes(), want) {
			t.Errorf("GET %s: the upstream did not get %q", target, want)
		}
	}
}

// TestTargetUnchangedOverHTTP2: net/http's HTTP/2 would take a path that begins
// with two slashes for an authority.
func TestTargetUnchangedOverHTTP2(t *testing.T) {
	at := make(chan string, 1)
	addr := upstreamHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { at <- r.Host + " " + r.RequestURI }))
	for _, sendHost := range []string{"upstream", "client", "api.test:81"} {
		f := newFront(t, &Site{Routes: []*Route{route("/", addr, func(o *UpstreamOptions) { o.Scheme, o.SendHost = "h2c", sendHost })}})
		host := map[string]string{"upstream": addr, "client": "front.test"}[sendHost]
		for _, target := range []string{"/a//b?", `//a"<>\^{|}?x`, "//h:x/y", "///%5b"} {
			res := f.get(t, "GET", target)
			if res.StatusCode != 200 {
				t.Errorf("GET %s: status %d", target, res.StatusCode)
				continue
			}
			if got := <-at; got != cmp.Or(host, sendHost)+" "+target {
				t.Errorf("GET %s, host = %s: the upstream saw %s", target, sendHost, got)
			}
		}
	}
}

// TestCase54Matching: what routes match is one form, decoded once and cleaned,
// so that no spelling reaches a looser route.
func TestCase54Matching(t *testing.T) {
	table, err := newRouteTable([]*Route{
		{Match: "/", Pattern: "/"}, {Match: "/admin/", Pattern: "/admin/"}, {Match: "GET /only", Pattern: "GET /only"},
		{Match: "/v1/{id}", Pattern: "/v1/{id}"}, {Match: "api.test/", Pattern: "api.test/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ host, path, want string }{
		{"x", "/admin/", "/admin/"},
		{"x", "/admin", "/admin/"}, // the mux would redirect: /admin/ owns it
		{"x", "/%61dmin/", "/admin/"},
		{"x", "//admin/x", "/admin/"},
		{"x", "/x/../admin/y", "/admin/"},
		{"x", "/x/%2e%2e/admin", "/admin/"},
		{"x", "/%2fadmin", "/admin/"},
		{"x", "/admin%2fx", "/admin/"},
		{"x", "/admin/.", "/admin/"},
		{"x", "/%2561dmin", "/"}, // decoded once
		{"x", "/ADMIN", "/"},     // paths have case
		{"x", "/v1/a%20b", "/v1/{id}"},
		{"x", "/v1/a/b", "/"},
		{"x", "/..", "/"},
		{"API.test.:8080", "/q", "api.test/"},
		{"api.test", "/admin/", "api.test/"}, // a host's pattern comes first
	} {
		host, ok := canonicalHost(c.host)
		if !ok {
			t.Fatalf("host %q refused", c.host)
		}
		to := target{host: host, path: mustClean(t, c.path)}
		l := table.find("POST", to)
		if l.route == nil {
			t.Errorf("%s%s: status %d, want route %q", c.host, c.path, l.status, c.want)
		} else if l.route.Match != c.want {
			t.Errorf("%s%s: route %q, want %q", c.host, c.path, l.route.Match, c.want)
		}
	}
}

func mustClean(t *testing.T, raw string) string {
	t.Helper()
	to, bad := readTarget(originForm("x", raw))
	if bad != nil {
		t.Fatalf("%q: %s", raw, bad.detail)
	}
	return to.path
}

func TestMethodMismatchIs405(t *testing.T) {
	table, err := newRouteTable([]*Route{{Match: "GET /only", Pattern: "GET /only"}})
	if err != nil {
		t.Fatal(err)
	}
	l := table.find("DELETE", target{host: "x", path: "/only"})
	if l.route != nil || l.status != 405 || l.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("status %d, Allow %q", l.status, l.header.Get("Allow"))
	}
	if l := table.find("HEAD", target{host: "x", path: "/only"}); l.route == nil {
		t.Error("HEAD does not match a GET pattern")
	}
	if l := table.find("GET", target{host: "x", path: "/other"}); l.status != 404 {
		t.Errorf("status %d, want 404", l.status)
	}
	if l := table.find("GET", target{host: "x", path: "/only/"}); l.status != 404 {
		t.Errorf("/only/: status %d, want 404", l.status)
	}
}

func TestConflictingPatternsAreAnError(t *testing.T) {
	for _, patterns := range [][]string{{"/a", "/a"}, {"/{x}/b", "/a/{y}"}, {"/{"}, {"GET"}} {
		var routes []*Route
		for _, p := range patterns {
			routes = append(routes, &Route{Match: p, Pattern: p})
		}
		if _, err := newRouteTable(routes); err == nil {
			t.Errorf("%q: no error", patterns)
		}
	}
}

func TestCanonicalHost(t *testing.T) {
	for in, want := range map[string]string{
		"A.example": "a.example", "a.example.": "a.example", "a.example.:80": "a.example", "a:1": "a", "a:": "a",
		"127.0.0.1:8080": "127.0.0.1", "[::1]:8080": "[::1]", "[::1]": "[::1]", "a_b.test": "a_b.test",
	} {
		if got, ok := canonicalHost(in); !ok || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, ok, want)
		}
	}
	for _, in := range []string{
		"", ".", ":80", "a/b", "u@h", "a b", "a:b", "a:1:2", "a,b", "[::1", "[]", "[x]", "[::1]x", "a:123456", "a\x00", "é",
		"a%2eb", strings.Repeat("a", 254),
	} {
		if got, ok := canonicalHost(in); ok {
			t.Errorf("%q: taken as %q", in, got)
		}
	}
}

func TestStripPrefix(t *testing.T) {
	for _, c := range []struct{ raw, prefix, want string }{
		{"/api/x", "/api", "/x"},
		{"/api", "/api", "/"},
		{"/api/", "/api", "/"},
		{"/apix", "/api", "/apix"},       // whole segments
		{"/%61pi/%7ex", "/api", "/%7ex"}, // on the decoded path; the rest byte for byte
		{"//api/x", "/api", "/x"},        // a detour leaves nothing behind
		{"/a/../api/x%20y", "/api", "/x%20y"},
		{"/api%2Fx", "/api", "/x"},
		{"/api/%2e%2e/x", "/api", "/api/%2e%2e/x"}, // matches as /x: there is no prefix
		{"/api//x", "/api", "/x"},
		{"/x", "", "/x"},
	} {
		to, bad := readTarget(originForm("x", c.raw))
		if bad != nil {
			t.Fatal(bad.detail)
		}
		if got := to.stripped(c.prefix); got != c.want {
			t.Errorf("%s without %s: %s, want %s", c.raw, c.prefix, got, c.want)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"/", "//a", "/%2e%2e/x", "/a?b#c", "*", "http://h/x", "/%00", "/%zz", `/\..\x`, "/a/./b/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := originForm("x", raw)
		if r == nil {
			return
		}
		to, bad := readTarget(r)
		if bad != nil {
			return
		}
		if !strings.HasPrefix(to.path, "/") || strings.Contains(to.path, "//") {
			t.Fatalf("%q: path %q is not clean", raw, to.path)
		}
		for seg := range strings.SplitSeq(to.path, "/") {
			if seg == "." || seg == ".." {
				t.Fatalf("%q: path %q has a dot segment", raw, to.path)
			}
		}
		u := to.forwarded("http", "", "")
		if path, _, _ := strings.Cut(raw, "?"); u.Opaque != path && strings.HasPrefix(raw, "/") {
			t.Fatalf("%q is forwarded as %q", raw, u.Opaque)
		}
		if u := to.forwarded("http", "/base", ""); !strings.HasPrefix(u.RequestURI(), "/base/") {
			t.Fatalf("%q is not forwarded below the base path", raw)
		}
	})
}
