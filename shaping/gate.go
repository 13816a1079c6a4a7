package shaping

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Gate stands before an upstream, behind the queues of all limits that lead
// there. While it is closed nobody leaves for that upstream: who waits stays,
// in order, and who stands behind for another upstream passes. When it opens,
// lines go on at their pace, with no bunch.
//
// Unlike a Shaper's pause it counts as waiting, for it is the upstream's clients
// who wait: those whose turn can no longer come within MaxWait are told at
// once.
//
// Of what the upstream says is left of a quota, Heard makes a pace: what remains
// then lasts until the reset.
//
// It is closed for one or more causes, and open when none is left. A nil *Gate
// is always open. A Gate is safe for concurrent use.
type Gate struct {
	state atomic.Pointer[closure]   // nil: never closed
	slow  atomic.Bool               // a quota may bind
	freed atomic.Pointer[time.Time] // when the last quota ended; nil: none has

	mu          sync.Mutex // held while those above are written
	causes      []cause
	lines       map[*bucket]int // in which somebody waits to pass, and how many
	sent, heard uint64          // numbers of requests
	quota       quota
}

// A cause is why a gate is closed, and until when.
type cause struct {
	why   string
	until time.Time // zero: until Open
}

// A closure is the time for which a gate is, or was last, closed.
type closure struct {
	cause
	opened bool // by Open, at until
}

// NewGate returns a Gate that is open.
func NewGate() *Gate { return &Gate{lines: make(map[*bucket]int)} }

// Close closes the gate for a cause until an instant, or with a zero until, until
// Open. For one cause the later instant counts. It reports whether the gate is
// closed for longer by that.
func (g *Gate) Close(why string, until time.Time) bool {
	now := time.Now()
	if !until.IsZero() && !until.After(now) {
		return false
	}
	return g.change(func() {
		for i := range g.causes {
			if c := &g.causes[i]; c.why == why {
				if !c.until.IsZero() && (until.IsZero() || until.After(c.until)) {
					c.until = until
				}
				return
			}
		}
		g.causes = append(g.causes, cause{why, until})
	}, now)
}

// Open takes a cause away. It reports whether the gate opens, or will do so
// sooner, by that.
func (g *Gate) Open(why string) bool {
	return g.change(func() {
		for i, c := range g.causes {
			if c.why == why {
				g.causes = append(g.causes[:i], g.causes[i+1:]...)
				return
			}
		}
	}, time.Now())
}

// Closed says for what cause the gate is closed and until when, which is zero if
// it does not open by itself. It is not ok if the gate is open.
func (g *Gate) Closed() (why string, until time.Time, ok bool) {
	c := g.closure()
	if c == nil || c.opened || !c.until.IsZero() && !c.until.After(time.Now()) {
		return "", time.Time{}, false
	}
	return c.why, c.until, true
}

// closure is the last one; nil if there was none.
func (g *Gate) closure() *closure {
	if g == nil {
		return nil
	}
	return g.state.Load()
}

// change changes the causes, and tells the lines if the closure is another by
// that.
func (g *Gate) change(f func(), now time.Time) bool {
	lines := g.changeCauses(f, now)
	// Not under the lock, which is taken under those of lines.
	for _, b := range lines {
		b.gateMoved(g)
	}
	return lines != nil
}

// changeCauses returns the lines to tell; nil if the closure is as it was.
func (g *Gate) changeCauses(f func(), now time.Time) []*bucket {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	kept := g.causes[:0]
	var last cause
	for _, c := range g.causes {
		if !c.until.IsZero() && !c.until.After(now) {
			continue // it is over
		}
		if len(kept) == 0 || !last.until.IsZero() && (c.until.IsZero() || c.until.After(last.until)) {
			last = c
		}
		kept = append(kept, c)
	}
	g.causes = kept
	was := g.state.Load()
	switch {
	case len(kept) > 0:
		if was != nil && !was.opened && was.cause == last {
			return nil
		}
		g.state.Store(&closure{cause: last})
	case was == nil || was.opened || !was.until.IsZero() && !was.until.After(now):
		return nil // open as before
	default:
		g.state.Store(&closure{cause{was.why, now}, true})
	}
	lines := make([]*bucket, 0, len(g.lines))
	for b := range g.lines {
		lines = append(lines, b)
	}
	return lines
}

// watch has b told of changes, for one waiter more, until unwatch.
func (g *Gate) watch(b *bucket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lines[b]++
}

func (g *Gate) unwatch(b *bucket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lines[b]--; g.lines[b] == 0 {
		delete(g.lines, b)
	}
}

// until is the instant, on that clock, to which the gate is or was last closed:
// Endless if it does not open by itself, 0 if it never was closed.
func (g *Gate) until(c *clock) int64 {
	switch s := g.closure(); {
	case s == nil:
		return 0
	case s.until.IsZero():
		return Endless
	default:
		return c.of(s.until)
	}
}
