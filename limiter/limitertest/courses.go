package limitertest

import (
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// sevenPerMinute: nginx rounds 7 a minute to 116/1000 a second, which is 37 s
// too slow by the 701st.
func sevenPerMinute(t *testing.T, s Store) {
	for _, burst := range []int64{1, 2} {
		open(t, s, bucket(limiter.TokenBucket, 7, time.Minute, burst))
	}
	start := s.Now()
	for i := range 2 {
		for range 701 + i { // a burst of two goes one ahead
			d := s.Take(Charge{i, "a", 1})[0]
			if !d.Allowed {
				s.Sleep(d.RetryAfter)
				s.Take(Charge{i, "a", 1})
			}
		}
		lag := s.Now().Sub(start) - 6000*time.Second
		// With a burst of one each request waits for the next whole tick, and
		// the one after is counted from there; a burst of two hides that.
		if lag < 0 || lag > 701*s.Tick() || i == 1 && lag > 0 {
			t.Errorf("burst %d: the last went %v after 6000 s", i+1, lag)
		}
		start = s.Now()
	}
}

func logAbove255(t *testing.T, s Store) {
	open(t, s, policy(limiter.SlidingWindowLog, 300, time.Minute))
	passed := 0
	for range 301 {
		passed += passes(s, 0, "a", 1)
		s.Sleep(s.Tick())
	}
	if passed != 300 {
		t.Errorf("%d of 301 passed a limit of 300", passed)
	}
}

// changingTheRate: milvus #35699 filled the bucket with each change.
func changingTheRate(t *testing.T, s Store) {
	for i, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.LeakyBucket} {
		open(t, s, bucket(a, 1, time.Second, 10))
		passed := passes(s, i, "a", 20)
		for n := range 20 {
			if err := s.Adopt(i, bucket(a, int64(2-n%2), time.Second, 10)); err != nil {
				t.Fatal(err)
			}
			s.Sleep(100 * time.Millisecond)
			passed += passes(s, i, "a", 20)
		}
		// Ten intervals of 0.1 s at each rate refill three.
		if passed < 10+2 || passed > 10+3 {
			t.Errorf("%s: %d passed, want 13 or one less for rounding", a, passed)
		}
	}
}

// keptEmpty: oxy #132 forgot a client that never paused.
func keptEmpty(t *testing.T, s Store) {
	open(t, s, bucket(limiter.TokenBucket, 1, time.Second, 5))
	passed := 0
	for range 241 {
		passed += passes(s, 0, "a", 1)
		s.Sleep(500 * time.Millisecond)
	}
	if passed != 5+120 {
		t.Errorf("%d passed in 120 s, want 125", passed)
	}
}

func logInAnyWindow(t *testing.T, s Store) {
	const limit, window = 6, 10 * time.Second
	open(t, s, policy(limiter.SlidingWindowLog, limit, window))
	r := random()
	var passed []time.Time
	for range 1000 {
		if passes(s, 0, "a", 1) == 1 {
			passed = append(passed, s.Now())
		}
		s.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))).Truncate(s.Tick()))
	}
	for i := range passed {
		for j := i + limit; j < len(passed); j++ {
			if d := passed[j].Sub(passed[i]); d < window {
				t.Fatalf("%d passed within %v", j-i+1, d)
			}
		}
	}
	if len(passed) < 500 {
		t.Errorf("only %d of about 600 passed", len(passed))
	}
}

