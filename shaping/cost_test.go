package shaping

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A cost is charged to all limits or to none, one that never fits says so, and
// one of nothing looks.
func TestChainCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("a", 1, 10), tokens("b", 1, 100), line("q", 1, 1, time.Second))
		ask := func(a, b limiter.Key) limiter.Permit {
			p, err := c.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{a, b, {Value: "k"}}})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		left := func() [2]int64 { return [2]int64{c.peek(0, "k").Remaining, c.peek(1, "k").Remaining} }
		cost := func(n int64) limiter.Key { return limiter.Key{Value: "k", Cost: n} }
		if p := ask(cost(4), cost(60)); !p.Allowed || left() != [2]int64{6, 40} {
			t.Fatalf("%+v, left %v", p.Decision, left())
		}
		// Refused by the second: charged to none.
		if p := ask(cost(4), cost(60)); p.Allowed || p.Policy != "b" || p.RetryAfter != 20*time.Second || left() != [2]int64{6, 40} {
			t.Errorf("%+v, left %v", p.Decision, left())
		}
		// More than there can ever be: Never, though b would have let it pass later.
		if p := ask(cost(11), cost(60)); p.Allowed || p.Policy != "a" || p.RetryAfter != limiter.Never || left() != [2]int64{6, 40} {
			t.Errorf("%+v, left %v", p.Decision, left())
		}
		time.Sleep(time.Second) // the queue is free again, and a token has come to each
		// Free where nothing is left, too.
		ask(cost(7), limiter.Key{Value: "k", Free: true})
		if left() != [2]int64{0, 41} {
			t.Fatalf("left %v", left())
		}
		time.Sleep(time.Millisecond)
		// It passes after 999 ms in the queue, in which a token has come to each.
		if p := ask(limiter.Key{Value: "k", Free: true}, limiter.Key{Value: "k", Free: true}); !p.Allowed || left() != [2]int64{1, 42} {
			t.Errorf("%+v, left %v", p.Decision, left())
		}
		// Of two more the second finds
		// no place, and has back what it paid.
		go func() {
			_, _ = c.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{cost(1), cost(1), {Value: "k"}}})
		}()
		synctest.Wait()
		before := left()
		if p := ask(limiter.Key{Value: "k", Free: true}, cost(30)); p.Allowed || p.Policy != "q" || left() != before {
			t.Errorf("%+v, left %v, before %v", p.Decision, left(), before)
		}
		time.Sleep(time.Minute)
	})
}
