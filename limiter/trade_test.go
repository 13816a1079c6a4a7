package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestTradeOfLogAndCounter measures what the counter's three words a key cost in
// exactness, for the package's comment: both are asked the same, and it is
// counted what each lets through.
func TestTradeOfLogAndCounter(t *testing.T) {
	const limit, window = 100, int64(time.Minute)
	for _, c := range []struct {
		name string
		// gap is the time to the next request, number n.
		gap func(r *rand.Rand, n int, now int64) int64
		// The counter lets through most in any one window, and between few and
		// many of a hundred that the log does.
		most      int64
		few, many int64
	}{
		{"even, at the limit", func(*rand.Rand, int, int64) int64 { return window / limit }, 100, 98, 100},
		{"random, 9 of 10 of the limit", func(r *rand.Rand, _ int, _ int64) int64 {
			return int64(r.ExpFloat64() * float64(window) / limit * 10 / 9)
		}, 115, 98, 102},
		{"random, twice the limit", func(r *rand.Rand, _ int, _ int64) int64 {
			return int64(r.ExpFloat64() * float64(window) / limit / 2)
		}, 110, 95, 102},
		{"all at once, each 90 s", func(_ *rand.Rand, n int, _ int64) int64 {
			if n%limit == 0 {
				return window * 3 / 2
			}
			return 0
		}, 100, 40, 80},
		{"all just before a boundary, then evenly", func(_ *rand.Rand, n int, now int64) int64 {
			switch n % (2 * limit) {
			case 0:
				return 4*window - now%window - 1 // all before has faded
			case limit:
				return window/limit + 1
			}
			if n%(2*limit) > limit {
				return window / limit
			}
			return 0
		}, 2*limit - 1, 150, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			log, counter := newKey(testPolicy(SlidingWindowLog, limit, time.Minute)), newKey(testPolicy(SlidingWindowCounter, limit, time.Minute))
			var byLog, byCounter, most int64
			var passed []int64 // by the counter, in the last window
			now := epoch       // a full hour
			for n := range 100_000 {
				now += c.gap(r, n, now)
				if log.take(now, 1) == 0 {
					byLog++
				}
				if counter.take(now, 1) == 0 {
					byCounter++
					passed = append(passed, now)
				}
				for len(passed) > 0 && passed[0] <= now-window {
					passed = passed[1:]
				}
				most = max(most, int64(len(passed)))
			}
			share := float64(byCounter) / float64(byLog) * 100
			t.Logf("the counter lets through %.1f%% of what the log does, and up to %d in a window of %d", share, most, limit)
			if most > c.most || share < float64(c.few) || share > float64(c.many) {
				t.Errorf("up to %d in a window, %.1f%%", most, share)
			}
		})
	}
}
