package shaping_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// hold asks, and when it is let go holds its place for that long.
func (s *scene) hold(req shaping.Request, d time.Duration) *asked {
	ctx, cancel := context.WithCancelCause(s.t.Context())
	a := &asked{cancel: cancel, came: s.since()}
	s.asked = append(s.asked, a)
	go func() {
		grant, err := s.Acquire(ctx, req)
		a.decision, a.err = grant.Decision, err
		a.ended, a.over = s.since(), true
		if grant.Allowed {
			time.Sleep(d)
		}
		grant.Release()
	}()
	synctest.Wait()
	return a
}

func (a *asked) want(t *testing.T, what string, at time.Duration, why limiter.Reason) {
	t.Helper()
	if !a.over || a.ended != at || a.decision.Reason != why {
		t.Errorf("%s: over %v at %v, %q; want %v, %q", what, a.over, a.ended, a.decision.Reason, at, why)
	}
}

const sec = time.Second

// The head leaves when the rate and a place allow, whichever is later.
func TestMaxInFlight(t *testing.T) {
	p := q(t, "10/s", 10, time.Minute)
	p.MaxInFlight = 2
	play(t, p, func(t *testing.T, s *scene) {
		var all []*asked
		for range 6 {
			all = append(all, s.hold(shaping.Request{}, 350*time.Millisecond))
		}
		s.at(10 * sec)
		// Two at the pace; then each as a place becomes free, at 350, 450, 700…
		wantReleased(t, all, 0, 100*time.Millisecond, 350*time.Millisecond, 450*time.Millisecond, 700*time.Millisecond, 800*time.Millisecond)
		if n := s.Snapshot().InFlight; n != 0 {
			t.Errorf("%d in flight at the end", n)
		}
	})
}

// A place that frees late gives no credit: what follows is paced from there.
func TestMaxInFlightGivesNoCredit(t *testing.T) {
	p := q(t, "10/s", 10, time.Minute)
	p.MaxInFlight = 1
	play(t, p, func(t *testing.T, s *scene) {
		all := []*asked{s.hold(shaping.Request{}, 5*sec)}
		for range 3 {
			all = append(all, s.hold(shaping.Request{}, time.Millisecond))
		}
		s.at(20 * sec)
		wantReleased(t, all, 0, 5*sec, 5100*time.Millisecond, 5200*time.Millisecond)
	})
}

func TestConcurrencyWithoutQueue(t *testing.T) {
	play(t, shaping.Policy{Name: "c", MaxInFlight: 2}, func(t *testing.T, s *scene) {
		a, b := s.hold(shaping.Request{}, sec), s.hold(shaping.Request{}, 2*sec)
		full := s.hold(shaping.Request{}, 0)
		full.want(t, "the third", 0, limiter.ReasonLimit)
		if d := full.decision; d.Limit != 2 || d.Remaining != 0 || d.Window != 0 || d.RetryAfter <= 0 || d.Status != 429 {
			t.Errorf("%+v", d)
		}
		a.want(t, "the first", 0, "")
		b.want(t, "the second", 0, "")
		if a.decision.Remaining != 1 {
			t.Errorf("%+v", a.decision)
		}
		s.at(sec)
		s.hold(shaping.Request{}, 0).want(t, "after a place became free", sec, "")
	})
}

func TestConcurrencyWithQueue(t *testing.T) {
	p := shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 2, MaxWait: 3 * sec}
	play(t, p, func(t *testing.T, s *scene) {
		first := s.hold(shaping.Request{}, 2*sec)
		second, third := s.hold(shaping.Request{}, 5*sec), s.hold(shaping.Request{}, 0)
		fourth := s.hold(shaping.Request{}, 0)
		fourth.want(t, "the fourth", 0, limiter.ReasonQueueFull)
		s.at(20 * sec)
		first.want(t, "the first", 0, "")
		second.want(t, "the second", 2*sec, "")
		// How long others hold their places cannot be foreseen; the wait is
		// bounded all the same.
		third.want(t, "the third", 3*sec, limiter.ReasonMaxWait)
	})
}

// A place comes back when its client leaves, at whatever moment.
func TestPlacesComeBack(t *testing.T) {
	play(t, shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 5, MaxWait: time.Minute}, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, sec)
		waits := s.hold(shaping.Request{}, sec)
		gone := s.hold(shaping.Request{Gone: func() bool { return true }}, sec)
		next := s.hold(shaping.Request{}, sec)
		s.at(500 * time.Millisecond)
		waits.cancel(context.Canceled)
		s.at(10 * sec)
		waits.want(t, "who left while waiting", 500*time.Millisecond, limiter.ReasonClientGone)
		gone.want(t, "who was found gone", sec, limiter.ReasonClientGone)
		next.want(t, "the next", sec, "")
		if n := s.Snapshot(); n.InFlight != 0 || n.Depth != 0 {
			t.Errorf("%+v", n)
		}
	})
}

