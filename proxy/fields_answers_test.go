package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Nothing is told where it would mislead: on a redirect when nothing is left, as
// the client would wait before it follows, and on a 304, which a cache puts on
// what it has stored (draft-ietf-httpapi-ratelimit-headers-11, sections 6 and
// 7.3). What the upstream tells itself stays.
func TestFieldsThatWouldMislead(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.Header().Set("RateLimit", `"theirs";r=3;t=9`)
		w.Header().Set("RateLimit-Remaining", "3")
		switch r.URL.Path {
		case "/304":
			w.WriteHeader(http.StatusNotModified)
		case "/307":
			w.WriteHeader(http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusOK)
		}
	}))
	store := limiter.NewMemory()
	f := newFront(t, &Site{
		Routes:           []*Route{limited(route("/", addr), chain(store, tokens(t, store, 4, nil)))},
		RateLimitHeaders: append(everyDialect, DialectGitHub),
	})
	for i, step := range []struct {
		path string
		left int64 // -1: not told
	}{{"/304", -1}, {"/307", 2}, {"/200", 1}, {"/307", -1}} {
		res := f.get(t, "GET", step.path)
		list, err := httpsfv.UnmarshalList(res.Header["Ratelimit"])
		if err != nil {
			t.Fatal(err)
		}
		if r := parameter(t, member(t, res.Header["Ratelimit"], "theirs"), "r"); r != 3 {
			t.Errorf("%d: the upstream's r became %d", i, r)
		}
		if step.left < 0 {
			if len(list) != 1 || res.Header.Get("RateLimit-Policy") != "" || res.Header.Get("RateLimit-Remaining") != "3" {
				t.Errorf("%d, %s: %v", i, step.path, res.Header)
			}
			for name := range res.Header {
				if strings.HasPrefix(name, "X-") {
					t.Errorf("%d, %s: %s", i, step.path, name)
				}
			}
			continue
		}
		if r := parameter(t, member(t, res.Header["Ratelimit"], "tokens"), "r"); r != step.left {
			t.Errorf("%d, %s: r=%d, want %d", i, step.path, r, step.left)
		}
	}
}
