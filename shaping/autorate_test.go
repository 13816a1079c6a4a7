package shaping

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func perS(n int64) limiter.Rate { return limiter.Rate{Count: n, Per: time.Second} }

// A model is an upstream with a limit that nobody is told, and steps in it.
type model struct {
	limit  func(at int64) float64 // requests a second
	burst  float64
	level  float64 // tokens
	filled int64
}

func (m *model) take(at int64) bool {
	limit := m.limit(at)
	m.level = min(m.burst, m.level+time.Duration(at-m.filled).Seconds()*limit)
	m.filled = at
	if m.level < 1 {
		return false
	}
	m.level--
	return true
}

// overload lets an AutoRate drive a model under overload for a while, and returns
// the share of the capacity that was used after half a minute, the share that
// was throttled, and the rate over time.
func overload(random *rand.Rand, m *model, least, most limiter.Rate, lasts time.Duration) (used, throttled float64, rate func(time.Duration) float64) {
	a := NewAutoRate(least, most)
	type answer struct {
		at, sent int64
		ok       bool
	}
	var flying []answer
	var served, refused, after int
	var trace []float64 // each 100 ms
	var capacity float64
	const warm = int64(30 * time.Second)
	rest := int64(0) // turns that pass unused
	for now := int64(1); now < int64(lasts); {
		next := now + int64(float64(time.Second)/perSecond(a.Rate()))
		// Answers until the next departure, in order.
		for {
			i := -1
			for k, f := range flying {
				if f.at <= next && (i < 0 || f.at < flying[i].at) {
					i = k
				}
			}
			if i < 0 {
				break
			}
			f := flying[i]
			flying = append(flying[:i], flying[i+1:]...)
			if !f.ok {
				rest = max(rest, a.Throttled(f.at, f.sent))
			}
		}
		for int64(len(trace))*int64(100*time.Millisecond) < next {
			trace = append(trace, perSecond(a.Rate()))
		}
		if next > warm {
			capacity += m.limit(next) * time.Duration(next-max(now, warm)).Seconds()
		}
		now = next
		if rest > 0 {
			rest--
			continue
		}
		a.Left(now, 1)
		ok := m.take(now)
		flying = append(flying, answer{now + int64(20+random.IntN(60))*int64(time.Millisecond), now, ok})
		if ok {
			served++
			if now > warm {
				after++
			}
		} else {
			refused++
		}
	}
	return float64(after) / capacity, float64(refused) / float64(served+refused),
		func(at time.Duration) float64 { return trace[min(len(trace)-1, int(at/(100*time.Millisecond)))] }
}

func TestAutoRateFindsAndFollows(t *testing.T) {
	for _, limit := range []float64{20, 50, 100, 500} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%v/s, %d", limit, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(limit)))
				up, down := 60*time.Second, 90*time.Second
				m := &model{burst: 1 + float64(random.IntN(5)), limit: func(at int64) float64 {
					if at >= int64(up) && at < int64(down) {
						return 2 * limit
					}
					return limit
				}}
				used, throttled, rate := overload(random, m, perS(1), perS(5000), 120*time.Second)
				rises, falls := -1*time.Second, -1*time.Second
				for d := time.Duration(0); d < 30*time.Second; d += 100 * time.Millisecond {
					if rises < 0 && rate(up+d) >= 0.95*2*limit {
						rises = d
					}
					if falls < 0 && rate(down+d) <= 1.05*limit {
						falls = d
					}
				}
				t.Logf("used %.1f%%, throttled %.2f%%, %v to the doubled rate, %v back", 100*used, 100*throttled, rises, falls)
				if used < 0.9 {
					t.Errorf("only %.1f%% of the capacity used", 100*used)
				}
				if throttled > 0.03 {
					t.Errorf("%.2f%% throttled", 100*throttled)
				}
				if rises < 0 || rises > 10*time.Second {
					t.Errorf("%v until the doubled rate", rises)
				}
				if falls < 0 || falls > time.Second {
					t.Errorf("%v until half the rate", falls)
				}
			})
		}
	}
}

// After a decrease that follows another closely, turns pass unused, twice as many
// each time; and a search that nothing has stopped so far is foreseen to go on.
func TestAutoRateRestsAndForesees(t *testing.T) {
	a := NewAutoRate(perS(1), perS(64))
	for _, tt := range []struct{ takes, least, most time.Duration }{
		{0, 0, 0},
		{time.Second / 2, time.Second / 2, time.Second / 2},
		{30 * time.Second, 6 * time.Second, 7 * time.Second},                 // 2^t = 1 + 30 ln 2, and two turns
		{1000 * time.Second, 21 * time.Second, 23 * time.Second},             // of which 91 go by until it is the highest
		{1 << 62, (1 << 62) / 64, (1<<62)/64 + time.Duration(9*time.Second)}, // no overflow
	} {
		if got := a.Sooner(tt.takes); got < tt.least || got > tt.most {
			t.Errorf("what takes %v takes %v, want %v to %v", tt.takes, got, tt.least, tt.most)
		}
	}
	a.start(perS(60))
	now, want := int64(time.Second), []int64{1, 2, 4, 8, 16, 32, 64, 64}
	for i, w := range want {
		a.rate = 60
		if got := a.Throttled(now, now); got != w {
			t.Errorf("%d turns pass unused at decrease %d, want %d", got, i+1, w)
		}
		if got := a.Throttled(now, now); got != 0 {
			t.Errorf("%d more for one that was under way", got)
		}
		if got := a.Sooner(time.Hour); got != time.Hour {
			t.Errorf("what takes an hour takes %v, at a rate that is known to be near the highest", got)
		}
		now = a.lowered + closely/2
	}
	a.rate = 60
	if got := a.Throttled(now+closely, now+closely); got != 1 {
		t.Errorf("%d turns pass unused long after", got)
	}
}
