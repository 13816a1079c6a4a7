package shaping_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func TestAdoptRefusesWhatIsWrong(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		before := s.Policy()
		if err := s.Adopt(shaping.Policy{}); err == nil || s.Policy() != before {
			t.Fatalf("%v, %+v", err, s.Policy())
		}
	})
}

// The grant comes first and the client leaves before it has heard of it: the
// departure is used, and nobody gets it a second time.
func TestGrantThenCancel(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		s.ask("", nil)
		var first *asked
		first = s.ask("", func() bool {
			first.cancel(context.Canceled)
			return false
		})
		second := s.ask("", nil)
		s.at(time.Minute)
		if d := first.decision; first.err != context.Canceled || d.Reason != limiter.ReasonClientGone || d.Waited != time.Second {
			t.Fatalf("%+v, %v", d, first.err)
		}
		wantReleased(t, []*asked{first, second}, 2*time.Second)
	})
}

// The client leaves one nanosecond before its turn: that is the next one's.
func TestCancelThenGrant(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(3)
		s.at(time.Second - 1)
		all[1].cancel(context.Canceled)
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second)
	})
}

// Both at the same instant, in whatever order the scheduler takes them: one
// departure a second, none lost, none doubled.
func TestGrantAndCancelAtOneInstant(t *testing.T) {
	for range 100 {
		play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
			all := s.crowd(3)
			time.AfterFunc(time.Second, func() { all[1].cancel(context.Canceled) })
			s.at(time.Minute)
			switch first, second := all[1], all[2].ended; {
			case first.ended != time.Second:
				t.Fatalf("ended at %v", first.ended)
			case first.decision.Allowed && second != 2*time.Second:
				t.Fatalf("one departure for two: the second left at %v", second)
			case second != time.Second && second != 2*time.Second:
				t.Fatalf("the second left at %v", second)
			}
		})
	}
}

// A client that is found gone just before its release ends at once, and the
// same departure goes to the first that is still there.
func TestGoneIsAskedBeforeRelease(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		asks := 0
		left := func() bool { asks++; return true }
		stays := func() bool { asks++; return false }
		all := []*asked{s.ask("", left), s.ask("", left), s.ask("", left), s.ask("", stays), s.ask("", nil), s.ask("", left)}
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second, 2*time.Second)
		for _, i := range []int{1, 2, 5} {
			want := time.Second
			if i == 5 {
				want = 3 * time.Second
			}
			a := all[i]
			if a.err != limiter.ErrClientGone || a.decision.Reason != limiter.ReasonClientGone || a.decision.Waited != want || a.ended != want {
				t.Fatalf("request %d: %+v", i, a)
			}
		}
		if asks != 4 {
			t.Fatalf("asked %d times; once for each that waited, never for one that passed", asks)
		}
		// The last one's departure at 3 s was not used.
		wantReleased(t, s.crowd(1), time.Minute)
	})
}

func TestKeysHaveQueuesOfTheirOwn(t *testing.T) {
	play(t, q(t, "1/s", 2, time.Minute), func(t *testing.T, s *scene) {
		a := []*asked{s.ask("a", nil), s.ask("a", nil), s.ask("a", nil), s.ask("a", nil)}
		s.at(500 * time.Millisecond)
		b := []*asked{s.ask("b", nil), s.ask("b", nil)}
		if snap := s.Snapshot(); snap != (shaping.Snapshot{Depth: 3, Capacity: 2, OldestWait: 500 * time.Millisecond, Keys: 2, Rate: s.Policy().Rate}) {
			t.Fatalf("%+v", snap)
		}
		s.at(time.Minute)
		wantReleased(t, a, 0, time.Second, 2*time.Second)
		wantReleased(t, b, 500*time.Millisecond, 1500*time.Millisecond)
	})
}

// A line in which somebody waits is never forgotten, one that is as good as new
// goes first.
func TestFullOfWaitersRefusesNewKeys(t *testing.T) {
	p := q(t, "1/s", 5, 20*time.Second)
	p.MaxKeys = 2
	play(t, p, func(t *testing.T, s *scene) {
		old := []*asked{s.ask("a", nil), s.ask("a", nil), s.ask("b", nil), s.ask("b", nil)}
		refused := s.ask("c", nil)
		d := refused.decision
		if d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 20*time.Second || d.Status != 429 || d.Limit != 6 || d.Remaining != 0 {
			t.Fatalf("%+v", d)
		}
		s.at(time.Second)
		wantReleased(t, old, 0, time.Second, 0, time.Second)
		s.at(1500 * time.Millisecond) // a and b still have half a second to pay
		wantReleased(t, []*asked{s.ask("c", nil)}, 1500*time.Millisecond)
		if snap := s.Snapshot(); snap.Keys != 2 || snap.Evicted != 1 {
			t.Fatalf("%+v", snap)
		}
		s.at(3 * time.Second)
		s.ask("d", nil)
		s.ask("e", nil)
		if snap := s.Snapshot(); snap.Keys > 2 || snap.Evicted != 1 {
			t.Fatalf("%+v: forgetting an idle key was counted", snap)
		}
		p.MaxKeys = 1
		s.at(10 * time.Second)
		adopt(t, s, p)
		if n := s.Snapshot().Keys; n != 1 {
			t.Fatalf("%d keys", n)
		}
	})
}

