package shaping_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// costing asks with these costs, one after the other.
func (s *scene) costing(costs ...int64) (all []*asked) {
	for _, c := range costs {
		all = append(all, s.hold(shaping.Request{Cost: c}, 0))
	}
	return all
}

// In a leaky bucket, N takes N intervals and one place, and leaves when its turn
// has come: it is the next that waits for it.
func TestCostTakesIntervalsOfALeakyBucket(t *testing.T) {
	play(t, q(t, "10/s", 4, time.Minute), func(t *testing.T, s *scene) {
		all := s.costing(3, 1, 5, 0, 1)
		if d := s.ask("", nil).decision; d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 300*time.Millisecond {
			t.Errorf("with all places taken: %+v", d)
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 300*time.Millisecond, 400*time.Millisecond, 900*time.Millisecond, time.Second)
	})
}

// In a token bucket it waits until its tokens are there; one that costs more than
// there can be waits for all of them, and those behind for what is lacking.
func TestCostWaitsForItsTokens(t *testing.T) {
	play(t, tb(t, "1/s", 5, 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.costing(3, 2, 4, 1, 8, 1)
		s.at(time.Minute)
		wantReleased(t, all, 0, 0, 4*time.Second, 5*time.Second, 10*time.Second, 14*time.Second)
	})
	// A cheap one does not slip past a dear one that waits, or that would wait
	// for ever.
	play(t, tb(t, "1/s", 5, 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.costing(2, 5, 1)
		s.at(time.Minute)
		wantReleased(t, all, 0, 2*time.Second, 3*time.Second)
	})
}

// The wait is predicted by what those ahead cost, and so is Retry-After.
func TestCostIsForeseen(t *testing.T) {
	play(t, q(t, "1/s", 10, 10*time.Second), func(t *testing.T, s *scene) {
		all := s.costing(4, 7) // the second leaves after 4 s, the next would after 11
		late := s.ask("", nil)
		if late.decision.Reason != limiter.ReasonMaxWait || late.decision.RetryAfter != time.Second {
			t.Fatalf("%+v", late.decision)
		}
		if wait, ok := s.Foresee(shaping.Request{}); ok || wait != 11*time.Second && wait != 0 {
			t.Errorf("foreseen: %v, %v", wait, ok)
		}
		s.at(time.Second)
		all = append(all, s.costing(1)...)
		if a := all[2]; a.over {
			t.Errorf("refused after Retry-After: %+v", a.decision)
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 4*time.Second, 11*time.Second)
	})
}

// Who gives up gives back what it would have cost, and not what had to be waited
// for until then.
func TestCostOfOneThatGivesUp(t *testing.T) {
	play(t, tb(t, "1/s", 5, 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.costing(5, 4, 1, 1)
		s.at(2500 * time.Millisecond)
		all[1].cancel(nil)
		synctest.Wait()
		// Two tokens came together for it.
		s.at(time.Minute)
		wantReleased(t, all, 0, 2500*time.Millisecond, 2500*time.Millisecond)
	})
}

// A better class that comes for less goes at once with the tokens that a dearer
// one waits for, and a machine that was in time is not taken for one that
// stalled.
func TestCostOvertaken(t *testing.T) {
	p := tb(t, "1/s", 5, 10, time.Minute)
	p.PromoteAfter = 2 * time.Second
	play(t, p, func(t *testing.T, s *scene) {
		all := s.costing(5, 5)
		s.at(4 * time.Second)
		all = append(all, s.hold(shaping.Request{Cost: 3, Class: queue.High}, 0)) // counts as much as the other by now
		s.at(time.Minute)
		wantReleased(t, all, 0, 5*time.Second, 8*time.Second)
	})
	p.PromoteAfter = 0
	play(t, p, func(t *testing.T, s *scene) {
		all := s.costing(5)
		all = append(all, s.hold(shaping.Request{Cost: 5, Class: queue.Normal}, 0))
		s.at(4 * time.Second)
		all = append(all, s.hold(shaping.Request{Cost: 3, Class: queue.High}, 0))
		s.at(time.Minute)
		wantReleased(t, all, 0, 8*time.Second, 4*time.Second)
	})
}

// One that costs nothing only looks: it passes by the side of those who wait, of
// a pause, and of places that are taken.
func TestCostOfNothingLooks(t *testing.T) {
	p := q(t, "1/s", 2, time.Minute)
	p.MaxInFlight = 1
	play(t, p, func(t *testing.T, s *scene) {
		all := []*asked{s.hold(shaping.Request{}, 10*time.Second), s.hold(shaping.Request{}, 0), s.hold(shaping.Request{}, 0)}
		s.Pause(5 * time.Second)
		before := s.Snapshot()
		look := s.hold(shaping.Request{Free: true}, time.Hour)
		if d := look.decision; !d.Allowed || d.Queued || d.Waited != 0 || d.Remaining != 0 || d.Limit != 3 || d.Peeked {
			t.Errorf("%+v", d)
		}
		if after := s.Snapshot(); after != before {
			t.Errorf("%+v, and before it %+v", after, before)
		}
		if wait, ok := s.Foresee(shaping.Request{Free: true}); !ok || wait != 0 {
			t.Errorf("foreseen: %v, %v", wait, ok)
		}
		s.hold(shaping.Request{Key: "new", Free: true}, 0)
		if after := s.Snapshot(); after.Keys != 1 {
			t.Errorf("a look left a key behind: %+v", after)
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 10*time.Second, 11*time.Second)
	})
}

