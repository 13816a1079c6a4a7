package h1

import (
	"slices"
	"sync"
	"time"
)

// A pool keeps the connections that no request uses. They are ordered by when
// they came: the one used last is the next to be used, so that those of a past
// crowd grow old at the other end.
type pool struct {
	mu     sync.Mutex
	idle   []*conn
	reaper *time.Timer
	armed  bool // the reaper will run, or does
	closed bool
}

// lookEvery is how often idle connections are looked at. Requests do not need
// it, but a server that goes away would leave descriptors until they are old.
const lookEvery = time.Second

// put keeps c if there are fewer than most, and closes it otherwise.
func (p *pool) put(c *conn, most int, timeout time.Duration) {
	p.mu.Lock()
	if p.closed || len(p.idle) >= most {
		p.mu.Unlock()
		_ = c.Close()
		return
	}
	defer p.mu.Unlock()
	c.since = time.Now()
	p.idle = append(p.idle, c)
	if p.reaper == nil {
		p.reaper = time.AfterFunc(time.Hour, func() { p.reap(timeout) })
	}
	if !p.armed {
		p.armLocked(timeout)
	}
}

// take returns the connection that was used last, or nil. The reaper may be
// late for it, so its age is asked here too.
func (p *pool) take(timeout time.Duration) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 || timeout > 0 && time.Since(p.idle[last].since) >= timeout {
		return nil
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return c
}

// reap closes the connections that were idle for too long or are dead. It holds
// the lock for one at a time: requests only take and put at the other end.
func (p *pool) reap(timeout time.Duration) {
	for i := 0; ; {
		p.mu.Lock()
		if i >= len(p.idle) {
			p.armLocked(timeout)
			p.mu.Unlock()
			return
		}
		c := p.idle[i]
		bad := timeout > 0 && time.Since(c.since) >= timeout || !c.quiet()
		if bad {
			p.idle = slices.Delete(p.idle, i, i+1)
		} else {
			i++
		}
		p.mu.Unlock()
		if bad {
			_ = c.Close()
		}
	}
}

// armLocked has the reaper come when the oldest connection will be too old, or
// soon to look at them.
func (p *pool) armLocked(timeout time.Duration) {
	if p.armed = len(p.idle) > 0; !p.armed {
		return
	}
	next := lookEvery
	if timeout > 0 {
		next = min(next, time.Until(p.idle[0].since.Add(timeout)))
	}
	p.reaper.Reset(next)
}

func (p *pool) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	if p.reaper != nil {
		p.reaper.Stop()
	}
	p.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}
