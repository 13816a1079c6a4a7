package limitertest

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Walk does steps random things to p, as the store's given next limit, and
// compares every answer with the reference's. next returns a random number
// below n.
func Walk(t *testing.T, s Store, number int, p limiter.Policy, steps int, next func(n int64) int64) {
	t.Helper()
	open(t, s, p)
	limit, window := p.Limit, p.Window
	if !p.Algorithm.Windowed() {
		limit = p.Burst
		window = time.Duration(limit)*p.Rate.Per/time.Duration(p.Rate.Count) + 1
	}
	keys := []string{"a", "b", "c"}
	references := map[string]reference{}
	for _, k := range keys {
		references[k] = newReference(p)
	}
	type past struct {
		charge Charge
		at     time.Time
	}
	var returnable []past
	for i := range steps {
		c := Charge{number, keys[next(3)], 1 + next(limit+1)}
		if next(2) == 0 {
			c.Cost = 1
		}
		r, now := references[c.Key], s.Now()
		switch next(8) {
		case 0:
			// A step of any length, in the store's ticks; small ones most.
			d := time.Duration(next(int64(window)*5/2 + 2))
			for range next(4) {
				d /= 7
			}
			s.Sleep(d.Truncate(s.Tick()))
		case 1:
			// To the very instant at which something may go, or just before.
			d := decide(r, p, now, c.Cost).RetryAfter
			if d == limiter.Never {
				continue
			}
			s.Sleep(max(0, d-time.Duration(next(2))*s.Tick()))
		case 2:
			want, d := decide(r, p, now, c.Cost), s.Peek(c)
			sound(t, p, d, now)
			if got := (Want{d.Allowed, d.Remaining, d.ResetAfter, d.RetryAfter}); got != want || !d.Peeked {
				t.Fatalf("step %d at %v, peek %+v: %+v, want %+v", i, now, c, got, want)
			}
		case 3:
			if len(returnable) == 0 {
				continue
			}
			j := next(int64(len(returnable)))
			last := returnable[j]
			returnable = append(returnable[:j], returnable[j+1:]...)
			s.Return(last.at, last.charge)
			references[last.charge.Key].giveBack(last.at, now, last.charge.Cost)
		default:
			want := decide(r, p, now, c.Cost)
			if want.Allowed {
				r.take(now, c.Cost)
				returnable = append(returnable, past{c, now})
				allowed := decide(r, p, now, 0)
				want.Remaining, want.ResetAfter = allowed.Remaining, allowed.ResetAfter
			}
			d := s.Take(c)[0]
			sound(t, p, d, now)
			if got := (Want{d.Allowed, d.Remaining, d.ResetAfter, d.RetryAfter}); got != want {
				t.Fatalf("step %d at %v, take %+v: %+v, want %+v", i, now, c, got, want)
			}
		}
	}
}

func walk(t *testing.T, s Store, a limiter.Algorithm) {
	r := random()
	// From single ticks to weeks: the walks together must not leave what an
	// instant can be.
	number := 0
	for scale := s.Tick(); scale <= 1e15; scale *= 1000 {
		limit := 1 + r.Int64N(12)
		window := (scale + time.Duration(r.Int64N(int64(scale)))).Truncate(s.Tick())
		p := policy(a, limit, window)
		if err := p.Validate(); err != nil {
			p = policy(a, 1, window) // a bucket of more would be too fast
		}
		Walk(t, s, number, p, 300, r.Int64N)
		number++
	}
}
