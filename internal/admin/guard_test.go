package admin

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// DNS rebinding: a page of evil.example has its name resolve to 127.0.0.1 and
// reads the API as its own origin. Its Host tells it apart.
func TestCaseS35Host(t *testing.T) {
	for _, c := range []struct {
		listen string
		hosts  []string
		host   string
		ok     bool
	}{
		{"127.0.0.1:9090", nil, "localhost:9090", true},
		{"127.0.0.1:9090", nil, "LocalHost.", true},
		{"127.0.0.1:9090", nil, "127.0.0.1", true},
		{"127.0.0.1:9090", nil, "127.8.9.10:1", true},
		{"127.0.0.1:9090", nil, "[::1]:9090", true},
		{"127.0.0.1:9090", nil, "[::1]", true},
		{"127.0.0.1:9090", nil, "[::ffff:127.0.0.1]:9090", true},
		{"127.0.0.1:9090", nil, "evil.example", false},
		{"127.0.0.1:9090", nil, "evil.example:9090", false},
		{"127.0.0.1:9090", nil, "localhost.evil.example", false},
		{"127.0.0.1:9090", nil, "127.0.0.1.evil.example", false},
		{"127.0.0.1:9090", nil, "127.1", false},
		{"127.0.0.1:9090", nil, "2130706433", false},
		{"127.0.0.1:9090", nil, "10.1.2.3", false},
		{"127.0.0.1:9090", nil, "0.0.0.0:9090", false},
		{"127.0.0.1:9090", nil, "", false},
		{"127.0.0.1:9090", nil, ":9090", false},
		{"127.0.0.1:9090", nil, "admin@localhost", false},
		{"127.0.0.1:9090", []string{"Ops.Example"}, "ops.example:443", true},
		{"127.0.0.1:9090", []string{"ops.example:9090"}, "OPS.example.", true},
		{"127.0.0.1:9090", []string{"ops.example"}, "x.ops.example", false},
		{"127.0.0.1:9090", []string{""}, "", false},
		{"10.1.2.3:9090", nil, "10.1.2.3:9090", true},
		{"10.1.2.3:9090", nil, "10.1.2.4:9090", false},
		{"[fd00::5]:9090", nil, "[fd00::5]:9090", true},
		{"ops.internal:9090", nil, "ops.internal", true},
		// Everywhere: the address that the connection came to, and no name.
		{":9090", nil, "10.9.9.9:9090", true},
		{"0.0.0.0:9090", nil, "10.9.9.9", true},
		{"[::]:9090", nil, "10.9.9.9", true},
		{":9090", nil, "10.9.9.8", false},
		{":9090", nil, "evil.example", false},
		{":9090", nil, "", false},
		{"0.0.0.0:9090", nil, "0.0.0.0", false},
		{"unix:/run/shapeproxy.sock", nil, "localhost", true},
		{"unix:/run/shapeproxy.sock", nil, "unix", false},
		{"unix:/run/shapeproxy.sock", nil, "evil.example", false},
	} {
		a := newAdmin(func(o *Options) { o.Listen, o.Hosts = c.listen, c.hosts })
		for path, judged := range map[string]bool{
			"/": true, "/page.js": true, "/api/limits": true, "/nothing": true,
			"/metrics": false, "/healthz": false,
		} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = c.host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
				net.TCPAddrFromAddrPort(netip.MustParseAddrPort("[::ffff:10.9.9.9]:9090"))))
			w := httptest.NewRecorder()
			a.Handler().ServeHTTP(w, r)
			if got, want := w.Code != http.StatusMisdirectedRequest, c.ok || !judged; got != want {
				t.Errorf("listen %s hosts %q: Host %q at %s: status %d", c.listen, c.hosts, c.host, path, w.Code)
			}
		}
	}
}

func TestCaseS35CrossOrigin(t *testing.T) {
	for _, c := range []struct {
		headers []string
		ok      bool
	}{
		{nil, true}, // curl
		{[]string{"Sec-Fetch-Site: same-origin"}, true},
		{[]string{"Sec-Fetch-Site: none"}, true},
		{[]string{"Origin: http://localhost"}, true},
		{[]string{"Sec-Fetch-Site: cross-site"}, false},
		{[]string{"Sec-Fetch-Site: same-site"}, false},
		{[]string{"Origin: http://evil.example"}, false},
		{[]string{"Origin: http://localhost:8080"}, false}, // the proxied site on the same machine
		{[]string{"Origin: null"}, false},
		{[]string{"Origin: http://localhost", "Sec-Fetch-Site: cross-site"}, false},
	} {
		reloads := 0
		a := newAdmin(func(o *Options) {
			o.Reload = func() (problems, warnings []string) { reloads++; return nil, nil }
		})
		w := ask(a, "POST /api/reload", "", c.headers...)
		if ok := w.Code == 200; ok != c.ok || !ok && w.Code != 403 || reloads == 1 != c.ok {
			t.Errorf("%q: status %d, %d reloads", c.headers, w.Code, reloads)
		}
		// To read is no change; the answer is kept from other origins by the browser.
		w = ask(a, "GET /api/limits", "", c.headers...)
		if w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%q: GET: status %d", c.headers, w.Code)
		}
	}
}

