package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestIdleLogsGiveBack: what a million keys' logs took comes back after they
// have left the window, as other keys are asked for: what is then left of an
// idle key is no more than under any other algorithm. With -short, and under the
// race detector, it is 50 000 keys.
func TestIdleLogsGiveBack(t *testing.T) {
	n := manyKeys
	if testing.Short() {
		n = 50_000
	}
	used := func(a limiter.Algorithm) (perKey float64) {
		synctest.Test(t, func(t *testing.T) {
			before := heap()
			p := policy(a, 8, time.Minute)
			p.MaxKeys = n
			l := open(t, p)
			for range 4 {
				for i := range n {
					l.Allow(string(benchKey(make([]byte, 8), i)))
				}
				time.Sleep(time.Second)
			}
			full := float64(heap()-before) / float64(n)
			time.Sleep(time.Hour)
			for range 5 * n { // one key that is known
				l.Allow("busy")
			}
			perKey = float64(heap()-before) / float64(n)
			t.Logf("%s: %.0f bytes a key with four requests, %.0f when idle, %d keys", a, full, perKey, l.Keys())
			if a == limiter.SlidingWindowLog && l.Keys() > n/100 {
				t.Errorf("%d idle logs of %d are left", l.Keys(), n)
			}
		})
		return perKey
	}
	log := used(limiter.SlidingWindowLog)
	for _, a := range limiter.Algorithms {
		if a != limiter.SlidingWindowLog {
			if other := used(a); log > other {
				t.Errorf("an idle key's log takes %.0f bytes, a %s %.0f", log, a, other)
			}
		}
	}
}
