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