// What a decision says about the budget, through the life of a queue.
func TestDecisionFields(t *testing.T) {
	play(t, tb(t, "2/s", 2, 3, time.Minute), func(t *testing.T, s *scene) {
		base := limiter.Decision{Policy: "test", Status: 429, Limit: 5, Window: time.Second}
		check := func(what string, got limiter.Decision, change func(d *limiter.Decision)) {
			t.Helper()
			want := base
			want.At = s.start.Add(s.since())
			change(&want)
			if !got.At.Equal(want.At) {
				t.Errorf("%s: at %v, want %v", what, got.At.Sub(s.start), want.At.Sub(s.start))
			}
			got.At = want.At
			if got != want {
				t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
			}
		}
		check("peek at a new key", s.Peek("k"), func(d *limiter.Decision) { d.Allowed, d.Remaining, d.Peeked = true, 5, true })
		if n := s.Snapshot().Keys; n != 0 {
			t.Fatal("Peek made a key")
		}
		check("first", s.ask("k", nil).decision, func(d *limiter.Decision) { d.Allowed, d.Remaining, d.ResetAfter = true, 4, time.Second/2 })
		s.at(100 * time.Millisecond)
		check("second", s.ask("k", nil).decision, func(d *limiter.Decision) { d.Allowed, d.Remaining, d.ResetAfter = true, 3, 400*time.Millisecond })
		check("peek with the burst used", s.Peek("k"), func(d *limiter.Decision) {
			d.Allowed, d.Remaining, d.ResetAfter, d.Peeked = true, 3, 400*time.Millisecond, true
		})
		third, fourth, fifth := s.ask("k", nil), s.ask("k", nil), s.ask("k", nil)
		check("refused", s.ask("k", nil).decision, func(d *limiter.Decision) {
			d.Reason, d.RetryAfter, d.ResetAfter, d.Ahead = limiter.ReasonQueueFull, 400*time.Millisecond, 400*time.Millisecond, 3
		})
		check("peek when full", s.Peek("k"), func(d *limiter.Decision) {
			d.Reason, d.RetryAfter, d.ResetAfter, d.Ahead, d.Peeked = limiter.ReasonQueueFull, 400*time.Millisecond, 400*time.Millisecond, 3, true
		})
		s.at(500 * time.Millisecond)
		check("third", third.decision, func(d *limiter.Decision) {
			d.Allowed, d.Queued, d.Waited, d.Remaining, d.ResetAfter = true, true, 400*time.Millisecond, 1, time.Second/2
		})
		s.at(700 * time.Millisecond)
		fourth.cancel(context.Canceled)
		synctest.Wait()
		check("fourth", fourth.decision, func(d *limiter.Decision) {
			d.Reason, d.Queued, d.Waited, d.Ahead, d.Remaining, d.ResetAfter = limiter.ReasonClientGone, true, 600*time.Millisecond, 1, 2, 300*time.Millisecond
		})
		s.at(time.Second)
		check("fifth", fifth.decision, func(d *limiter.Decision) {
			d.Allowed, d.Queued, d.Waited, d.Ahead, d.Remaining, d.ResetAfter = true, true, 900*time.Millisecond, 2, 3, time.Second/2
		})
		s.at(2 * time.Second)
		check("peek when idle", s.Peek("k"), func(d *limiter.Decision) { d.Allowed, d.Remaining, d.Peeked = true, 5, true })
	})
}

func TestPolicyValidate(t *testing.T) {
	good := q(t, "1/s", 1, time.Second)
	for _, c := range []struct {
		what string // in the message
		make func(p *shaping.Policy)
	}{
		{"", func(p *shaping.Policy) {}},
		{"", func(p *shaping.Policy) { p.MaxWait, p.MaxKeys, p.Status = 0, 0, 0 }},
		{"rate", func(p *shaping.Policy) { p.Rate = limiter.Rate{} }},
		{"burst", func(p *shaping.Policy) { p.Burst = 0 }},
		{"queue", func(p *shaping.Policy) { p.Queue = 0 }},
		{"queue", func(p *shaping.Policy) { p.Queue = shaping.MaxQueue + 1 }},
		{"max_wait", func(p *shaping.Policy) { p.MaxWait = -1 }},
		{"max_wait", func(p *shaping.Policy) { p.MaxWait = limiter.MaxPeriod + 1 }},
		{"max_keys", func(p *shaping.Policy) { p.MaxKeys = -1 }},
	} {
		p := good
		c.make(&p)
		_, err := shaping.New(p)
		if (err == nil) != (c.what == "") || err != nil && !strings.HasPrefix(err.Error(), c.what) {
			t.Errorf("%+v: %v, want one about %q", p, err, c.what)
		}
	}
}

// Everything at once, for the race detector: many keys, few places, clients
// that leave, changes, looks.
func TestRace(t *testing.T) {
	p := q(t, "500/s", 20, 100*time.Millisecond)
	p.MaxKeys = 8
	play(t, p, func(t *testing.T, s *scene) {
		var all sync.WaitGroup
		for worker := range 16 {
			rnd := rand.New(rand.NewPCG(uint64(worker), 7))
			all.Go(func() {
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.Int64N(int64(40*time.Millisecond))))
					gone := rnd.IntN(10) == 0
					d, err := s.Acquire(ctx, shaping.Request{Key: fmt.Sprint(rnd.IntN(12)), Gone: func() bool { return gone }})
					if d.Allowed != (d.Reason == limiter.ReasonNone) || (err != nil) != (d.Reason == limiter.ReasonClientGone) {
						t.Errorf("%+v, %v", d, err)
					}
					cancel()
				}
			})
		}
		all.Go(func() {
			for i := range 100 {
				time.Sleep(3 * time.Millisecond)
				p.Queue, p.DryRun, p.MaxKeys = 5+i%20, i%5 == 0, 4+i%8
				if err := s.Adopt(p); err != nil {
					t.Error(err)
				}
				s.Peek(fmt.Sprint(i % 12))
				if snap := s.Snapshot(); snap.Depth < 0 || snap.Keys > 12 {
					t.Errorf("%+v", snap)
				}
			}
		})
		all.Wait()
	})
}
