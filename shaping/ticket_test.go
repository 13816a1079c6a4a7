package shaping

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A comer asks a Chain for a turn, and for further ones.
type comer struct {
	p     limiter.Permit
	err   error
	ended time.Duration
	over  bool
}

type comers struct {
	t     *testing.T
	c     *Chain
	start time.Time
}

func (s *comers) at(d time.Duration) {
	time.Sleep(d - time.Since(s.start))
	synctest.Wait()
}

func (s *comers) do(f func() (limiter.Permit, error)) *comer {
	c := &comer{}
	go func() {
		c.p, c.err = f()
		c.ended, c.over = time.Since(s.start), true
	}()
	synctest.Wait()
	return c
}

func (s *comers) ask(change ...func(*limiter.Request)) *comer {
	req := keys("k")
	for len(req.Keys) < len(s.c.links) {
		req.Keys = append(req.Keys, limiter.Key{Value: "k"})
	}
	req.Again = true
	for _, f := range change {
		f(&req)
	}
	return s.do(func() (limiter.Permit, error) { return s.c.Acquire(s.t.Context(), req) })
}

func (s *comers) again(c *comer) *comer {
	s.t.Helper()
	if c.p.Again == nil {
		s.t.Fatal("it cannot come again")
	}
	c.p.Release()
	return s.do(func() (limiter.Permit, error) { return c.p.Again(s.t.Context(), nil) })
}

func (s *comers) went(c *comer, at time.Duration) {
	s.t.Helper()
	if !c.over || c.err != nil || !c.p.Allowed || c.ended != at {
		s.t.Errorf("at %v as %+v, %v; want a turn at %v", c.ended, c.p.Decision, c.err, at)
	}
}

func (s *comers) refused(c *comer, why limiter.Reason, at time.Duration) {
	s.t.Helper()
	if !c.over || c.p.Allowed || c.p.Reason != why || c.ended != at {
		s.t.Errorf("at %v as %+v; want %q at %v", c.ended, c.p.Decision, why, at)
	}
}

func coming(t *testing.T, f func(*testing.T, *comers), policies ...any) {
	synctest.Test(t, func(t *testing.T) {
		f(t, &comers{t, chainOf(t, policies...), time.Now()})
	})
}

// Who comes back leaves first, at the pace; a full queue does not refuse it, and
// nobody is put out for it.
func TestAgainStandsWhereItStood(t *testing.T) {
	coming(t, func(t *testing.T, s *comers) {
		a := s.ask() // 0 s
		b, c := s.ask(), s.ask()
		s.refused(s.ask(), limiter.ReasonQueueFull, 0)
		s.at(1500 * time.Millisecond) // b has left at 1 s, and somebody takes its place
		d := s.ask()
		s.went(b, time.Second)
		b2 := s.again(b)
		a2 := s.again(a) // came before b
		if n := s.c.links[0].Queue.Snapshot(); n.Depth != 4 || n.OldestWait != 1500*time.Millisecond {
			t.Errorf("%+v", n)
		}
		s.refused(s.ask(), limiter.ReasonQueueFull, 1500*time.Millisecond)
		s.at(time.Minute)
		s.went(a2, 2*time.Second)
		s.went(b2, 3*time.Second)
		s.went(c, 4*time.Second)
		s.went(d, 5*time.Second)
		if w, ahead := a2.p.All[0].Waited, a2.p.All[0].Ahead; w != 500*time.Millisecond || ahead != 0 {
			t.Errorf("the second wait is %v, behind %d", w, ahead)
		}
		a3 := s.again(a2) // nobody waits
		s.refused(a3, limiter.ReasonMaxWait, time.Minute)
	}, line("q", 1, 2, 10*time.Second))
}

// max_wait goes on from the first arrival, an operator's pause aside; who cannot
// have its turn by then is told at once.
func TestAgainWithinMaxWait(t *testing.T) {
	coming(t, func(t *testing.T, s *comers) {
		a, b := s.ask(), s.ask()
		s.at(1200 * time.Millisecond)
		s.went(b, time.Second)
		b2, a2 := s.again(b), s.again(a) // at 3 s, as it came later, and 2 s
		s.at(2500 * time.Millisecond)
		s.went(a2, 2*time.Second)
		a3 := s.again(a2)
		s.at(3 * time.Second)
		s.went(a3, 3*time.Second)
		s.refused(b2, limiter.ReasonQueueFull, 3*time.Second) // overtaken by one that came before
		s.at(3001 * time.Millisecond)
		s.refused(s.again(a3), limiter.ReasonMaxWait, 3001*time.Millisecond)
		s.at(5 * time.Second)
		d0 := s.ask()
		s.ask() // at 6 s
		s.at(7900 * time.Millisecond)
		s.ask() // now, and the next is at 8.9 s
		s.refused(s.again(d0), limiter.ReasonMaxWait, 7900*time.Millisecond)
		s.at(10 * time.Second)
		c := s.ask() // until 13 s
		s.at(11500 * time.Millisecond)
		q := s.c.links[0].Queue
		q.Pause(5 * time.Second)
		c2 := s.again(c)
		s.at(20 * time.Second)
		s.went(c2, 16500*time.Millisecond)
		d := s.ask(func(r *limiter.Request) { r.Keys[0].MaxWait = 2 * time.Second })
		s.at(21500 * time.Millisecond)
		s.went(s.again(d), 21500*time.Millisecond)
		s.at(22 * time.Second)
		s.refused(s.again(d), limiter.ReasonMaxWait, 22*time.Second)
	}, line("q", 1, 5, 3*time.Second))
}