// Grant and cancel at one instant: the place is not lost, whoever comes first.
func TestPlaceOfOneGrantedAndGone(t *testing.T) {
	for range 200 {
		play(t, shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 5, MaxWait: time.Minute}, func(t *testing.T, s *scene) {
			s.hold(shaping.Request{}, sec)
			torn := s.hold(shaping.Request{}, 0)
			go func() { time.Sleep(sec); torn.cancel(context.Canceled) }()
			s.at(2 * sec)
			s.hold(shaping.Request{}, 0).want(t, "the next", 2*sec, "")
			if n := s.Snapshot().InFlight; n > 1 || n < 0 {
				t.Errorf("%d in flight", n)
			}
		})
	}
}

// TestCase22 (haproxy/haproxy #3290), with places: no wake-up is lost.
func TestCase22WithPlaces(t *testing.T) {
	p := q(t, "200/s", 500, 5*sec)
	p.MaxInFlight = 2
	play(t, p, func(t *testing.T, s *scene) {
		const upstream = 8 * time.Millisecond
		for i := range 200 {
			a := s.hold(shaping.Request{}, upstream)
			if i%3 == 0 {
				time.AfterFunc(time.Duration(i)*time.Millisecond, func() { a.cancel(context.Canceled) })
			}
		}
		s.at(20 * sec)
		for i, a := range s.asked {
			if a.decision.Allowed && a.ended > 200*5*time.Millisecond+upstream {
				t.Errorf("request %d waited %v", i, a.ended)
			}
		}
	})
}

func TestPriority(t *testing.T) {
	p := q(t, "1/s", 10, time.Hour)
	p.PromoteAfter = 2 * sec
	play(t, p, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{Class: queue.Low}, 0)
		low := s.hold(shaping.Request{Class: queue.Low}, 0)
		s.at(500 * time.Millisecond)
		normal := s.hold(shaping.Request{Class: queue.Normal}, 0)
		high := s.hold(shaping.Request{Class: queue.High}, 0)
		s.at(10 * sec)
		if high.decision.Ahead != 0 {
			t.Errorf("ahead of high: %+v", high.decision)
		}
		high.want(t, "high", 1*sec, "")
		// At 2 s low counts as normal, and came before.
		low.want(t, "low", 2*sec, "")
		normal.want(t, "normal", 3*sec, "")
	})
}

// A full queue puts out the newest of the lowest class for one of a higher.
func TestPriorityPutsOut(t *testing.T) {
	play(t, q(t, "1/s", 2, time.Hour), func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		older, newer := s.hold(shaping.Request{Class: queue.Low}, 0), s.hold(shaping.Request{Class: queue.Low}, 0)
		s.at(100 * time.Millisecond)
		high := s.hold(shaping.Request{Class: queue.High}, 0)
		newer.want(t, "the newer low", 100*time.Millisecond, limiter.ReasonQueueFull)
		if d := newer.decision; d.Waited != 100*time.Millisecond || d.RetryAfter != 900*time.Millisecond {
			t.Errorf("%+v", d)
		}
		s.hold(shaping.Request{Class: queue.Low}, 0).want(t, "another low", 100*time.Millisecond, limiter.ReasonQueueFull)
		s.at(10 * sec)
		high.want(t, "high", 1*sec, "")
		older.want(t, "the older low", 2*sec, "")
	})
}

// Who is overtaken until its patience ends is told so, when it ends.
func TestOvertakenUntilMaxWait(t *testing.T) {
	play(t, q(t, "1/s", 100, 3*sec), func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		low := s.hold(shaping.Request{Class: queue.Low}, 0)
		for range 5 {
			s.hold(shaping.Request{Class: queue.High}, 0)
			time.Sleep(sec)
			synctest.Wait()
		}
		s.at(20 * sec)
		low.want(t, "low", 3*sec, limiter.ReasonQueueFull)
	})
}

// TestCase27 (envoyproxy/envoy #14550): one client pours in 500 at once, another
// sends one a second and is served within 0.3 s each time.
func TestCase27FairTurns(t *testing.T) {
	play(t, q(t, "10/s", 100, 20*sec), func(t *testing.T, s *scene) {
		served := 0
		for range 500 {
			s.hold(shaping.Request{Flow: "A"}, 0)
		}
		var b []*asked
		for i := range 30 {
			s.at(time.Duration(i)*sec + 50*time.Millisecond)
			b = append(b, s.hold(shaping.Request{Flow: "B"}, 0))
			if i%5 == 0 {
				for range 500 {
					s.hold(shaping.Request{Flow: "A"}, 0)
				}
			}
		}
		s.at(time.Hour)
		for i, a := range b {
			if !a.decision.Allowed || a.decision.Waited > 300*time.Millisecond {
				t.Errorf("B's request %d: %q after %v", i, a.decision.Reason, a.decision.Waited)
			}
		}
		for _, a := range s.asked {
			if a.decision.Allowed {
				served++
			}
		}
		if served < 350 {
			t.Errorf("%d served: what B leaves is A's", served)
		}
	})
}

