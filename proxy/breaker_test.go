package proxy

import (
	"math/rand/v2"
	"testing"
	"time"
)

func policyOf(min int64, ratio float64) *BreakerPolicy {
	return &BreakerPolicy{FailureRatio: ratio, Window: 10 * time.Second, MinRequests: min, OpenFor: 5 * time.Second, Probes: 2, Statuses: []int{500}}
}

var start = time.Unix(1_000_000, 0)

// A course is a breaker and the time that it is told.
type course struct {
	t   *testing.T
	b   *breaker
	now time.Time
}

func newCourse(t *testing.T, p *BreakerPolicy) *course {
	return &course{t, &breaker{policy: p}, start}
}

func (c *course) at(d time.Duration) { c.now = start.Add(d) }

// ends lets a request through and ends it at once.
func (c *course) ends(failed bool) bool {
	c.t.Helper()
	p, ok := c.b.allow(c.now)
	if !ok {
		c.t.Fatalf("%v: nothing is let through", c.now.Sub(start))
	}
	return c.b.done(c.now, p, failed)
}

func (c *course) is(want BreakerState) {
	c.t.Helper()
	if got := c.b.at(c.now); got != want {
		c.t.Errorf("%v: %v, want %v", c.now.Sub(start), got, want)
	}
}

func TestBreakerOpensAtTheShare(t *testing.T) {
	c := newCourse(t, policyOf(10, 0.5))
	for range 4 {
		c.ends(true)
	}
	for range 5 {
		c.ends(false)
	}
	c.is(BreakerClosed) // nine, and ten are needed
	if c.ends(false) {
		t.Error("a success opened it")
	}
	c.is(BreakerClosed) // four of ten
	c.ends(true)
	c.is(BreakerClosed) // five of eleven
	if !c.ends(true) {
		t.Error("six of twelve did not open it")
	}
	c.is(BreakerOpen)
	c.at(5*time.Second - 1)
	c.is(BreakerOpen)
	if _, ok := c.b.allow(c.now); ok {
		t.Error("an open breaker let a request through")
	}
	c.at(5 * time.Second)
	c.is(BreakerHalfOpen)
}

func TestBreakerForgets(t *testing.T) {
	c := newCourse(t, policyOf(10, 0.5))
	for range 9 {
		c.ends(true)
	}
	c.at(10 * time.Second) // the first slice has left the window
	c.ends(true)
	c.is(BreakerClosed)
	c.at(10*time.Second + time.Hour)
	for range 9 {
		c.ends(true)
	}
	c.is(BreakerClosed)
	c.at(10*time.Second + time.Hour + 9*time.Second)
	c.ends(true)
	c.is(BreakerOpen)
}

func TestBreakerProbesOneAtATime(t *testing.T) {
	c := newCourse(t, policyOf(1, 1))
	old, _ := c.b.allow(c.now)
	c.ends(true)
	c.is(BreakerOpen)

	c.at(5 * time.Second)
	probe, ok := c.b.allow(c.now)
	if !ok {
		t.Fatal("no probe")
	}
	if _, ok := c.b.allow(c.now); ok {
		t.Error("two probes at once")
	}
	if c.b.done(c.now, old, true) || c.b.done(c.now, old, false) {
		t.Error("the result of a request from before counted")
	}
	c.b.forgo(probe) // its client left
	c.is(BreakerHalfOpen)
	c.ends(false)
	c.is(BreakerHalfOpen)
	c.at(6 * time.Second)
	c.ends(false)
	c.is(BreakerClosed)

	c.ends(true)
	c.at(11 * time.Second)
	c.ends(false)
	c.ends(true) // one good probe does not make up for a bad one
	c.is(BreakerOpen)
	c.at(16*time.Second - 1)
	c.is(BreakerOpen)
	c.at(16 * time.Second)
	c.is(BreakerHalfOpen)
}

func TestNoBreaker(t *testing.T) {
	var none *breaker
	p, ok := none.allow(start)
	if none.forgo(p); !ok || none.done(start, p, true) || none.at(start) != BreakerClosed {
		t.Error("no breaker stood in the way")
	}
}

// TestBreakerWalks holds random walks to what the policy promises, against a
// list of everything that ended.
func TestBreakerWalks(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 36))
		p := &BreakerPolicy{
			FailureRatio: float64(1+r.IntN(10)) / 10, Window: 10 * time.Second, MinRequests: 1 + r.Int64N(20),
			OpenFor: time.Duration(1+r.IntN(8000)) * time.Millisecond, Probes: 1 + r.IntN(3),
		}
		c := newCourse(t, p)
		type result struct {
			at     time.Time
			failed bool
		}
		var ended []result // since it last closed
		var out []pass     // under way
		var closedUntil time.Time
		probes, good := 0, 0
		state := BreakerClosed
		for range 400 {
			c.now = c.now.Add(time.Duration(r.Int64N(int64(time.Second))))
			if state == BreakerOpen && !c.now.Before(closedUntil) {
				state, probes, good = BreakerHalfOpen, 0, 0
			}
			if got := c.b.at(c.now); got != state {
				t.Fatalf("seed %d: %v, want %v", seed, got, state)
			}
			if r.IntN(2) == 0 || len(out) == 0 {
				got, ok := c.b.allow(c.now)
				want := state == BreakerClosed || state == BreakerHalfOpen && probes == 0
				if ok != want {
					t.Fatalf("seed %d: %v lets through: %v, with %d probes", seed, state, ok, probes)
				}
				if ok {
					out = append(out, got)
				}
				if ok && state == BreakerHalfOpen {
					probes++
				}
				continue
			}
			i := r.IntN(len(out))
			p0 := out[i]
			out = append(out[:i], out[i+1:]...)
			counts := p0.era == c.b.era
			if r.IntN(5) == 0 {
				c.b.forgo(p0)
				if counts && state == BreakerHalfOpen {
					probes = 0
				}
				continue
			}
			failed := r.IntN(2) == 0
			changed := c.b.done(c.now, p0, failed)
			before := state
			switch {
			case !counts:
			case state == BreakerHalfOpen && failed:
				state, closedUntil, ended = BreakerOpen, c.now.Add(p.OpenFor), nil
			case state == BreakerHalfOpen:
				probes = 0
				if good++; good == p.Probes {
					state, ended = BreakerClosed, nil
				}
			case state == BreakerClosed:
				ended = append(ended, result{c.now, failed})
				var all, bad int64
				for _, e := range ended {
					// In tenths since the first that ended.
					if c.b.sliceOf(c.now)-c.b.sliceOf(e.at) < breakerSlices {
						all++
						if e.failed {
							bad++
						}
					}
				}
				if failed && all >= p.MinRequests && float64(bad) >= p.FailureRatio*float64(all) {
					state, closedUntil, ended = BreakerOpen, c.now.Add(p.OpenFor), nil
				}
			}
			if changed != (state != before) {
				t.Fatalf("seed %d: tells of a change: %v, from %v to %v", seed, changed, before, state)
			}
		}
	}
}

// sliceOf is the number of the slice of an instant.
func (b *breaker) sliceOf(at time.Time) int64 { return int64(at.Sub(b.began) / (b.policy.Window / 10)) }
