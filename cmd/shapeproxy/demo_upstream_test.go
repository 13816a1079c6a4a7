package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// statuses sends n requests, one each gap, and returns how many got which
// status.
func statuses(h http.Handler, n int, gap time.Duration) map[int]int {
	got := make(map[int]int)
	for i := range n {
		if i > 0 {
			time.Sleep(gap)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		got[w.Code]++
	}
	return got
}

func TestFragileUpstreamTakesItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := new(fragileUpstream)
		if got := statuses(u, 600, time.Second/fragileRate); got[200] != 600 {
			t.Errorf("a minute at its rate: %v", got)
		}
		if c := u.Counts(); c != (fragileCounts{Sent: 600, Served: 600}) {
			t.Errorf("%+v", c)
		}
	})
}

func TestFragileUpstreamBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := new(fragileUpstream)
		if got := statuses(u, 30, 0); got[200] != 12 || got[503] != 18 {
			t.Errorf("30 at once: %v", got)
		}
		// Down for 3 s to the nanosecond, however much or little it is sent.
		time.Sleep(3*time.Second - 1)
		if got := statuses(u, 1, 0); got[503] != 1 {
			t.Errorf("just before its outage ends: %v", got)
		}
		time.Sleep(time.Nanosecond)
		if got := statuses(u, 12, 0); got[200] != 12 {
			t.Errorf("after its outage: %v", got)
		}
		time.Sleep(time.Second)
		if got := statuses(u, 12, 0); got[200] != 12 {
			t.Errorf("a second after a full second: %v", got)
		}
		time.Sleep(time.Second - 1)
		if got := statuses(u, 1, 0); got[503] != 1 {
			t.Errorf("13 within one second: %v", got)
		}
		if c := u.Counts(); c != (fragileCounts{Sent: 56, Served: 36, Failed: 20, Broke: 2}) {
			t.Errorf("%+v", c)
		}
	})
}
