package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A checker asks /check in the name of one client.
type checker struct {
	t       *testing.T
	handler http.Handler
}

func newChecker(t *testing.T) checker {
	h, err := newCheckHandler()
	if err != nil {
		t.Fatal(err)
	}
	return checker{t, h}
}

func (c checker) ask(client, algo string) (*httptest.ResponseRecorder, verdict) {
	c.t.Helper()
	r := httptest.NewRequest("GET", "/check?algo="+algo, nil)
	r.RemoteAddr = client + ":1234"
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, r)
	var v verdict
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		c.t.Fatalf("%s: %v\n%s", algo, err, w.Body)
	}
	return w, v
}

func TestCheckFiveThenRefused(t *testing.T) {
	for _, tt := range []struct {
		algo  limiter.Algorithm
		retry float64 // s, of the sixth at once
		next  int     // calls that pass after exactly that time
	}{
		{limiter.TokenBucket, 2, 1},
		{limiter.LeakyBucket, 2, 1},
		{limiter.FixedWindow, 10, 5},
		{limiter.SlidingWindowLog, 10, 5},
		// The window ends after 10 s, but counts in full then; a fifth of it must
		// have passed before one more of the 5 is forgotten.
		{limiter.SlidingWindowCounter, 12, 1},
	} {
		t.Run(string(tt.algo), func(t *testing.T) {
			// The bubble's clock starts at an instant that begins a window of 10 s.
			synctest.Test(t, func(t *testing.T) {
				c := newChecker(t)
				for i := range 5 {
					w, v := c.ask("192.0.2.1", string(tt.algo))
					if w.Code != 200 || !v.Allowed || v.Limit != 5 || v.Remaining != int64(4-i) || v.RetryAfter != 0 || v.ResetAfter <= 0 {
						t.Errorf("call %d: %d %+v", i+1, w.Code, v)
					}
					if w.Header().Get("Ratelimit-Limit") != "5" || w.Header().Get("Retry-After") != "" {
						t.Errorf("call %d: headers %v", i+1, w.Header())
					}
				}
				w, v := c.ask("192.0.2.1", string(tt.algo))
				if w.Code != 429 || v.Allowed || v.Remaining != 0 || v.RetryAfter != tt.retry || v.Algo != tt.algo {
					t.Errorf("call 6: %d %+v, want 429 and retry_after %v", w.Code, v, tt.retry)
				}
				if got := w.Header().Get("Retry-After"); got != strconv.Itoa(int(tt.retry)) {
					t.Errorf("call 6: Retry-After is %q, retry_after %v", got, tt.retry)
				}
				if w, _ := c.ask("192.0.2.2", string(tt.algo)); w.Code != 200 {
					t.Errorf("another client gets %d", w.Code)
				}

				time.Sleep(time.Duration(tt.retry*1e9) - 1)
				if w, v := c.ask("192.0.2.1", string(tt.algo)); w.Code != 429 {
					t.Errorf("just before Retry-After: %d %+v", w.Code, v)
				}
				time.Sleep(time.Nanosecond)
				passed := 0
				for w, _ := c.ask("192.0.2.1", string(tt.algo)); w.Code == 200; w, _ = c.ask("192.0.2.1", string(tt.algo)) {
					passed++
				}
				if passed != tt.next {
					t.Errorf("after Retry-After %d pass, want %d", passed, tt.next)
				}
			})
		})
	}
}

func TestCheckUnknownAlgorithm(t *testing.T) {
	w := httptest.NewRecorder()
	newChecker(t).handler.ServeHTTP(w, httptest.NewRequest("GET", "/check?algo=gcra", nil))
	var body struct {
		Error string
		Algos []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	want := []string{"leaky-bucket", "token-bucket", "fixed-window", "sliding-window-log", "sliding-window-counter"}
	if w.Code != 400 || !slices.Equal(body.Algos, want) {
		t.Errorf("%d %+v", w.Code, body)
	}
}
