package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/shaping"
)

// What a request that may go again may and may not hold.

// What is kept of bodies is no more than there is room for in all.
func TestRetryHoldsNoMoreThanThereIsRoomFor(t *testing.T) {
	large := strings.Repeat("x", keptBytes+1)
	for _, tt := range []struct {
		body string
		left int64 // of what may be kept
		sent int
	}{
		{"body", keptAnswer, 2}, // any body of that size is kept
		{"body", keptAnswer - 1, 1},
		{large, keptAnswer + 2*keptBytes, 2},
		{large, 2*keptBytes - 1, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, throttle(1, "1"), "http", func(r *Route) {
				obeying(r, oneASecond(t, time.Minute))
				r.Retry = RetryPolicy{Most: 2, Any: true, Body: 10_000}
			})
			w.proxy.kept.Add(keptInAll - tt.left)
			res, err := w.client(t, false).Post("http://front.test/", "", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			body(t, res)
			w.next(t)
			w.proxy.kept.Add(tt.left - keptInAll)
			w.reached(t, []string{"0s/", "1s/"}[:tt.sent]...)
		})
	}
}

// An answer that is too long to be kept is passed on whole.
func TestRetryOfALongAnswer(t *testing.T) {
	for n, tries := range map[int]int{keptAnswer: 2, keptAnswer + 1: 1, 3 * keptAnswer: 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(429)
				io.WriteString(w, strings.Repeat("x", n))
			}, "http", func(r *Route) {
				obeying(r, oneASecond(t, time.Minute))
				r.Retry = RetryPolicy{Most: 1}
			})
			res, err := w.client(t, false).Get("http://front.test/")
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, res); len(got) != n || res.StatusCode != 429 {
				t.Errorf("%d of %d bytes", len(got), n)
			}
			w.next(t)
			w.reached(t, []string{"0s/", "1s/"}[:tries]...)
		})
	}
}

// A place at the upstream is given back before the request asks for another turn,
// so where nothing else holds those behind it back, one of them is let go first.
func TestRetryHoldsNothingWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := line(t, shaping.Policy{Name: "p", MaxInFlight: 1, Queue: 5, MaxWait: time.Minute})
		slow := throttle(1, "")
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/a" {
				slow(rw, r)
				return
			}
			time.Sleep(5 * time.Second)
		}, "http", func(r *Route) {
			obeying(r, places)
			r.Retry = RetryPolicy{Most: 2}
		})
		c := w.client(t, false)
		var all sync.WaitGroup
		for _, path := range []string{"/b", "/a", "/c", "/d"} {
			all.Go(func() {
				if code, err := w.get(t.Context(), c, path); code != 200 || err != nil {
					t.Errorf("%s: %d, %v", path, code, err)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		for range 4 {
			w.next(t)
		}
		w.reached(t, "0s/b", "5s/a", "5s/c", "10s/a", "10s/d")
	})
}
