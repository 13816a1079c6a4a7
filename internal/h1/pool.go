package h1

import (
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
	armed  bool // the reaper will run
	closed bool
}

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
	if timeout > 0 && !p.armed {
		p.armed = true
		if p.reaper == nil {
			p.reaper = time.AfterFunc(timeout, func() { p.reap(timeout) })
		} else {
			p.reaper.Reset(timeout)
		}
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

// reap closes the connections that were idle for too long, and comes back when
// the next one will have been.
func (p *pool) reap(timeout time.Duration) {
	p.mu.Lock()
	now, n := time.Now(), 0
	for n < len(p.idle) && now.Sub(p.idle[n].since) >= timeout {
		n++
	}
	old := append([]*conn(nil), p.idle[:n]...)
	kept := copy(p.idle, p.idle[n:])
	clear(p.idle[kept:])
	p.idle = p.idle[:kept]
	if p.armed = kept > 0; p.armed {
		p.reaper.Reset(p.idle[0].since.Add(timeout).Sub(now))
	}
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
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
