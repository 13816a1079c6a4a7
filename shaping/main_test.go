package shaping_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A scene is a Shaper and what was asked of it, in a bubble of virtual time.
type scene struct {
	*shaping.Shaper
	t     *testing.T
	start time.Time
	gate  *shaping.Gate // of those who ask from now on
	asked []*asked
}

// An asked is one request and how it ended.
type asked struct {
	cancel context.CancelCauseFunc
	came   time.Duration // since the start of the scene, as ended

	over     bool
	ended    time.Duration
	decision limiter.Decision
	err      error
}

// play runs f with a Shaper for p in virtual time, and checks afterwards that
// every request ended, each in exactly one way.
func play(t *testing.T, p shaping.Policy, f func(t *testing.T, s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, start: time.Now()}
		var err error
		if s.Shaper, err = shaping.New(p); err != nil {
			t.Fatal(err)
		}
		f(t, s)
		if t.Failed() {
			for _, a := range s.asked {
				a.cancel(context.Canceled)
			}
		}
		s.Snapshot() // as in at
		time.Sleep(s.Policy().MaxWait + 24*time.Hour)
		synctest.Wait()
		for i, a := range s.asked {
			switch {
			case !a.over:
				t.Errorf("request %d still waits", i)
			case a.decision.Allowed != (a.decision.Reason == limiter.ReasonNone),
				(a.err != nil) != (a.decision.Reason == limiter.ReasonClientGone),
				a.decision.Allowed && a.decision.RetryAfter != 0,
				!a.decision.Allowed && a.err == nil && a.decision.RetryAfter <= 0:
				t.Errorf("request %d ended as %+v, %v", i, a.decision, a.err)
			}
		}
		if snap := s.Snapshot(); snap.Depth != 0 || snap.OldestWait != 0 {
			t.Errorf("at the end: %+v", snap)
		}
	})
}

func (s *scene) since() time.Duration { return time.Since(s.start) }

// at lets time pass until d after the start.
func (s *scene) at(d time.Duration) {
	s.Snapshot() // takes every lock, so what was read until now was read before timers go on
	time.Sleep(d - s.since())
	synctest.Wait()
}

// ask asks for key and returns when the answer is there or the request waits.
func (s *scene) ask(key string, gone func() bool) *asked {
	a := s.start1(key, gone)
	synctest.Wait()
	return a
}

// start1 asks without looking what becomes of it.
func (s *scene) start1(key string, gone func() bool) *asked {
	ctx, cancel := context.WithCancelCause(s.t.Context())
	a := &asked{cancel: cancel, came: s.since()}
	s.asked = append(s.asked, a)
	gate := s.gate
	go func() {
		grant, err := s.Acquire(ctx, shaping.Request{Key: key, Gone: gone, Gate: gate, Paced: true})
		a.decision, a.err = grant.Decision, err
		grant.Release()
		a.ended, a.over = s.since(), true
	}()
	return a
}

// crowd asks n times at once, one after the other.
func (s *scene) crowd(n int) []*asked {
	from := len(s.asked)
	for range n {
		s.ask("", nil)
	}
	return slices.Clone(s.asked[from:])
}

// released are the instants of release, in the order of asking, of those that
// were.
func released(all []*asked) []time.Duration {
	var at []time.Duration
	for _, a := range all {
		if a.over && a.decision.Allowed {
			at = append(at, a.ended)
		}
	}
	return at
}

func wantReleased(t *testing.T, all []*asked, want ...time.Duration) {
	t.Helper()
	if got := released(all); !slices.Equal(got, want) {
		t.Errorf("released at %v, want %v", got, want)
	}
}

// q is a leaky bucket in queue form.
func q(t testing.TB, rate string, queue int, maxWait time.Duration) shaping.Policy {
	return tb(t, rate, 1, queue, maxWait)
}

// tb is a token bucket in queue form.
func tb(t testing.TB, rate string, burst int64, queue int, maxWait time.Duration) shaping.Policy {
	t.Helper()
	return shaping.Policy{Name: "test", Rate: mustRate(t, rate), Burst: burst, Queue: queue, MaxWait: maxWait}
}
