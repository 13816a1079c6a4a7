package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// One budget for everything together.
func ExampleSingle() {
	mails, err := limiter.NewSingle(limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 3, Window: 24 * time.Hour})
	if err != nil {
		panic(err)
	}
	fmt.Println(mails.Allow(), mails.AllowN(3), mails.AllowN(2), mails.Allow())
	fmt.Println(mails.Peek(1).Allowed)
	// Output:
	// true false true false
	// false
}

// Peek says what could be taken without taking it: a look before a costly
// preparation.
func ExampleLimit_Peek() {
	reports, err := limiter.New(limiter.Policy{
		Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 10,
	})
	if err != nil {
		panic(err)
	}
	reports.AllowN("alice", 8)
	d := reports.Peek("alice", 3)
	fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	// Output: false 2 1h0m0s
}

// TestAllowIsTake: the short form decides as the long one and leaves the same
// behind, for known keys and new ones, fitting costs, others and none.
func TestAllowIsTake(t *testing.T) {
	for _, a := range limiter.Algorithms {
		synctest.Test(t, func(t *testing.T) {
			p := policy(a, 7, time.Minute)
			short, long := open(t, p), open(t, p)
			single, err := limiter.NewSingle(p)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(3, 4))
			for i := range 3000 {
				time.Sleep(time.Duration(r.Int64N(int64(20 * time.Second))))
				key, cost := "a", r.Int64N(10)-1
				if i%7 == 0 {
					key = fmt.Sprint(i)
				}
				d := long.Take(key, cost)
				if got := short.AllowN(key, cost); got != d.Allowed {
					t.Fatalf("%s: AllowN(%d) is %v, Take %+v", a, cost, got, d)
				}
				if one, other := short.Peek(key, 1), long.Peek(key, 1); one.Remaining != other.Remaining || one.ResetAfter != other.ResetAfter {
					t.Fatalf("%s: %+v after AllowN, %+v after Take", a, one, other)
				}
				if key == "a" && single.Take(cost).Allowed != d.Allowed {
					t.Fatalf("%s: a Single does not decide %+v", a, d)
				}
			}
			p.Limit, p.Burst = 700, 700
			if err := single.Adopt(p); err != nil || !single.AllowN(600) || single.Allow() && single.AllowN(700) {
				t.Errorf("%s: adopted %v", a, err)
			}
		})
	}
}

func TestAllowAllocatesNothing(t *testing.T) {
	for _, a := range limiter.Algorithms {
		l := open(t, policy(a, 10, time.Hour))
		l.AllowN("known", 10)
		if n := testing.AllocsPerRun(200, func() { l.Allow("known") }); n != 0 {
			t.Errorf("%s: %v allocations", a, n)
		}
	}
}

// TestLimitAsLimiter: a Limit alone is a Limiter of one key.
func TestLimitAsLimiter(t *testing.T) {
	p := policy(limiter.FixedWindow, 2, time.Hour)
	ask := func(l limiter.Limiter, k limiter.Key) limiter.Permit {
		got, err := l.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{k}})
		if err != nil {
			t.Fatal(err)
		}
		got.Release()
		return got
	}
	l := open(t, p)
	if d := ask(l, limiter.Key{Value: "a", Cost: 2}); !d.Allowed || d.Policy != "test" || d.Remaining != 0 || len(d.All) != 1 {
		t.Errorf("%+v", d)
	}
	if d := ask(l, limiter.Key{Value: "a"}); d.Allowed || d.Reason != limiter.ReasonLimit {
		t.Errorf("%+v", d)
	}
	if d := ask(l, limiter.Key{Value: "a", Free: true}); !d.Allowed {
		t.Errorf("a cost of zero: %+v", d)
	}
	if d := ask(l, limiter.Key{Value: "a", Skip: true}); !d.Allowed || len(d.All) != 0 {
		t.Errorf("skipped: %+v", d)
	}
	if d := ask(l, limiter.Key{Missing: true}); d.Allowed || d.Reason != limiter.ReasonMissingKey || d.Status != 400 || d.RetryAfter != limiter.Never {
		t.Errorf("missing: %+v", d)
	}
	p.DryRun = true
	l = open(t, p)
	if d := ask(l, limiter.Key{Value: "a", Cost: 3}); !d.Allowed || d.Policy != "" || d.All[0].Allowed {
		t.Errorf("dry run: %+v", d)
	}
}