// Behind a closed gate it stays at the head, whose patience is the first to end;
// and if it is too late for it, it is told so at once.
func TestAgainBehindAGate(t *testing.T) {
	coming(t, func(t *testing.T, s *comers) {
		gates := NewGates()
		s.c = s.c.To(gates)
		a, b, c := s.ask(), s.ask(), s.ask()
		s.at(500 * time.Millisecond)
		gates.Of("").Close("throttled", s.start.Add(4*time.Second))
		a2 := s.again(a)
		s.at(time.Minute)
		s.went(a2, 4*time.Second)
		s.went(b, 5*time.Second)
		s.went(c, 6*time.Second)
		d := s.ask()
		gates.Of("").Close("throttled", s.start.Add(71*time.Second))
		s.refused(s.again(d), limiter.ReasonPaused, time.Minute)
	}, line("q", 1, 5, 10*time.Second))
}

// Limits in reject mode are not charged again; places are given back and taken
// anew; and the second queue, too, knows who comes back.
func TestAgainThroughAChain(t *testing.T) {
	places := Policy{Name: "places", MaxInFlight: 1, Queue: 5, MaxWait: time.Minute}
	coming(t, func(t *testing.T, s *comers) {
		a, b, c := s.ask(), s.ask(), s.ask()
		s.refused(s.ask(), limiter.ReasonLimit, 0)
		if d := s.c.peek(0, "k"); d.Remaining != 0 {
			t.Fatalf("%+v", d)
		}
		s.at(5 * time.Second) // all have had their turns in the line, and wait for a's place
		a2 := s.again(a)      // which becomes free
		s.went(b, 5*time.Second)
		s.at(6 * time.Second)
		b.p.Release()
		synctest.Wait()
		s.went(a2, 6*time.Second) // before c, at which place it stood behind b
		if d := s.c.peek(0, "k"); d.Remaining != 0 {
			t.Errorf("charged or given back: %+v", d)
		}
		for i, name := range []string{"window", "line", "places"} {
			if d := a2.p.All[i]; d.Policy != name || d.Peeked != (i == 0) {
				t.Errorf("decision %d is %+v", i, d)
			}
		}
		a2.p.Release()
		synctest.Wait()
		s.went(c, 6*time.Second)
		c.p.Release()
		// Refused on its way back, it gives back what was never charged twice.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if p, err := c.p.Again(ctx, nil); err == nil || p.Allowed {
			t.Errorf("%+v", p)
		}
		if snap := s.c.links[2].Queue.Snapshot(); snap.InFlight != 0 || s.c.peek(0, "k").Remaining != 0 {
			t.Errorf("%+v", snap)
		}
	}, limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 3, Window: 100 * time.Hour}, line("line", 1, 5, time.Minute), places)
}

// There is nothing to go back to without a queue that holds the request.
func TestAgainNeedsAQueue(t *testing.T) {
	dry := line("q", 1, 5, time.Minute)
	dry.DryRun = true
	for name, policies := range map[string][]any{
		"reject": {tokens("t", 1, 1)}, "dry run": {dry}, "places": {Policy{Name: "p", MaxInFlight: 1}}, "skipped": {tokens("t", 1, 1), line("q", 1, 5, time.Minute)},
	} {
		coming(t, func(t *testing.T, s *comers) {
			a := s.ask(func(r *limiter.Request) { r.Keys[len(r.Keys)-1].Skip = name == "skipped" })
			if !a.p.Allowed || a.p.Again != nil {
				t.Errorf("%s: %+v", name, a.p)
			}
			a.p.Release()
		}, policies...)
	}
	coming(t, func(t *testing.T, s *comers) {
		if a := s.ask(func(r *limiter.Request) { r.Again = false }); a.p.Again != nil {
			t.Error("nobody asked for it")
		}
	}, line("q", 1, 5, time.Minute))
}

// A line that was forgotten meanwhile has whoever comes back first.
func TestAgainOfAForgottenLine(t *testing.T) {
	p := line("q", 1, 5, time.Minute)
	p.MaxKeys = 1
	coming(t, func(t *testing.T, s *comers) {
		a := s.ask()
		s.at(10 * time.Second)
		s.ask(func(r *limiter.Request) { r.Keys[0].Value = "other" }) // takes the only line
		s.at(20 * time.Second)
		b, c := s.ask(), s.ask()
		s.went(b, 20*time.Second)
		a2 := s.again(a)
		s.at(time.Minute)
		s.went(a2, 21*time.Second)
		s.went(c, 22*time.Second)
	}, p)
}
