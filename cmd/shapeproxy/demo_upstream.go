package main

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// What the demo's upstream can take, and what it does when it gets more.
const (
	fragileRate    = 10 // requests a second that it is made for
	fragileMost    = 12 // within one second; the next one breaks it
	fragileOutage  = 3 * time.Second
	fragileMeasure = time.Second
)

// A fragileUpstream is an API that breaks when it is sent too much: a request
// that would be the thirteenth within one second takes it down, and it answers
// 503 to that one and to whatever comes in the next 3 s, as does a server that
// crashes and starts again, or an API that bans. Then it begins anew. The two
// above the rate that it is made for are what late packets may bunch.
type fragileUpstream struct {
	mu        sync.Mutex
	arrivals  []time.Time // of the served ones within the last second, oldest first
	downUntil time.Time
	counts    fragileCounts
}

type fragileCounts struct {
	Sent   int // requests that reached it
	Served int
	Failed int // answered 503
	Broke  int // times that it went down
}

func (u *fragileUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, ok := u.take(time.Now())
	if !ok {
		http.Error(w, "the upstream is down", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "served: request %d\n", n)
}

// take counts a request that came at now, and reports whether it is served; n
// is how many have been, this one included.
func (u *fragileUpstream) take(now time.Time) (n int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counts.Sent++
	if now.Before(u.downUntil) {
		u.counts.Failed++
		return 0, false
	}
	for len(u.arrivals) > 0 && now.Sub(u.arrivals[0]) >= fragileMeasure {
		u.arrivals = u.arrivals[1:]
	}
	if len(u.arrivals) == fragileMost {
		u.arrivals = nil
		u.downUntil = now.Add(fragileOutage)
		u.counts.Broke++
		u.counts.Failed++
		return 0, false
	}
	u.arrivals = append(u.arrivals, now)
	u.counts.Served++
	return u.counts.Served, true
}

func (u *fragileUpstream) Counts() fragileCounts {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.counts
}
