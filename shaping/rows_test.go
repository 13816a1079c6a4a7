package shaping_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// The faults that the ledger and its reference found, each with its story.

// Whoever waited was taken for proof that the bucket is empty. With places it is
// none: a burst of 5 behind one place left one a second, with four tokens lying
// there.
func TestBurstIsKeptForThoseWhoWaitForAPlace(t *testing.T) {
	p := tb(t, "1/s", 5, 10, time.Minute)
	p.MaxInFlight = 1
	play(t, p, func(t *testing.T, s *scene) {
		var all []*asked
		for range 7 {
			all = append(all, s.hold(shaping.Request{}, 10*time.Millisecond))
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 10*time.Millisecond, 20*time.Millisecond, 30*time.Millisecond, 40*time.Millisecond, time.Second, 2*time.Second)
	})
}

// And a stall of the machine still lets out no bunch: what could not leave for
// want of a timer is not saved up, but for the tokens that were there before it.
func TestStallWithPlacesLetsOutNoBunch(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "10/s"), Burst: 3, Queue: 20, MaxWait: time.Minute, MaxInFlight: 3})
	fill(&line, epoch, 13) // three go, and the bucket is empty
	for range 3 {
		line.Done(epoch+10*ms, queue.High)
	}
	now := epoch + 10*second
	n := 0
	for line.Leave(now) != nil {
		n++
	}
	if due := line.Due(now); n != 1 || due != now-2*ms+100*ms {
		t.Fatalf("%d left, the next in %v", n, time.Duration(due-now))
	}
}

// Who asked while no place was free was judged as if a departure had been
// overdue by Slack: let in for a wait 2 ms longer than max_wait.
func TestWaitForAPlaceIsNoStall(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 5, MaxWait: 999 * time.Millisecond, MaxInFlight: 1})
	line.Arrive(epoch, 0)
	now := epoch + 10*second
	line.Arrive(now, 1)
	if v := line.Look(now); v.Reason != limiter.ReasonMaxWait || v.RetryAfter != time.Millisecond {
		t.Fatalf("the second to wait is an interval behind the first, at best: %+v", v)
	}
}

// A pause until an instant that is over by the time the lock is there did not
// replace the one without end, and nobody was let out again.
func TestPauseThatIsOverAtOnceEndsOneWithoutEnd(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 5, MaxWait: time.Minute})
	line.Pause(epoch, shaping.Endless)
	if line.Pause(epoch, epoch); line.Paused(epoch) != 0 {
		t.Fatal("still paused")
	}
}

// A pause of three centuries made the predicted wait overflow to nothing.
func TestPauseOfCenturies(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: limiter.Rate{Count: 1, Per: limiter.MaxPeriod}, Burst: 1, Queue: shaping.MaxQueue, MaxWait: limiter.MaxPeriod})
	now := int64(1) << 61
	line.Pause(now, math.MaxInt64-1)
	if until := line.Paused(now); until != shaping.Endless {
		t.Fatalf("until %d", until)
	}
	fill(&line, now, 2)
	if v := line.Look(now); v.Reason != limiter.ReasonMaxWait {
		t.Fatalf("%+v", v)
	}
}

// A pause without end counts as ending now, so what it refuses is not its fault.
func TestPauseWithoutEndIsNoReason(t *testing.T) {
	play(t, q(t, "1/s", 10, sec), func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		s.Pause(0)
		s.hold(shaping.Request{}, 0)
		s.hold(shaping.Request{}, 0).want(t, "who would wait for 2 s anyway", 0, limiter.ReasonMaxWait)
		s.Resume()
	})
}

// The client's own deadline stood still during a pause, and it was served when
// nobody waited for the answer any more.
func TestOwnDeadlineDoesNotStopForAPause(t *testing.T) {
	play(t, q(t, "10/s", 10, time.Minute), func(t *testing.T, s *scene) {
		s.Pause(0)
		own := s.hold(shaping.Request{MaxWait: sec}, 0)
		ours := s.hold(shaping.Request{}, 0)
		s.at(2 * sec)
		own.want(t, "who has 1 s of its own", sec, limiter.ReasonPaused)
		s.at(time.Hour)
		s.Resume()
		s.at(2 * time.Hour)
		ours.want(t, "who is bound by max_wait", time.Hour, "")
	})
}

// Each queue of a route gave the client's deadline anew.
func TestOwnDeadlineSpansAllQueuesOfARoute(t *testing.T) {
	first, second := q(t, "1/s", 10, time.Minute), q(t, "1/s", 10, time.Minute)
	play(t, second, func(t *testing.T, s *scene) {
		before, err := shaping.New(first)
		if err != nil {
			t.Fatal(err)
		}
		chain := shaping.NewChain(limiter.NewMemory(), shaping.Link{Queue: before}, shaping.Link{Queue: s.Shaper})
		ask := func(own time.Duration) limiter.Permit {
			p, err := chain.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{{MaxWait: own}, {MaxWait: own}}})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		ask(0)
		time.Sleep(500 * time.Millisecond)
		s.ask("", nil) // released at 1 s, so the next is at 2 s
		// 500 ms for the first queue, and another second for the second.
		if p := ask(1400 * time.Millisecond); p.Allowed || p.Reason != limiter.ReasonMaxWait || p.RetryAfter != 100*time.Millisecond {
			t.Errorf("%+v", p.Decision)
		}
		if p := ask(1500 * time.Millisecond); !p.Allowed && p.Reason != limiter.ReasonMaxWait {
			t.Errorf("%+v", p.Decision)
		}
	})
}

