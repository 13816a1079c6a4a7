package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestRateLimitTruth: what a decision tells a client is true to the nanosecond,
// under random policies and after random traffic. Of a refusal, a client that
// waits for RetryAfter and is alone is let through at the first try, and one
// that comes a nanosecond earlier is not, however often it tries meanwhile. Of
// any decision, Remaining is what can be taken and no more can, and ResetAfter
// is when more can for the first time.
func TestRateLimitTruth(t *testing.T) {
	walks := 60
	if testing.Short() {
		walks = 10
	}
	for _, a := range limiter.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			for seed := range walks {
				r := rand.New(rand.NewPCG(uint64(seed), 26))
				p := randomPolicy(r, a)
				synctest.Test(t, func(t *testing.T) { tellsTheTruth(t, r, p) })
				if t.Failed() {
					t.Fatalf("seed %d: %+v", seed, p)
				}
			}
		})
	}
}

// randomPolicy has a quota of 1 to some hundreds in a millisecond to some days,
// mostly of lengths that nothing divides.
func randomPolicy(r *rand.Rand, a limiter.Algorithm) limiter.Policy {
	window := time.Duration(1e6 + r.Int64N(1<<(20+r.IntN(29))))
	p := limiter.Policy{Name: "test", Algorithm: a}
	if a.Windowed() {
		p.Limit, p.Window = 1+r.Int64N(1<<(1+r.IntN(8))), window
		return p
	}
	rate, err := limiter.NewRate(1+r.Int64N(100), window)
	if err != nil {
		panic(err)
	}
	p.Rate, p.Burst = rate, 1+r.Int64N(1<<(1+r.IntN(8)))
	return p
}

func tellsTheTruth(t *testing.T, r *rand.Rand, p limiter.Policy) {
	l := open(t, p)
	most, window := l.Peek("a", 1).Limit, l.Peek("a", 1).Window
	for range 40 {
		// Traffic, and not only what fits.
		for range r.IntN(8) {
			l.Take("a", 1+r.Int64N(most))
			time.Sleep(time.Duration(r.Int64N(int64(window)/4 + 1)))
		}
		d := l.Take("a", 1+r.Int64N(most))
		if d.Remaining > 0 {
			if one := l.Peek("a", d.Remaining); !one.Allowed {
				t.Fatalf("%d are not to be had of the remaining in %+v", d.Remaining, d)
			}
		}
		if d.Remaining < most && l.Peek("a", d.Remaining+1).Allowed {
			t.Fatalf("more is to be had than the remaining in %+v", d)
		}
		if d.Allowed {
			if (d.ResetAfter == 0) != (d.Remaining == most) {
				t.Fatalf("nothing used, or nothing more to come: %+v", d)
			}
			if d.ResetAfter > 0 {
				time.Sleep(d.ResetAfter - 1)
				if l.Peek("a", d.Remaining+1).Allowed {
					t.Fatalf("more is to be had 1ns before the reset of %+v", d)
				}
				time.Sleep(time.Nanosecond)
				if !l.Peek("a", d.Remaining+1).Allowed {
					t.Fatalf("no more is to be had at the reset of %+v", d)
				}
			}
			continue
		}
		cost := d.Remaining + 1 + r.Int64N(most-d.Remaining)
		refused := l.Take("a", cost)
		if refused.Allowed {
			t.Fatalf("%d passed with %d remaining", cost, d.Remaining)
		}
		at := time.Now().Add(refused.RetryAfter)
		for range r.IntN(3) {
			time.Sleep(time.Duration(r.Int64N(int64(time.Until(at)))))
			if early := l.Take("a", cost); early.Allowed || !time.Now().Add(early.RetryAfter).Equal(at) {
				t.Fatalf("too early by %v, and told %+v", time.Until(at), early)
			}
		}
		time.Sleep(time.Until(at) - 1)
		if early := l.Take("a", cost); early.Allowed || early.RetryAfter != 1 {
			t.Fatalf("1ns too early, and told %+v", early)
		}
		time.Sleep(time.Nanosecond)
		if d := l.Take("a", cost); !d.Allowed {
			t.Fatalf("waited as told, and refused with %+v", d)
		}
	}
}

// TestRateLimitTruthOfMany: the longest of the waits that several limits tell is
// the first instant at which all let a client through.
func TestRateLimitTruthOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(26, 1))
		for range 20 {
			m := limiter.NewMemory()
			var charges []limiter.Charge
			for i, a := range limiter.Algorithms {
				p := randomPolicy(r, a)
				p.Name = fmt.Sprint(i)
				l, err := m.NewLimit(p)
				if err != nil {
					t.Fatal(err)
				}
				charges = append(charges, limiter.Charge{Limit: l, Key: "a", Cost: 1})
			}
			for range 300 {
				// The first to be refused, and the one who waits for it.
				var wait time.Duration
				for _, d := range m.Take(nil, charges) {
					wait = max(wait, d.RetryAfter)
				}
				if wait == 0 {
					continue
				}
				time.Sleep(wait - 1)
				if all(m.Take(nil, charges)) {
					t.Fatalf("passed 1ns before %v", wait)
				}
				time.Sleep(time.Nanosecond)
				if !all(m.Take(nil, charges)) {
					t.Fatalf("refused after %v as told", wait)
				}
			}
		}
	})
}

func all(decisions []limiter.Decision) bool {
	for _, d := range decisions {
		if !d.Allowed {
			return false
		}
	}
	return true
}