// Forms and simple requests are sent without asking first.
func TestCaseS35ContentType(t *testing.T) {
	for _, c := range []struct {
		body, kind string
		status     int
	}{
		{"", "", 200},
		{"", "text/plain", 200},
		{"{}", "application/json", 200},
		{"{}", "Application/JSON; charset=utf-8", 200},
		{"{}", "", 415},
		{"{}", "text/plain", 415},
		{"{}", "text/plain; x=application/json", 415},
		{"{}", "application/x-www-form-urlencoded", 415},
		{"{}", "multipart/form-data; boundary=x", 415},
		{"{}", "application/json, text/plain", 415},
		{"{}", "application/jsonx", 415},
	} {
		var headers []string
		if c.kind != "" {
			headers = []string{"Content-Type: " + c.kind}
		}
		if w := ask(newAdmin(nil), "POST /api/reload", c.body, headers...); w.Code != c.status {
			t.Errorf("body %q of type %q: status %d, want %d", c.body, c.kind, w.Code, c.status)
		}
	}
	// A body of unknown length is one too.
	r := httptest.NewRequest("POST", "http://localhost/api/reload", struct{ *strings.Reader }{strings.NewReader("x")})
	w := httptest.NewRecorder()
	newAdmin(nil).Handler().ServeHTTP(w, r)
	if r.ContentLength != -1 || w.Code != 415 {
		t.Errorf("a chunked body without type: length %d, status %d", r.ContentLength, w.Code)
	}
}

func TestCaseS35Token(t *testing.T) {
	basic := func(user, password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	const token = "s3cret:with colon"
	a := newAdmin(func(o *Options) { o.Token = token })
	a.SetReady(true)
	paths := []string{
		"GET /", "GET /page.js", "GET /icon.svg", "GET /metrics", "GET /api/limits", "GET /api/limits/fragile",
		"HEAD /api/events", "POST /api/reload",
	}
	for _, c := range []struct {
		header string
		ok     bool
	}{
		{"Authorization: Bearer " + token, true},
		{"Authorization: bearer  " + token, true},
		{basic("", token), true},
		{basic("anyone", token), true},
		{"X-Nothing: x", false},
		{"Authorization: Bearer", false},
		{"Authorization: Bearer ", false},
		{"Authorization: Bearer s3cret", false},
		{"Authorization: Bearer " + token + "x", false},
		{"Authorization: " + token, false},
		{"Authorization: Token " + token, false},
		{"Authorization: Basic !!!", false},
		{basic(token, ""), false},
		{basic("anyone", token+"x"), false},
		{"Cookie: token=" + token, false},
	} {
		for _, p := range paths {
			w := ask(a, p, "", c.header)
			if ok := w.Code == 200; ok != c.ok || !ok && w.Code != 401 {
				t.Errorf("%s with %q: status %d", p, c.header, w.Code)
			}
			if got := w.Header().Values("WWW-Authenticate"); !c.ok &&
				!slices.Equal(got, []string{`Bearer realm="shapeproxy"`, `Basic realm="shapeproxy", charset="UTF-8"`}) {
				t.Errorf("%s with %q: WWW-Authenticate %q", p, c.header, got)
			}
			if strings.Contains(w.Body.String(), "s3cret") {
				t.Errorf("%s: the answer holds the token", p)
			}
		}
	}
	for _, p := range []string{"GET /healthz", "GET /readyz"} {
		if w := ask(a, p, ""); w.Code != 200 {
			t.Errorf("%s asks for a token: %d", p, w.Code)
		}
	}
	// Not by a path that begins like one of those, nor in the query; and what
	// is not there is not told apart from what is.
	for _, p := range []string{
		"GET /healthz/../api/limits", "GET /healthz/", "GET /readyz/x", "GET //healthz", "GET /nothing",
		"GET /api/limits?token=s3cret:with+colon", "GET /api/limits?access_token=s3cret:with+colon", "DELETE /api/limits",
	} {
		if w := ask(a, p, ""); w.Code != 401 {
			t.Errorf("%s without token: status %d, want 401", p, w.Code)
		}
	}
}

// Without a token none is asked for, also when one is sent.
// A reload may change names and token.
func TestAdmit(t *testing.T) {
	a := newAdmin(func(o *Options) { o.Hosts, o.Token = []string{"old.example"}, "old" })
	status := func(host, token string) int {
		return ask(a, "GET /api/limits", "", "Host: "+host, "Authorization: Bearer "+token).Code
	}
	if got := status("old.example", "old"); got != 200 {
		t.Errorf("status %d", got)
	}
	a.Admit([]string{"new.example"}, "new")
	for _, c := range []struct {
		host, token string
		want        int
	}{{"new.example", "new", 200}, {"10.1.2.3", "new", 200}, {"new.example", "old", 401}, {"old.example", "new", 421}} {
		if got := status(c.host, c.token); got != c.want {
			t.Errorf("%s with the token %s: %d, want %d", c.host, c.token, got, c.want)
		}
	}
}

func TestNoToken(t *testing.T) {
	for _, h := range []string{"X-Nothing: x", "Authorization: Bearer x", "Authorization: Basic eDp5"} {
		if w := ask(newAdmin(nil), "GET /api/limits", "", h); w.Code != 200 {
			t.Errorf("with %q: status %d", h, w.Code)
		}
	}
}

func TestSecurityHeaders(t *testing.T) {
	for _, p := range []string{"GET /", "GET /page.js", "GET /api/limits", "GET /nothing", "HEAD /api/events"} {
		h := ask(newAdmin(nil), p, "").Header()
		for name, want := range map[string]string{
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", p, name, got, want)
			}
		}
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "script-src 'self'"} {
			if policy := h.Get("Content-Security-Policy"); !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: Content-Security-Policy is %q", p, policy)
			}
		}
	}
}
