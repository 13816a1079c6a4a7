package ledger

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// A Ledger is what clients and the upstream say about the requests of one run.
// It is safe for concurrent use.
type Ledger struct {
	began time.Time

	mu       sync.Mutex
	requests []*Request // by id
	arrivals map[int][]time.Time
	strays   []string // what arrived and was not sent
}

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{began: time.Now(), arrivals: make(map[int][]time.Time)}
}

// Now is wall time as it was at the beginning plus monotonic time since, so that
// a clock that is set meanwhile does not move the account. The proxy reckons in
// the same way.
func (l *Ledger) Now() time.Time { return l.began.Add(time.Since(l.began)).Round(0) }

// An End is how a request ended for its client.
type End int

const (
	Open     End = iota // it has not
	Answered            // with a whole answer
	Left                // the client left
	Cut                 // as the upstream had to break its answer off, and the client could see that
	Broken              // none of these: the answer was cut, or could not be read
)

// A Request is one request as its client saw it. What is in it may be read once
// it has ended.
type Request struct {
	ID          int
	Class, Flow string // within which the order is to be kept

	Began time.Time // before its first byte
	Sent  time.Time // its head was in the kernel's hands
	Ended time.Time // the answer was whole, or the connection closed
	End   End
	// Unseen is for how long nobody but the client could know that it had left:
	// the kernel tells at once that a connection is closed, but the reset of an
	// HTTP/2 stream is a frame that has to be sent, read and understood.
	Unseen time.Duration

	Status     int
	Reason     string // of a refusal
	RetryAfter string
	Err        error // of Broken

	ledger *Ledger
	ends   int
}

// Open begins a request.
func (l *Ledger) Open(class, flow string) *Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &Request{ID: len(l.requests), Class: class, Flow: flow, Began: l.Now(), ledger: l}
	r.Sent = r.Began
	l.requests = append(l.requests, r)
	return r
}

// Requests are those begun so far.
func (l *Ledger) Requests() []*Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Request(nil), l.requests...)
}

// Host names the request on its way.
func (r *Request) Host() string { return Host(r.ID) }

func (r *Request) sent() {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.Sent = r.ledger.Now()
}

// Answer ends the request with a whole answer.
func (r *Request) Answer(status int, reason, retryAfter string) {
	r.end(Answered, func() { r.Status, r.Reason, r.RetryAfter = status, reason, retryAfter })
}

// Leave ends the request by the client's leaving, which has just been done.
func (r *Request) Leave(unseen time.Duration) { r.end(Left, func() { r.Unseen = unseen }) }

func (r *Request) cut() { r.end(Cut, func() {}) }

// Break ends the request in a way that must not be.
func (r *Request) Break(err error) { r.end(Broken, func() { r.Err = err }) }

func (r *Request) end(how End, note func()) {
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	r.ends++
	r.Ended, r.End = r.ledger.Now(), how
	note()
}

// Upstream is a server that writes down each request as it arrives and then has
// it answered; nil answers 200. It must be closed.
func (l *Ledger) Upstream(answer http.HandlerFunc) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.arrive(r.Host)
		if answer != nil {
			answer(w, r)
		}
	}))
}

func (l *Ledger) arrive(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	id, err := idOf(host)
	if err != nil || id >= len(l.requests) {
		l.strays = append(l.strays, fmt.Sprintf("a request for %q", host))
		return
	}
	l.arrivals[id] = append(l.arrivals[id], now)
}

// Arrived is how many requests have arrived at the upstream.
func (l *Ledger) Arrived() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.arrivals)
}

// At is when the request arrived at the upstream; zero if it did not.
func (l *Ledger) At(id int) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.arrivals[id]; len(at) > 0 {
		return at[0]
	}
	return time.Time{}
}
