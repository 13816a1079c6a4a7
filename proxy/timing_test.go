package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func TestServerTiming(t *testing.T) {
	if got, want := serverTiming(1500*time.Microsecond, 2*time.Second), "queue;dur=1.500, upstream;dur=2000.000"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	up := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server-Timing", "db;dur=5")
		io.WriteString(w, "ok")
	}))
	tells, silent := route("/tells", up), route("/silent", up)
	tells.ServerTiming = true
	f := newFront(t, &Site{Routes: []*Route{tells, silent}})
	res := f.get(t, "GET", "/tells")
	body(t, res)
	if all := res.Header["Server-Timing"]; len(all) != 2 || all[0] != "db;dur=5" || !strings.HasPrefix(all[1], "queue;dur=0.000, upstream;dur=") {
		t.Errorf("Server-Timing %q", all)
	}
	res = f.get(t, "GET", "/silent")
	body(t, res)
	if all := res.Header["Server-Timing"]; len(all) != 1 {
		t.Errorf("Server-Timing %q", all)
	}
}

// A permit is released once, however its request ends.
func TestPermitIsReleased(t *testing.T) {
	cut := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/dies":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "short")
			panic(http.ErrAbortHandler)
		case "/panics":
			panic(http.ErrAbortHandler)
		}
	}))
	for _, target := range []string{"/fine", "/dies", "/panics", "/refused"} {
		var released int
		r := route("/", cut)
		r.Identify = func(Identity) ([]limiter.Key, error) { return nil, nil }
		r.Limiter = limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
			p := limiter.Permit{Done: func() { released++ }}
			p.Allowed = target != "/refused"
			if !p.Allowed {
				p.Done = nil
			}
			return p, nil
		})
		f := newFront(t, &Site{Routes: []*Route{r}})
		f.wire(t, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		f.next(t)
		f.proxy.Wait()
		want := 1
		if target == "/refused" {
			want = 0
		}
		if released != want {
			t.Errorf("%s: released %d times, want %d", target, released, want)
		}
	}
}
