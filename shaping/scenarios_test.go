package shaping_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// nginx's limit_req.t: burst=1 nodelay, then after 1/rate one passes.
func TestScenarioN2N4(t *testing.T) {
	p := tb(t, "2/s", 2, 1, time.Nanosecond) // nobody waits so short a time
	p.Status = 501
	play(t, p, func(t *testing.T, s *scene) {
		all := s.crowd(7)
		wantReleased(t, all, 0, 0)
		for _, a := range all[2:] {
			if d := a.decision; d.Reason != limiter.ReasonMaxWait || d.Status != 501 || d.RetryAfter != time.Second/2-1 {
				t.Fatalf("%+v", d)
			}
		}
		s.at(500 * time.Millisecond)
		wantReleased(t, s.crowd(2), 500*time.Millisecond)
	})
}

// nginx's limit_req_delay.t: delay=1 burst=2.
func TestScenarioN13toN17(t *testing.T) {
	play(t, tb(t, "30/m", 2, 1, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(4)
		if d := all[3].decision; d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 2*time.Second {
			t.Fatalf("the fourth: %+v", d)
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 0, 2*time.Second)
		if d := all[2].decision; !d.Queued || d.Waited != 2*time.Second {
			t.Fatalf("the third: %+v", d)
		}
	})
}

// nginx's N6: leaky 1000/s, idle for 100 ms, no credit and no underflow.
func TestScenarioN6(t *testing.T) {
	play(t, q(t, "1000/s", 5, time.Minute), func(t *testing.T, s *scene) {
		s.crowd(1)
		s.at(100 * time.Millisecond)
		all := s.crowd(2)
		s.at(time.Second)
		wantReleased(t, all, 100*time.Millisecond, 101*time.Millisecond)
	})
}

// Traefik: 100/s, one after the other.
func TestScenarioT1(t *testing.T) {
	play(t, tb(t, "100/s", 1, 10, time.Minute), func(t *testing.T, s *scene) {
		for range 101 {
			if d, err := s.Acquire(t.Context(), shaping.Request{}); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if took := s.since(); took != time.Second {
			t.Fatalf("101 requests took %v", took)
		}
	})
}

// Traefik: the first requests of a new key at once admit exactly the burst.
func TestScenarioT5(t *testing.T) {
	play(t, tb(t, "1/h", 7, 1, time.Second), func(t *testing.T, s *scene) {
		for range 100 {
			s.start1("new", nil)
		}
		synctest.Wait()
		if n := len(released(s.asked)); n != 7 {
			t.Fatalf("%d passed", n)
		}
	})
}

// x/time/rate on reservations: what a leaver gives back.
func TestScenarioX5X6(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(5) // waiting for 1, 2, 3, 4 s
		s.at(1500 * time.Millisecond)
		all[1].cancel(nil) // after its turn: gives nothing back
		all[2].cancel(nil) // before: those behind move up
		s.at(3500 * time.Millisecond)
		wantReleased(t, all, 0, time.Second, 2*time.Second, 3*time.Second)
		late := s.ask("", nil)
		s.at(3600 * time.Millisecond)
		late.cancel(nil) // nobody behind: the next has its turn
		synctest.Wait()
		next := s.ask("", nil)
		s.at(time.Minute)
		wantReleased(t, []*asked{next}, 4*time.Second)
	})
}

// x/time/rate: a wait that is longer than it may be is refused at once.
func TestScenarioX7(t *testing.T) {
	play(t, q(t, "1/s", 10, 2500*time.Millisecond), func(t *testing.T, s *scene) {
		s.crowd(3)
		a := s.ask("", nil)
		d := a.decision
		if !a.over || a.ended != 0 || d.Reason != limiter.ReasonMaxWait || d.RetryAfter != 500*time.Millisecond {
			t.Fatalf("%+v", a)
		}
		if d.ResetAfter != d.RetryAfter {
			t.Fatalf("more is free after %v, and trying again is worth it after %v", d.ResetAfter, d.RetryAfter)
		}
	})
}

// x/time/rate: a change of rate and burst keeps the order of who waits.
func TestScenarioX10(t *testing.T) {
	play(t, q(t, "1/h", 10, 24*time.Hour), func(t *testing.T, s *scene) {
		all := s.crowd(6)
		s.at(30 * time.Minute)
		adopt(t, s, tb(t, "1/s", 3, 2, time.Second)) // the timer stood at an hour
		if snap := s.Snapshot(); snap.Depth != 5 || snap.Capacity != 2 || snap.OldestWait != 30*time.Minute {
			t.Fatalf("%+v", snap)
		}
		refused := s.ask("", nil)
		if d := refused.decision; d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 4500*time.Millisecond {
			t.Fatalf("%+v", d) // until the fourth of five has left, and the wait is short enough
		}
		s.at(30*time.Minute + 2*time.Second)
		adopt(t, s, q(t, "2/s", 10, time.Minute))
		s.at(time.Hour)
		half := 30*time.Minute + 500*time.Millisecond
		wantReleased(t, all, 0, half, half+time.Second, half+1750*time.Millisecond,
			half+2250*time.Millisecond, half+2750*time.Millisecond)
	})
}

func adopt(t *testing.T, s *scene, p shaping.Policy) {
	t.Helper()
	if err := s.Adopt(p); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// Kubernetes' priority and fairness: a request cancelled in the queue.
func TestScenarioK2(t *testing.T) {
	play(t, q(t, "1/m", 5, time.Hour), func(t *testing.T, s *scene) {
		s.ask("", nil)
		a := s.ask("", func() bool { t.Error("asked about a request that had left"); return false })
		if n := s.Snapshot().Depth; n != 1 {
			t.Fatalf("depth %d", n)
		}
		s.at(7 * time.Second)
		a.cancel(context.DeadlineExceeded)
		synctest.Wait()
		if n := s.Snapshot().Depth; n != 0 || !a.over || a.ended != 7*time.Second || a.err != context.DeadlineExceeded {
			t.Fatalf("depth %d, %+v", n, a)
		}
	})
}
