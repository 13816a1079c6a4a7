package shaping_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Whatever a policy may hold and a request may cost, nothing overflows: no wait and
// no count is negative, who is refused is told when to come again, and what is due
// is done.
func TestExtremesStayNumbers(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 77))
		terms := func() shaping.Terms {
			for {
				p := shaping.Policy{
					Rate:  limiter.Rate{Count: []int64{1, 1, 7, 1000, 1e9, 1 << 40}[r.IntN(6)], Per: []time.Duration{1, time.Second, time.Hour, 24 * time.Hour, limiter.MaxPeriod}[r.IntN(5)]},
					Burst: []int64{1, 2, 1000, 1e9, 1 << 40, 1 << 53}[r.IntN(6)], Queue: []int{1, 2, 5, 1e9}[r.IntN(4)],
					MaxWait:     []time.Duration{1, time.Second, 24 * time.Hour, limiter.MaxPeriod}[r.IntN(4)],
					MaxInFlight: []int{0, 0, 1, 1e9}[r.IntN(4)], PromoteAfter: []time.Duration{0, 1, time.Hour, limiter.MaxPeriod}[r.IntN(4)],
				}
				if p.Validate() == nil {
					return p.Terms()
				}
			}
		}
		l := shaping.NewLine[int](terms())
		now := time.Now().UnixNano()
		out := 0
		for i := range 60 {
			e := shaping.Entrant{Cost: []int64{0, 1, 3, 1e9, 1 << 53, 1 << 62, math.MaxInt64}[r.IntN(7)], Class: queue.Class(r.IntN(3)), Flow: string(rune('A' + r.IntN(3)))}
			if r.IntN(4) == 0 {
				e.MaxWait = []time.Duration{1, time.Hour, math.MaxInt64}[r.IntN(3)]
			}
			switch r.IntN(9) {
			case 0:
				l.Adopt(now, terms())
			case 1:
				l.Pause(now, now+int64(r.IntN(1e9)))
			case 2:
				l.Resume(now)
			case 3:
				now += []int64{1, 1e6, 1e9, 1e15}[r.IntN(4)]
			case 4:
				if out > 0 {
					out--
					l.Done(now, queue.High)
				}
			default:
				v, w, _ := l.Enter(now, e, i)
				if v.Wait < 0 || v.RetryAfter < 0 || v.Reason != "" && v.RetryAfter <= 0 || v.Ahead < 0 {
					t.Fatalf("seed %d: %+v %+v", seed, e, v)
				}
				if v.Reason == "" && w == nil {
					out++
				}
			}
			for range 100 {
				if l.Leave(now) != nil {
					out++
					continue
				}
				if w, _ := l.Expire(now); w != nil {
					continue
				}
				break
			}
			if n, more := l.Remaining(now, queue.High); n < 0 || more < 0 {
				t.Fatalf("seed %d: remaining %d %v", seed, n, more)
			}
			if w := l.Wake(now); w <= now && l.Waiting() > 0 {
				t.Fatalf("seed %d: wake %d", seed, w-now)
			}
			if d := l.Idle(now); d < 0 {
				t.Fatalf("seed %d: idle %v", seed, d)
			}
		}
	}
}
