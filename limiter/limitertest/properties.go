package limitertest

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// properties are what holds for any course of events: of a store as a whole,
// or of each algorithm.
var properties = []struct {
	name  string
	check func(*testing.T, Store)
	each  func(*testing.T, Store, limiter.Algorithm)
}{
	{name: "RandomWalk", each: walk},
	{name: "Case20ExactlyTheLimitAtOnce", each: exactlyTheLimit},
	{name: "Case32RetryAfterIsTheFirstInstant", each: retryAfterIsTrue},
	{name: "O3_CostAboveTheLimit", each: costAboveTheLimit},
	{name: "CostZeroLooks", each: costZeroLooks},
	{name: "PeekChangesNothing", each: peekChangesNothing},
	{name: "ReturnRestores", each: returnRestores},
	{name: "ReturnInventsNothing", each: returnInventsNothing},
	{name: "T5_FirstRequestsAtOnce", each: firstRequestsAtOnce},
	{name: "AdoptKeepsWhatIsUsed", each: adoptKeeps},
	{name: "AdoptBelowWhatIsUsed", each: adoptBelow},
	{name: "Case04SevenPerMinute", check: sevenPerMinute},
	{name: "Case07LogAbove255", check: logAbove255},
	{name: "Case11ChangingTheRateRefillsNothing", check: changingTheRate},
	{name: "Case14KeptEmpty", check: keptEmpty},
	{name: "SlidingLogInAnyWindow", check: logInAnyWindow},
	{name: "TokenAndLeakyAgree", check: tokenAndLeaky},
	{name: "T2_Loads", check: loads},
	{name: "X4_LongRunRate", check: longRunRate},
	{name: "E4_TwoLimitsInBothOrders", check: bothOrders},
	{name: "Window", check: windowOfABucket},
}

// passes takes n requests of one each and counts those that pass.
func passes(s Store, limit int, key string, n int) (passed int) {
	for range n {
		if s.Take(Charge{limit, key, 1})[0].Allowed {
			passed++
		}
	}
	return passed
}

func random() *rand.Rand { return rand.New(rand.NewPCG(7, 7)) }

func exactlyTheLimit(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, policy(a, 1, time.Minute))
	open(t, s, policy(a, 5, time.Minute))
	for i, want := range []int{1, 5} {
		if n := passes(s, i, "a", 20); n != want {
			t.Errorf("%d of 20 passed a limit of %d", n, want)
		}
	}
}

// retryAfterIsTrue: apisix #9964 told clients to come back after 0 s.
func retryAfterIsTrue(t *testing.T, s Store, a limiter.Algorithm) {
	p := policy(a, 7, 60*time.Second)
	open(t, s, p)
	r := random()
	for range 100 {
		s.Sleep(time.Duration(r.Int64N(int64(p.Window + 90*time.Second))).Truncate(s.Tick()))
		for {
			c := Charge{0, "a", 1 + r.Int64N(7)}
			d := s.Take(c)[0]
			if d.Allowed {
				s.Sleep(time.Duration(r.Int64N(int64(5 * time.Second))).Truncate(s.Tick()))
				continue
			}
			sound(t, p, d, s.Now())
			if d.ResetAfter <= 0 || d.RetryAfter > 2*time.Minute {
				t.Fatalf("reset after %v, retry after %v", d.ResetAfter, d.RetryAfter)
			}
			s.Sleep(d.RetryAfter - s.Tick())
			if early := s.Take(c)[0]; early.Allowed {
				t.Fatalf("passed %v before %v were over", s.Tick(), d.RetryAfter)
			}
			s.Sleep(s.Tick())
			if again := s.Take(c)[0]; !again.Allowed {
				t.Fatalf("waited %v as told and was refused for %v", d.RetryAfter, again.RetryAfter)
			}
			break
		}
	}
}

func costAboveTheLimit(t *testing.T, s Store, a limiter.Algorithm) {
	p := example(a)
	open(t, s, p)
	for _, cost := range []int64{6, 1 << 40, 1<<63 - 1} {
		d := s.Take(Charge{0, "a", cost})[0]
		sound(t, p, d, s.Now())
		if d.RetryAfter != limiter.Never || d.Remaining != 5 {
			t.Errorf("cost %d of 5: %+v", cost, d)
		}
	}
	if n := passes(s, 0, "a", 6); n != 5 {
		t.Errorf("%d of 5 left after refusals", n)
	}
}

func costZeroLooks(t *testing.T, s Store, a limiter.Algorithm) {
	p := example(a)
	open(t, s, p)
	for used := range int64(6) {
		for _, cost := range []int64{0, -3} {
			d := s.Take(Charge{0, "a", cost})[0]
			sound(t, p, d, s.Now())
			if !d.Allowed || d.Remaining != 5-used || d.Peeked {
				t.Errorf("cost %d with %d used: %+v", cost, used, d)
			}
		}
		passes(s, 0, "a", 1)
	}
}

func peekChangesNothing(t *testing.T, s Store, a limiter.Algorithm) {
	p := example(a)
	open(t, s, p)
	r := random()
	for range 50 {
		before := s.Peek(Charge{0, "a", 2})
		sound(t, p, before, s.Now())
		for range 3 {
			if d := s.Peek(Charge{0, "a", 2}); d != before || !d.Peeked {
				t.Fatalf("peeked %+v, then %+v", before, d)
			}
		}
		d := s.Take(Charge{0, "a", 2})[0]
		if d.Allowed != before.Allowed || d.RetryAfter != before.RetryAfter || d.Peeked {
			t.Fatalf("peeked %+v, then took %+v", before, d)
		}
		s.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))).Truncate(s.Tick()))
	}
}

