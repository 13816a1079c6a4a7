package proxy

import (
	"net/http"
	"sync"
	"time"
)

// Bounds are what one client may take of the proxy itself, whatever the limits
// of routes say. Those of the zero Bounds are without end.
type Bounds struct {
	// Headers is how many lines the header of a request may have; one with more
	// is answered 431.
	Headers int

	// BodyTimeout is how long the proxy waits for a body that comes more slowly
	// than MinBodyRate, in bytes a second: a stock of patience that is used up
	// while nothing comes and is filled again by what does. Then it answers 408.
	// It is for uploads: not for gRPC, whose streams may be silent, and not once
	// an answer has begun.
	BodyTimeout time.Duration
	MinBodyRate int64

	// SendTimeout and MinSendRate are the same for what an HTTP/2 client is
	// sent, whose stream is then reset. Of HTTP/1, the listener's connections
	// must see to it.
	SendTimeout time.Duration
	MinSendRate int64

	// Resets is how many streams a client may give up on one HTTP/2 connection:
	// so many at once, and then so many a minute. Beyond it the connection is
	// closed. Trusted peers, which pass on what many clients do, have no such
	// bound.
	Resets int

	// Waiting is how many requests of one HTTP/2 connection may wait in queues;
	// a further one is answered 429.
	Waiting int

	// TunnelIdle is how long a WebSocket may be silent in both directions.
	TunnelIdle time.Duration
}

// tooManyHeaders counts the header's lines.
func (x *exchange) tooManyHeaders() bool {
	most, n := x.site.Bounds.Headers, 0
	for _, values := range x.r.Header {
		n += len(values)
	}
	return most > 0 && n > most
}

// watchBody has the body cut that comes too slowly.
func (x *exchange) watchBody() {
	b := &x.site.Bounds
	if b.BodyTimeout <= 0 || isGRPC(x.r) {
		return
	}
	conn := http.NewResponseController(x.w.ResponseWriter)
	x.body.patience = newPatience(b.BodyTimeout, b.MinBodyRate, func() { _ = conn.SetReadDeadline(past) })
}

// watchAnswer has a stream reset whose client opens no window for it.
func (x *exchange) watchAnswer() {
	b := &x.site.Bounds
	if b.SendTimeout <= 0 || x.r.ProtoMajor != 2 {
		return
	}
	conn := http.NewResponseController(x.w.ResponseWriter)
	x.w.patience = newPatience(b.SendTimeout, b.MinSendRate, func() { _ = conn.SetWriteDeadline(past) })
}

// endWatches ends both. net/http sends what is left of an answer when the
// handler has returned, and is given as much time for that.
func (x *exchange) endWatches() {
	if x.body != nil {
		x.body.patience.end()
	}
	if x.w.patience != nil {
		x.w.patience.end()
		if x.w.sent.Load() > 0 {
			_ = http.NewResponseController(x.w.ResponseWriter).SetWriteDeadline(time.Now().Add(x.site.Bounds.SendTimeout))
		}
	}
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// A patience is how much longer one is waited for who is slower than a rate. It
// is used up while there is a wait, and what comes fills it again. A nil
// patience has no end.
//
// wait and got are called in turn, by one goroutine at a time.
type patience struct {
	most time.Duration
	rate int64  // bytes a second; 0: anything fills it
	over func() // called once, under mu, when it is used up; makes who waits return

	mu      sync.Mutex
	left    time.Duration
	limit   time.Duration // how long this wait may take
	since   time.Time     // when it began
	waiting bool
	spent   bool // over was called
	ended   bool // it is not needed any more
	timer   *time.Timer
}

func newPatience(most time.Duration, rate int64, over func()) *patience {
	return &patience{most: most, rate: rate, over: over, left: most}
}

// wait begins a wait, which takes so much longer as n bytes take at the rate:
// of what is written, progress is seen only at the end.
func (p *patience) wait(n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.spent {
		return
	}
	p.waiting, p.since, p.limit = true, time.Now(), p.left+p.worth(n)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.limit, p.expire)
	} else {
		p.timer.Reset(p.limit)
	}
}

// expire is the timer's. It may come late, when the wait that it was set for is
// over and another has begun.
func (p *patience) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting && !p.ended && !p.spent && time.Since(p.since) >= p.limit {
		p.spent = true
		p.over()
	}
}

// got ends a wait, in which n bytes came.
func (p *patience) got(n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.waiting {
		return
	}
	p.waiting = false
	p.timer.Stop()
	p.left = max(0, min(p.left-time.Since(p.since)+p.worth(n), p.most))
}

// worth is how long n bytes take at the rate.
func (p *patience) worth(n int) time.Duration {
	switch {
	case n <= 0:
		return 0
	case p.rate <= 0:
		return p.most
	}
	return time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
}

// gone reports whether it was used up.
func (p *patience) gone() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spent
}

// end ends it: when it returns, over is not called any more.
func (p *patience) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
}
