package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// Each client address may log in five times in any minute.
func ExampleGuard() {
	logins, err := limiter.New(limiter.Policy{
		Name: "logins", Algorithm: limiter.SlidingWindowLog, Limit: 5, Window: time.Minute,
	})
	if err != nil {
		panic(err)
	}
	handler := &proxy.Guard{
		Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "welcome") }),
		// Behind a proxy that you trust, read the address that it tells.
		Identify: func(r *http.Request) ([]limiter.Key, error) {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			return []limiter.Key{{Value: host}}, err
		},
		Limiter:  logins,
		Dialects: []proxy.Dialect{proxy.DialectIETF},
	}
	for range 6 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/login", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "logins";r=4;t=60
	// 200 "logins";r=3;t=60
	// 200 "logins";r=2;t=60
	// 200 "logins";r=1;t=60
	// 200 "logins";r=0;t=60
	// 429 "logins";r=0;t=60
}

// limiterFunc is a Limiter of one answer.
type limiterFunc func(context.Context, limiter.Request) (limiter.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, r limiter.Request) (limiter.Permit, error) {
	return f(ctx, r)
}

func TestGuard(t *testing.T) {
	released, served := 0, 0
	passed := limiter.Permit{
		Decision: limiter.Decision{Policy: "p", Allowed: true, Limit: 2, Remaining: 1, ResetAfter: time.Second},
		Done:     func() { released++ },
	}
	refused := limiter.Permit{Decision: limiter.Decision{
		Policy: "p", Reason: limiter.ReasonLimit, Limit: 2, RetryAfter: 1500 * time.Millisecond, Status: 503,
	}}
	refused.All = []limiter.Decision{refused.Decision}
	for _, c := range []struct {
		name     string
		identify error
		permit   limiter.Permit
		err      error
		gone     bool

		status                int
		retry, fields, inBody string
		served, released      int
	}{
		{name: "let go", permit: passed, status: 200, fields: "1", inBody: "served", served: 1, released: 1},
		{name: "refused", permit: refused, status: 503, retry: "2", fields: "0", inBody: `"reason":"limit"`},
		{name: "no key", identify: errors.New("no tenant"), status: 400, inBody: "no tenant"},
		{name: "broken", err: errors.New("secret"), status: 500, inBody: "could not be asked"},
		{name: "gone", err: context.Canceled, gone: true, status: proxy.StatusClientGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			released, served = 0, 0
			g := &proxy.Guard{
				Next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if served++; released != 0 {
						t.Error("the place is given back before the end")
					}
					_, _ = io.WriteString(w, "served")
				}),
				Identify: func(*http.Request) ([]limiter.Key, error) { return make([]limiter.Key, 1), c.identify },
				Limiter: limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
					return c.permit, c.err
				}),
				Dialects: []proxy.Dialect{proxy.DialectIETF03},
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if c.gone {
				leave()
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.inBody) || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%d %q", w.Code, w.Body)
			}
			if h := w.Header(); h.Get("Retry-After") != c.retry || h.Get("RateLimit-Remaining") != c.fields {
				t.Errorf("%v", h)
			}
			if served != c.served || released != c.released {
				t.Errorf("served %d times, released %d", served, released)
			}
		})
	}
}
