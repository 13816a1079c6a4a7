package limiter_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func limitOf(t *testing.T, p limiter.Policy) *limiter.Limit {
	t.Helper()
	l, err := limiter.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func bucketOf(t *testing.T, count int64, per time.Duration, burst int64) *limiter.Limit {
	t.Helper()
	return limitOf(t, limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: count, Per: per}, Burst: burst})
}

// passed is how many of n at once pass.
func passed(l *limiter.Limit, key string, n int) (passed int) {
	for range n {
		if l.Allow(key) {
			passed++
		}
	}
	return passed
}

// vulcand/oxy #132: a source that never pauses does not become a new one.
func TestCase14ActiveSourceDoesNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bucketOf(t, 1, time.Second, 5)
		n := passed(l, "k", 5)
		for range 240 {
			time.Sleep(500 * time.Millisecond)
			got := passed(l, "k", 1)
			if n += got; n > 125 {
				t.Fatalf("%d passed", n)
			}
		}
		if n != 125 {
			t.Errorf("%d passed in 120 s, want 5 and one each second", n)
		}
	})
}

// HAProxy's src_conn_rate: three in a minute pass, the fourth does not.
func TestScenarioH1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitOf(t, limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 3, Window: time.Minute, Status: 403})
		if n := passed(l, "k", 3); n != 3 {
			t.Fatalf("%d passed", n)
		}
		if d := l.Take("k", 1); d.Allowed || d.Status != 403 {
			t.Errorf("the fourth: %+v", d)
		}
	})
}

// Envoy's local rate limit: nothing is saved up above the most that a bucket
// holds.
func TestScenarioE1E2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := bucketOf(t, 1, time.Second, 1)
		for i, want := range []int{1, 1, 1} { // at once, after one fill, after two
			if n := passed(one, "k", 3); n != want {
				t.Errorf("E1, step %d: %d passed", i, n)
			}
			time.Sleep(time.Duration(i+1) * time.Second)
		}
		for fill, want := range map[int64]int{2: 2, 1: 1} {
			two := bucketOf(t, fill, time.Second, 2)
			if n := passed(two, "k", 3); n != 2 {
				t.Errorf("E2: %d of the first passed", n)
			}
			time.Sleep(time.Second)
			if n := passed(two, "k", 3); n != want {
				t.Errorf("E2, %d a fill: %d passed", fill, n)
			}
		}
	})
}

// Traefik's rate limiter: the first requests of a key that come together get
// exactly the burst, and what passes in two seconds is burst and rate.
func TestScenarioT2T5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		var all sync.WaitGroup
		l := bucketOf(t, 1, time.Hour, 10)
		for range 100 {
			all.Go(func() {
				if l.Allow("new") {
					n.Add(1)
				}
			})
		}
		all.Wait()
		if n.Load() != 10 {
			t.Errorf("T5: %d passed", n.Load())
		}
		for _, c := range []struct {
			count       int64
			per         time.Duration
			burst, load int64
			want        int
		}{
			{100, time.Second, 1, 400, 200}, {100, time.Second, 100, 200, 300}, {100, time.Second, 200, 300, 400},
			{5, 10 * time.Second, 1, 100, 1}, {50, 500 * time.Millisecond, 1, 400, 200},
		} {
			l := bucketOf(t, c.count, c.per, c.burst)
			got := 0
			for range 2 * c.load {
				got += passed(l, "k", 1)
				time.Sleep(time.Second / time.Duration(c.load))
			}
			// Loads are multiples of the rate: what comes between two tokens is lost.
			if got > c.want || got < c.want*95/100-1 {
				t.Errorf("T2, %+v: %d passed", c, got)
			}
		}
	})
}
