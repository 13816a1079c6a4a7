package limiter

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// TestAdoptInventsNothing: whatever the changes, a key never has more left than
// what its limit allows less what it has not yet run out of.
func TestAdoptInventsNothing(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		r := rand.New(rand.NewPCG(2, 3))
		k := newKey(Policy{Algorithm: a, Rate: Rate{7, 60 * time.Second}, Burst: 10})
		k.take(epoch, 10)
		// Back and forth between awkward rates at one instant: nothing drains.
		for range 1000 {
			k.adopt(Policy{Algorithm: a, Rate: Rate{1 + r.Int64N(1000), time.Duration(1000 + r.Int64N(1e12))}, Burst: 10}, epoch)
			if n := k.remaining(epoch); n != 0 {
				t.Fatalf("%s: %d left after a change of rate", a, n)
			}
		}
		// Rounding is upwards, but never past empty.
		k.adopt(Policy{Algorithm: a, Rate: Rate{1, time.Second}, Burst: 10}, epoch)
		if w := k.peek(epoch, 1); w != sec {
			t.Errorf("%s: to wait for %v, want 1s", a, time.Duration(w))
		}
	}
}

// TestAdoptNeverLowersTheDebt: not by the least fraction, from any state.
func TestAdoptNeverLowersTheDebt(t *testing.T) {
	requests := func(whole, count, part, per int64) *big.Rat {
		n := new(big.Rat).SetInt64(whole)
		n.Mul(n, big.NewRat(count, per))
		return n.Add(n, big.NewRat(part, per))
	}
	r := rand.New(rand.NewPCG(6, 3))
	token := newTokenBucket(Policy{Burst: 1000, Rate: Rate{7, 60 * time.Second}})
	leaky := &leakyBucket{1000, 7, 60 * sec}
	var ts tokenState
	var ls leakyState
	token.take(&ts, epoch, 3)
	leaky.take(&ls, epoch, 3)
	now := epoch + 12_345
	before := requests(ts.tat-now, token.count, ts.frac, token.per)
	for range 300 {
		rate, err := NewRate(1+r.Int64N(1000), time.Duration(1000+r.Int64N(1e12)))
		if err != nil {
			t.Fatal(err)
		}
		p := Policy{Rate: rate, Burst: 1000}
		newToken, newLeaky := newTokenBucket(p), newLeakyBucket(p)
		newToken.adopt(token, &ts, now)
		newLeaky.adopt(leaky, &ls, now)
		token, leaky = newToken, newLeaky
		debt := requests(ts.tat-now, token.count, ts.frac, token.per)
		if debt.Cmp(before) < 0 {
			t.Fatalf("token bucket: %v requests of debt became %v", before, debt)
		}
		before = debt
	}
	exact := requests(3, 1, 0, 1)
	exact.Sub(exact, requests(12_345, 7, 0, 60*sec))
	if level := requests(ls.level, leaky.per, ls.part, leaky.per); ls.level > 1000 || level.Cmp(exact) < 0 {
		t.Errorf("leaky bucket: a level of %v became %v", exact, level)
	}
}