func tokenAndLeaky(t *testing.T, s Store) {
	r := random()
	for opened := 0; opened < 40; {
		rate, err := limiter.NewRate(1+r.Int64N(1000), time.Duration(1+r.Int64N(1e10)))
		if err != nil {
			continue
		}
		burst := 1 + r.Int64N(20)
		token, leaky := opened, opened+1
		open(t, s, bucket(limiter.TokenBucket, rate.Count, rate.Per, burst))
		open(t, s, bucket(limiter.LeakyBucket, rate.Count, rate.Per, burst))
		opened += 2
		for range 200 {
			cost := r.Int64N(burst + 2)
			a, b := s.Take(Charge{token, "a", cost})[0], s.Take(Charge{leaky, "a", cost})[0]
			if a != b {
				t.Fatalf("%v burst %d cost %d: token bucket %+v, leaky bucket %+v", rate, burst, cost, a, b)
			}
			if a.Allowed && r.IntN(4) == 0 {
				s.Sleep(time.Duration(r.Int64N(int64(rate.Interval()) + 1)).Truncate(s.Tick()))
				s.Return(a.At, Charge{token, "a", cost}, Charge{leaky, "a", cost})
			}
			s.Sleep(time.Duration(r.Int64N(int64(rate.Interval())*2 + 1)).Truncate(s.Tick()))
		}
	}
}

// loads is Traefik's table: what passes of a load L for a time is rate × time
// + burst.
func loads(t *testing.T, s Store) {
	for i, c := range []struct {
		count  int64
		per    time.Duration
		burst  int64
		load   int64 // a second
		first  int   // at once, before the load
		during time.Duration
		want   int
	}{
		{100, time.Second, 1, 400, 0, 2 * time.Second, 200},
		{100, time.Second, 100, 200, 50, 2 * time.Second, 300 - 1},
		{100, time.Second, 100, 200, 150, 2 * time.Second, 300 - 1},
		{100, time.Second, 200, 200, 300, 2 * time.Second, 400 - 1},
		{5, 10 * time.Second, 1, 100, 0, 2 * time.Second, 1},
		{5, 10 * time.Second, 1, 100, 0, 60 * time.Second, 30},
		{1, time.Minute, 1, 100, 0, 60 * time.Second, 1},
		{50, 500 * time.Millisecond, 1, 300, 0, 2 * time.Second, 200},
	} {
		open(t, s, bucket(limiter.TokenBucket, c.count, c.per, c.burst))
		start := s.Now()
		passed := passes(s, i, "a", c.first)
		for n := range c.load * int64(c.during/time.Second) {
			s.Sleep(start.Add(time.Duration(n) * time.Second / time.Duration(c.load)).Sub(s.Now()))
			passed += passes(s, i, "a", 1)
		}
		if passed != c.want {
			t.Errorf("%d/%v burst %d, load %d/s: %d passed in %v, want %d", c.count, c.per, c.burst, c.load, passed, c.during, c.want)
		}
	}
}

func longRunRate(t *testing.T, s Store) {
	open(t, s, bucket(limiter.TokenBucket, 100, time.Second, 100))
	passed := 0
	for range 2500 {
		passed += passes(s, 0, "a", 1)
		s.Sleep(2 * time.Millisecond)
	}
	if passed < 599 || passed > 601 {
		t.Errorf("%d of 2500 passed in 5 s, want 600", passed)
	}
}

// bothOrders: routes may name the same limits in different orders, at once.
func bothOrders(t *testing.T, s Store) {
	open(t, s, example(limiter.TokenBucket))
	open(t, s, policy(limiter.FixedWindow, 100, time.Hour))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			s.Take(Charge{i % 2, "a", 1}, Charge{1 - i%2, "a", 1}, Charge{i % 2, "b", 0})
		})
	}
	all.Wait()
	// Twenty asked, five passed the first: the second was charged for five.
	if d := s.Peek(Charge{1, "a", 1}); d.Remaining != 95 {
		t.Errorf("%d left of 100 after five passed", d.Remaining)
	}
}

func windowOfABucket(t *testing.T, s Store) {
	for i, c := range []struct {
		p    limiter.Policy
		want time.Duration
	}{
		{bucket(limiter.TokenBucket, 5, time.Second, 10), 2 * time.Second},
		{bucket(limiter.LeakyBucket, 7, time.Minute, 7), time.Minute},
		{bucket(limiter.TokenBucket, 1000, time.Second, 1), time.Millisecond},
	} {
		open(t, s, c.p)
		if d := s.Peek(Charge{i, "a", 1}); d.Window != c.want {
			t.Errorf("a window of %v, want %v", d.Window, c.want)
		}
	}
}