// Who would have to wait too long in a full queue is not told to come when there is
// still no room, and nobody left who would have to go for it.
func TestRetryAfterOfOneWhoseVictimLeaves(t *testing.T) {
	play(t, q(t, "1/s", 2, time.Minute), func(t *testing.T, s *scene) {
		for range 3 {
			s.hold(shaping.Request{Flow: "B"}, 0)
		}
		adopt(t, s, q(t, "1/s", 1, 1500*time.Millisecond))
		// The second of B would have to go for it; by 1.5 s the first has left.
		early := s.hold(shaping.Request{Flow: "A"}, 0)
		if d := early.decision; !early.over || d.Reason != limiter.ReasonMaxWait || d.RetryAfter != 2*sec {
			t.Errorf("%+v", d)
		}
		s.at(2 * sec)
		s.hold(shaping.Request{Flow: "A"}, 0)
		s.at(3 * sec)
		s.asked[4].want(t, "A", 3*sec, limiter.ReasonNone)
	})
}

func TestOwnDeadlineShortensMaxWait(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		in := s.hold(shaping.Request{MaxWait: sec}, 0)
		out := s.hold(shaping.Request{MaxWait: 1500 * time.Millisecond}, 0)
		out.want(t, "who has 1.5 s and would wait 2", 0, limiter.ReasonMaxWait)
		if out.decision.RetryAfter != 500*time.Millisecond || !out.decision.OwnDeadline {
			t.Errorf("%+v", out.decision)
		}
		s.hold(shaping.Request{MaxWait: time.Hour}, 0) // no more than the limit allows
		s.at(10 * sec)
		in.want(t, "who has 1 s and waits 1", sec, "")
		if in.decision.OwnDeadline {
			t.Errorf("%+v", in.decision)
		}
		for range 62 {
			s.hold(shaping.Request{MaxWait: time.Hour}, 0)
		}
		if d := s.asked[len(s.asked)-1].decision; d.Reason == "" || d.OwnDeadline {
			t.Errorf("%+v", d)
		}
	})
}

// Raising places lets out at once who waited for one.
func TestMorePlaces(t *testing.T) {
	p := shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 5, MaxWait: time.Minute}
	play(t, p, func(t *testing.T, s *scene) {
		for range 4 {
			s.hold(shaping.Request{}, 10*sec)
		}
		s.at(sec)
		p.MaxInFlight = 3
		s.Adopt(p)
		s.at(2 * sec)
		p.MaxInFlight = 1
		s.Adopt(p)
		s.at(time.Minute)
		wantReleased(t, s.asked, 0, sec, sec, 11*sec)
	})
}

// Each key has its places, and a key with a request unfinished is not forgotten.
func TestPlacesByKey(t *testing.T) {
	p := shaping.Policy{Name: "c", MaxInFlight: 1, MaxKeys: 2}
	play(t, p, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{Key: "a"}, 10*sec)
		s.hold(shaping.Request{Key: "b"}, 10*sec)
		for i := range 5 {
			s.hold(shaping.Request{Key: fmt.Sprint(i)}, sec).want(t, "a third key", 0, limiter.ReasonQueueFull)
		}
		s.hold(shaping.Request{Key: "a"}, 0).want(t, "a again", 0, limiter.ReasonLimit)
		s.at(11 * sec)
		s.hold(shaping.Request{Key: "c"}, 0).want(t, "a third key, later", 11*sec, "")
	})
}

// In a dry run nobody waits for a place, and what is in flight is counted.
func TestDryRunOfPlaces(t *testing.T) {
	p := shaping.Policy{Name: "c", MaxInFlight: 1, DryRun: true}
	play(t, p, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, sec)
		d := s.hold(shaping.Request{}, sec).decision
		if d.Allowed || d.Reason != limiter.ReasonLimit || !d.DryRun {
			t.Errorf("%+v", d)
		}
		s.at(sec)
		if d := s.hold(shaping.Request{}, sec).decision; !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

func TestOrderWithinAFlow(t *testing.T) {
	play(t, q(t, "100/s", 1000, time.Hour), func(t *testing.T, s *scene) {
		type group struct {
			class queue.Class
			flow  string
		}
		order := map[group][]time.Duration{}
		var asks []group
		for i := range 300 {
			g := group{queue.Class(i % 3), fmt.Sprint(i % 7)}
			asks = append(asks, g)
			s.hold(shaping.Request{Class: g.class, Flow: g.flow}, 0)
		}
		s.at(time.Hour)
		for i, a := range s.asked {
			order[asks[i]] = append(order[asks[i]], a.ended)
		}
		for g, at := range order {
			if !slices.IsSorted(at) {
				t.Errorf("%v left at %v", g, at)
			}
		}
	})
}
