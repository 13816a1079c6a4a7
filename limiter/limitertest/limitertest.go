// Package limitertest is what every store of limits must pass: vectors worked
// out by hand, the properties that users rely on, and random walks beside slow
// and obvious models of the algorithms.
package limitertest

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Store is the store under judgement, with nothing in it. Its limits are
// numbered from 0 in the order of NewLimit. It must be safe for concurrent use.
type Store interface {
	NewLimit(p limiter.Policy) error
	Take(charges ...Charge) []limiter.Decision
	Peek(c Charge) limiter.Decision
	Return(at time.Time, charges ...Charge)
	Adopt(limit int, p limiter.Policy) error

	// Now is the store's time and Sleep lets it pass; Tick is its finest step.
	Now() time.Time
	Sleep(time.Duration)
	Tick() time.Duration
}

// A Charge is a limiter.Charge on a numbered limit.
type Charge struct {
	Limit int
	Key   string
	Cost  int64
}

// Run judges a store. with calls its argument with a fresh one, in whatever
// surroundings it needs, such as a synctest bubble.
func Run(t *testing.T, with func(*testing.T, func(*testing.T, Store))) {
	RunVectors(t, with)
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			if p.each == nil {
				with(t, p.check)
				return
			}
			for _, a := range limiter.Algorithms {
				t.Run(string(a), func(t *testing.T) {
					with(t, func(t *testing.T, s Store) { p.each(t, s, a) })
				})
			}
		})
	}
}

// RunVectors is the part of Run that was worked out by hand.
func RunVectors(t *testing.T, with func(*testing.T, func(*testing.T, Store))) {
	for _, v := range Vectors {
		t.Run(v.Name, func(t *testing.T) {
			with(t, func(t *testing.T, s Store) { v.check(t, s) })
		})
	}
}

func (v Vector) check(t *testing.T, s Store) {
	for _, p := range v.Policies {
		open(t, s, p)
	}
	align(s, v.Policies)
	start := s.Now()
	for i, step := range v.Steps {
		s.Sleep(start.Add(step.At).Sub(s.Now()))
		now := s.Now()
		got := s.Take(step.Charges...)
		if len(got) != len(step.Want) {
			t.Fatalf("step %d at %v: %d decisions for %d charges", i, step.At, len(got), len(step.Want))
		}
		for j, d := range got {
			p := v.Policies[step.Charges[j].Limit]
			sound(t, p, d, now)
			if have := (Want{d.Allowed, d.Remaining, d.ResetAfter, d.RetryAfter}); have != step.Want[j] {
				t.Errorf("step %d at %v, charge %+v: %+v, want %+v", i, step.At, step.Charges[j], have, step.Want[j])
			}
		}
	}
}

func open(t *testing.T, s Store, p limiter.Policy) {
	t.Helper()
	if err := s.NewLimit(p); err != nil {
		t.Fatal(err)
	}
}

// align sleeps to a moment at which a window of each policy begins.
func align(s Store, policies []limiter.Policy) {
	var longest time.Duration
	for _, p := range policies {
		longest = max(longest, p.Window)
	}
	if longest > 0 && longest <= 24*time.Hour {
		now := s.Now()
		s.Sleep(now.Truncate(longest).Add(longest).Sub(now))
	}
}

// sound checks what holds for every decision of a Take or Peek.
func sound(t *testing.T, p limiter.Policy, d limiter.Decision, now time.Time) {
	t.Helper()
	limit, window := p.Limit, p.Window
	if !p.Algorithm.Windowed() {
		limit = p.Burst
		window = d.Window // judged by the vectors of Window
	}
	status := p.Status
	if status == 0 {
		status = 429
	}
	switch {
	case d.Policy != p.Name || d.Status != status || d.DryRun != p.DryRun:
		t.Errorf("a decision of another limit: %+v", d)
	case d.Limit != limit || d.Window != window || d.Window <= 0:
		t.Errorf("limit %d in %v, want %d in %v", d.Limit, d.Window, limit, window)
	case d.Allowed != (d.Reason == limiter.ReasonNone) || d.Allowed != (d.RetryAfter == 0):
		t.Errorf("a refusal has a reason and a RetryAfter, an agreement neither: %+v", d)
	case !d.Allowed && d.Reason != limiter.ReasonLimit:
		t.Errorf("reason %q", d.Reason)
	case d.Remaining < 0 || d.Remaining > limit || (d.Remaining == limit) != (d.ResetAfter == 0):
		t.Errorf("remaining %d of %d with reset after %v", d.Remaining, limit, d.ResetAfter)
	case !d.Allowed && d.ResetAfter > d.RetryAfter:
		t.Errorf("reset after %v is later than retry after %v", d.ResetAfter, d.RetryAfter)
	case !d.At.Equal(now):
		t.Errorf("decided at %v, now is %v", d.At, now)
	}
}

// example is a policy of 5 in 10 seconds under any algorithm.
func example(a limiter.Algorithm) limiter.Policy { return policy(a, 5, 10*time.Second) }

// policy is limit requests in window, at once after a quiet time.
func policy(a limiter.Algorithm, limit int64, window time.Duration) limiter.Policy {
	p := limiter.Policy{Name: "test", Algorithm: a}
	if a.Windowed() {
		p.Limit, p.Window = limit, window
	} else {
		p.Burst, p.Rate = limit, limiter.Rate{Count: limit, Per: window}
	}
	return p
}