// Who joins the turns of other flows later joins them at the end as well: told
// that its turn comes nearer by waiting outside, a client came back in vain.
func TestRetryAfterAmongFlows(t *testing.T) {
	play(t, q(t, "1/s", 100, time.Minute), func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		for range 10 {
			s.hold(shaping.Request{Flow: "A"}, 0)
		}
		s.hold(shaping.Request{Flow: "B"}, 0)
		s.hold(shaping.Request{Flow: "C"}, 0)
		d := shaping.Request{Flow: "D", MaxWait: 2500 * time.Millisecond}
		refused := s.hold(d, 0)
		refused.want(t, "D", 0, limiter.ReasonMaxWait)
		s.at(refused.decision.RetryAfter)
		again := s.hold(d, 0)
		s.at(time.Hour)
		if !again.decision.Allowed {
			t.Errorf("told %v, and then %+v", refused.decision.RetryAfter, again.decision)
		}
	})
}

// Low waiters that come to count as much meanwhile go before one that was told
// to come back.
func TestRetryAfterWithAgeing(t *testing.T) {
	p := q(t, "1/s", 100, 20*sec)
	p.PromoteAfter = sec
	play(t, p, func(t *testing.T, s *scene) {
		for range 11 {
			s.hold(shaping.Request{Class: queue.Low}, 0)
		}
		s.at(500 * time.Millisecond)
		for range 3 {
			s.hold(shaping.Request{Class: queue.High}, 0)
		}
		urgent := shaping.Request{Class: queue.High, MaxWait: 2 * sec}
		refused := s.hold(urgent, 0)
		refused.want(t, "urgent", 500*time.Millisecond, limiter.ReasonMaxWait)
		s.at(500*time.Millisecond + refused.decision.RetryAfter)
		again := s.hold(urgent, 0)
		s.at(time.Hour)
		if !again.decision.Allowed {
			t.Errorf("told %v, and then %+v", refused.decision.RetryAfter, again.decision)
		}
	})
}

// Who had come to count better before a reload counted so only if somebody had
// looked.
func TestAdoptLooksAtAgesFirst(t *testing.T) {
	terms := shaping.Terms{Rate: mustRate(t, "1/h"), Burst: 1, Queue: 9, MaxWait: 100 * time.Hour, PromoteAfter: time.Second}
	line := shaping.NewLine[int](terms)
	line.Arrive(epoch, 0)
	line.Enter(epoch, shaping.Entrant{Class: queue.Low}, 1)
	now := epoch + 10*second
	terms.PromoteAfter = 0
	line.Adopt(now, terms)
	line.Enter(now, shaping.Entrant{Class: queue.High}, 2)
	if head := line.Head(now); head.Value != 1 {
		t.Fatalf("%d is next", head.Value)
	}
}

// With no place free nobody looked at the schedule, which did not notice that
// the clock was set back: the next waited for an hour.
func TestClockSetBackWhileNoPlaceIsFree(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 5, MaxWait: time.Minute, MaxInFlight: 1})
	now := epoch + 3600*second
	fill(&line, now, 2)
	now -= 3600 * second
	line.Wake(now)
	now += 5 * second
	if line.Done(now, queue.High); line.Leave(now) == nil {
		t.Fatalf("due in %v", time.Duration(line.Due(now)-now))
	}
}

// A smaller burst takes tokens that somebody who waits for a place was to have.
func TestSmallerBurstIsToldAsPaused(t *testing.T) {
	p := tb(t, "1/s", 5, 10, sec)
	p.MaxInFlight = 1
	play(t, p, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 900*time.Millisecond)
		s.hold(shaping.Request{}, 0)
		last := s.hold(shaping.Request{}, 0)
		p.Burst = 1
		s.Adopt(p)
		s.at(time.Hour)
		last.want(t, "the last", sec, limiter.ReasonPaused)
	})
}

// A key that is not known was said to be free, whatever had been stopped.
func TestPeekOfUnknownKeyDuringAPause(t *testing.T) {
	p := tb(t, "10/s", 5, 10, sec)
	p.MaxInFlight = 2
	play(t, p, func(t *testing.T, s *scene) {
		if d := s.Peek("unknown"); !d.Allowed || d.Remaining != 12 {
			t.Errorf("%+v", d)
		}
		s.Pause(time.Hour)
		if d := s.Peek("unknown"); d.Allowed || d.Reason != limiter.ReasonPaused || d.RetryAfter != time.Hour-sec {
			t.Errorf("%+v", d)
		}
		if n := s.Snapshot().Keys; n != 0 {
			t.Errorf("%d keys", n)
		}
		_, err := s.Acquire(context.Background(), shaping.Request{Key: "unknown"})
		if err != nil {
			t.Error(err)
		}
	})
}
