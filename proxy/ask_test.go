package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Whoever asks is told of the upstream's own answer, with the keys that the
// request had, and of nothing that shapeproxy itself answers.
func TestAsk(t *testing.T) {
	up := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	for _, limited := range []bool{false, true} {
		var asked, heard []string
		r := route("/", up)
		r.Identify = func(of Identity) ([]limiter.Key, error) {
			return []limiter.Key{{Value: of.Request.Header.Get("X-Key")}}, nil
		}
		r.Ask = func(keys []limiter.Key) func(int, http.Header) bool {
			asked = append(asked, keys[0].Value)
			if keys[0].Value == "deaf" {
				return nil
			}
			return func(status int, h http.Header) bool {
				heard = append(heard, http.StatusText(status)+" "+h.Get("Retry-After"))
				return true
			}
		}
		if limited {
			l, err := limiter.New(limiter.Policy{Name: "one", Algorithm: limiter.FixedWindow, Limit: 1, Window: 1 << 40})
			if err != nil {
				t.Fatal(err)
			}
			r.Limiter = l
		}
		f := newFront(t, &Site{Routes: []*Route{r}})
		for _, key := range []string{"a", "deaf", "a"} {
			req := httptest.NewRequest("GET", "/", nil)
			req.Header.Set("X-Key", key)
			w := httptest.NewRecorder()
			f.proxy.ServeHTTP(w, req)
			if ours := w.Header().Get("Proxy-Status") != ""; w.Code != 429 || !ours && w.Header().Get("Retry-After") != "7" {
				t.Errorf("limited %v: %s got %d %v", limited, key, w.Code, w.Header())
			}
		}
		want := []string{"a", "deaf", "a"}
		if limited {
			want = want[:2]
		}
		if !slices.Equal(asked, want) || len(heard) != len(want)-1 || heard[0] != "Too Many Requests 7" {
			t.Errorf("limited %v: asked %q and heard %q", limited, asked, heard)
		}
	}
}

// A limit that learns is told once of each answer, and of none that there was
// not, but that it was too late.
func TestReport(t *testing.T) {
	up := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/429":
			w.WriteHeader(http.StatusTooManyRequests)
		case "/busy":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/503":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/late":
			<-r.Context().Done()
		case "/broken":
			panic(http.ErrAbortHandler)
		}
	}))
	for path, want := range map[string][]limiter.Answer{
		"/200": {{}}, "/429": {{Throttled: true}}, "/busy": {{Throttled: true}}, "/503": {{}}, "/late": {{Late: true}}, "/broken": nil,
	} {
		var told []limiter.Answer
		p := passes("one", 1, 1)
		p.Learn = func(a limiter.Answer) {
			if a.Latency <= 0 {
				t.Errorf("%s: the answer took %v", path, a.Latency)
			}
			a.Latency = 0
			told = append(told, a)
		}
		r := limited(route("/", up), limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) { return p, nil }))
		if path == "/late" {
			r.Timeout = 10 * time.Millisecond
		}
		w := httptest.NewRecorder()
		newFront(t, &Site{Routes: []*Route{r}}).proxy.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if !slices.Equal(told, want) {
			t.Errorf("%s, answered with %d: told of %+v, want %+v", path, w.Code, told, want)
		}
	}
}