func returnRestores(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, example(a))
	r := random()
	for range 100 {
		c := Charge{0, "a", 1 + r.Int64N(5)}
		before := s.Peek(c)
		if d := s.Take(c)[0]; d.Allowed {
			s.Return(d.At, c)
			if after := s.Peek(c); after != before {
				t.Fatalf("%+v before, %+v after a return", before, after)
			}
		}
		s.Take(Charge{0, "a", 1})
		s.Sleep(time.Duration(r.Int64N(int64(4 * time.Second))).Truncate(s.Tick()))
	}
	s.Return(s.Now(), Charge{0, "nobody", 1}, Charge{0, "a", 0}, Charge{0, "a", -2})
	if d := s.Peek(Charge{0, "nobody", 1}); d.Remaining != 5 {
		t.Errorf("a return to a key never seen left %d", d.Remaining)
	}
}

// returnInventsNothing runs two limits alike, but for takes on the first that
// are returned later: it must never have more left than the other.
func returnInventsNothing(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, example(a))
	open(t, s, example(a))
	r := random()
	for range 300 {
		extra := Charge{0, "a", 1 + r.Int64N(3)}
		took := s.Take(extra)[0]
		for range r.IntN(4) {
			s.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))).Truncate(s.Tick()))
			cost := 1 + r.Int64N(3)
			// Only what both let through: the second has at least as much.
			if s.Take(Charge{0, "a", cost})[0].Allowed && !s.Take(Charge{1, "a", cost})[0].Allowed {
				t.Fatal("passed only with a take outstanding")
			}
		}
		if took.Allowed {
			s.Return(took.At, extra)
		}
		if with, without := s.Peek(Charge{0, "a", 1}), s.Peek(Charge{1, "a", 1}); with.Remaining > without.Remaining {
			t.Fatalf("%d left after a return, %d without the take", with.Remaining, without.Remaining)
		}
	}
}

func firstRequestsAtOnce(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, example(a))
	for _, key := range []string{"a", "b", "c"} {
		var all sync.WaitGroup
		passed := make(chan int, 15)
		for range 15 {
			all.Go(func() { passed <- passes(s, 0, key, 1) })
		}
		all.Wait()
		close(passed)
		n := 0
		for one := range passed {
			n += one
		}
		if n != 5 {
			t.Errorf("%d of 15 at once passed a limit of 5", n)
		}
	}
}

func adoptKeeps(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, policy(a, 10, 10*time.Second))
	s.Sleep(s.Now().Truncate(time.Minute).Add(time.Minute).Sub(s.Now()))
	adopt := func(limit int64, window time.Duration) int64 {
		t.Helper()
		if err := s.Adopt(0, policy(a, limit, window)); err != nil {
			t.Fatal(err)
		}
		d := s.Peek(Charge{0, "a", 1})
		sound(t, policy(a, limit, window), d, s.Now())
		return d.Remaining
	}
	s.Take(Charge{0, "a", 4})
	for _, c := range []struct {
		limit  int64
		window time.Duration
		left   int64
	}{
		{20, 20 * time.Second, 16}, {20, 10 * time.Second, 16}, {5, 10 * time.Second, 1},
		{3, 10 * time.Second, 0}, {5, 15 * time.Second, 2}, {10, 10 * time.Second, 7},
	} {
		if left := adopt(c.limit, c.window); left != c.left {
			t.Errorf("%d left of %d in %v, want %d", left, c.limit, c.window, c.left)
		}
	}
	bad := policy(a, 0, time.Second)
	if err := s.Adopt(0, bad); err == nil {
		t.Error("a policy of nothing was adopted")
	}
	other := limiter.TokenBucket
	if a == other {
		other = limiter.FixedWindow
	}
	if err := s.Adopt(0, example(other)); err == nil {
		t.Errorf("a %s went on as a %s", a, other)
	}
	if d := s.Peek(Charge{0, "a", 1}); d.Limit != 10 || d.Remaining != 7 {
		t.Errorf("after a refused Adopt: %d of %d left", d.Remaining, d.Limit)
	}
}

// adoptBelow cuts the limit below what is used, also in the window before: the
// key is empty, no worse, and RetryAfter stays true.
func adoptBelow(t *testing.T, s Store, a limiter.Algorithm) {
	open(t, s, policy(a, 10, 10*time.Second))
	s.Sleep(s.Now().Truncate(time.Minute).Add(time.Minute).Sub(s.Now()))
	passes(s, 0, "a", 10)
	s.Sleep(15 * time.Second)
	passes(s, 0, "a", 10)
	p := policy(a, 3, 10*time.Second)
	if err := s.Adopt(0, p); err != nil {
		t.Fatal(err)
	}
	for _, cost := range []int64{0, 1, 3, 4} {
		d := s.Take(Charge{0, "a", cost})[0]
		sound(t, p, d, s.Now())
		if d.Remaining != 0 || d.Allowed != (cost == 0) {
			t.Errorf("cost %d: %+v", cost, d)
		}
	}
	wait := s.Peek(Charge{0, "a", 1}).RetryAfter
	if s.Sleep(wait - s.Tick()); passes(s, 0, "a", 1) != 0 {
		t.Errorf("passed before %v were over", wait)
	}
	if s.Sleep(s.Tick()); passes(s, 0, "a", 1) != 1 {
		t.Errorf("refused after %v as told", wait)
	}
}

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