// A cost that would take longer than can be said is refused for good; the dearest
// that does not, and sums of them, are numbers still.
func TestCostOfCenturies(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 3, Queue: shaping.MaxQueue, MaxWait: limiter.MaxPeriod})
	most := int64(limiter.MaxPeriod / time.Second)
	for _, cost := range []int64{most + 1, math.MaxInt64} {
		if v := line.LookFor(epoch, shaping.Entrant{Cost: cost}); v.Reason != limiter.ReasonLimit || v.RetryAfter != limiter.Never {
			t.Errorf("cost %d: %+v", cost, v)
		}
	}
	if v, w, _ := line.Enter(epoch, shaping.Entrant{Cost: most}, 0); v.Reason != limiter.ReasonNone || w != nil {
		t.Fatalf("the dearest: %+v", v)
	}
	if v := line.LookFor(epoch, shaping.Entrant{}); v.Wait != limiter.MaxPeriod-2*time.Second {
		t.Errorf("the next: %+v", v)
	}
	// At more than one a nanosecond, costs of all int64 fit, and their sum would not.
	line = shaping.NewLine[int](shaping.Terms{Rate: limiter.Rate{Count: 1e9, Per: time.Second}, Burst: 1, Queue: 1000, MaxWait: limiter.MaxPeriod})
	refused := false
	for i := range 1000 {
		v, _, _ := line.Enter(epoch, shaping.Entrant{Cost: int64(limiter.MaxPeriod), Flow: string(rune('a' + i)), Class: queue.Class(i % 3)}, i)
		refused = refused || v.Reason == limiter.ReasonMaxWait
		if v.Wait < 0 || v.RetryAfter < 0 {
			t.Fatalf("%d: %+v", i, v)
		}
	}
	if !refused {
		t.Error("nobody was refused")
	}
}

// A dry run counts costs as if it were in force, those of one cost in a few words
// of memory however many.
func TestCostRehearsed(t *testing.T) {
	p := q(t, "1/s", 3, time.Minute)
	p.DryRun = true
	play(t, p, func(t *testing.T, s *scene) {
		var waited []time.Duration
		for _, cost := range []int64{2, 4, 1, 3} {
			d := s.hold(shaping.Request{Cost: cost}, 0).decision
			waited = append(waited, d.Waited)
		}
		if want := []time.Duration{0, 2 * time.Second, 6 * time.Second, 7 * time.Second}; !slices.Equal(waited, want) {
			t.Errorf("would have waited %v, want %v", waited, want)
		}
		for _, at := range []time.Duration{2*time.Second - 1, 2 * time.Second, 6 * time.Second, 7 * time.Second} {
			s.at(at)
			waited = append(waited, time.Duration(s.Snapshot().Depth))
		}
		if want := []time.Duration{3, 2, 1, 0}; !slices.Equal(waited[4:], want) {
			t.Errorf("depths %v, want %v", waited[4:], want)
		}
		if d := s.ask("", nil).decision; d.Waited != 3*time.Second {
			t.Errorf("after the last: %+v", d)
		}
	})
}

// Those who wait are as dear after a change of the rate, and a debt is one still.
func TestCostAdopted(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Hour), func(t *testing.T, s *scene) {
		all := s.costing(11, 1, 1)
		s.at(time.Second) // ten intervals are lacking
		adopt(t, s, q(t, "2/s", 10, time.Hour))
		s.at(time.Minute)
		wantReleased(t, all, 0, 6*time.Second, 6500*time.Millisecond)
	})
}

// When the one ahead that keeps it from going gives up, one that is cheaper goes at
// that very instant, though its own patience ends then too.
func TestCostOfOneThatGivesUpKeepsNobody(t *testing.T) {
	play(t, tb(t, "1/s", 3, 10, 4*time.Second), func(t *testing.T, s *scene) {
		all := s.costing(3, 3, 1) // they leave at 0, 3 and 4 s
		adopt(t, s, tb(t, "1/2s", 3, 10, 4*time.Second))
		s.at(time.Minute) // by the new rate the second would at 6 s
		all[1].want(t, "the dear one", 4*time.Second, limiter.ReasonPaused)
		all[2].want(t, "the cheap one", 4*time.Second, limiter.ReasonNone)
	})
}
