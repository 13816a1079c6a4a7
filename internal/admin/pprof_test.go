package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestS36Profiles: they are there when they were asked for, behind Host and
// token like all else, and tell no command line.
func TestS36Profiles(t *testing.T) {
	get := func(a *Admin, host, path, token string) int {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = host
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		return w.Code
	}
	off := newAdmin(func(o *Options) {})
	on := newAdmin(func(o *Options) { o.Pprof = true; o.Token = "secret" })
	for path, want := range map[string]int{
		"/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/goroutine?debug=2": 200, "/debug/pprof/symbol": 200,
		"/debug/pprof/cmdline": 404, "/debug/pprof": 404, "/debug/pprof/../pprof/heap": 404, "/debug/vars": 404,
	} {
		if got := get(off, "localhost", path, ""); got != http.StatusNotFound {
			t.Errorf("not asked for: %s is answered %d", path, got)
		}
		if got := get(on, "localhost", path, "secret"); got != want {
			t.Errorf("%s is answered %d, want %d", path, got, want)
		}
		if got := get(on, "localhost", path, ""); got != http.StatusUnauthorized {
			t.Errorf("%s without the token is answered %d", path, got)
		}
		if got := get(on, "evil.example", path, "secret"); got != http.StatusMisdirectedRequest {
			t.Errorf("%s for another Host is answered %d", path, got)
		}
	}
	// A token does not belong into a query, where logs would have it.
	if got := get(on, "localhost", "/api/limits?token=secret&access_token=secret", ""); got != http.StatusUnauthorized {
		t.Errorf("a token in the query is answered %d", got)
	}
}

// TestS35SimplePost: what a page can send without being asked is not taken.
func TestS35SimplePost(t *testing.T) {
	a := newAdmin(func(o *Options) {})
	for _, c := range []struct {
		name, kind string
		header     map[string]string
		want       int
	}{
		{"text", "text/plain", nil, http.StatusUnsupportedMediaType},
		{"form", "application/x-www-form-urlencoded", nil, http.StatusUnsupportedMediaType},
		{"cross-site", "application/json", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"same-site", "application/json", map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		{"another Origin", "application/json", map[string]string{"Origin": "http://localhost:1"}, http.StatusForbidden},
	} {
		r := httptest.NewRequest("POST", "/api/reload", strings.NewReader("{}"))
		r.Host = "localhost:9090"
		r.Header.Set("Content-Type", c.kind)
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: answered %d, want %d", c.name, w.Code, c.want)
		}
	}
}
