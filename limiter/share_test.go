package limiter_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestThousandths: parts of a rate are exact, or less.
func TestThousandths(t *testing.T) {
	for _, c := range []struct {
		rate  string
		n     int64
		want  limiter.Rate
		exact bool
	}{
		{"10/s", 800, limiter.Rate{Count: 1, Per: 125 * time.Millisecond}, true},
		{"7/m", 875, limiter.Rate{Count: 49, Per: 8 * time.Minute}, true},
		{"1000000000/s", 999, limiter.Rate{Count: 999, Per: 1000}, true},
		{"1/36500d", 1, limiter.Rate{Count: 1, Per: limiter.MaxPeriod}, false},
	} {
		r, err := limiter.ParseRate(c.rate)
		if err != nil {
			t.Fatal(err)
		}
		got, exact := r.Thousandths(c.n)
		if c.exact && got != c.want || exact != c.exact || got.Per > limiter.MaxPeriod || got.Count < 1 {
			t.Errorf("%d thousandths of %s are %+v, %v", c.n, c.rate, got, exact)
		}
	}
	// Whatever the rate, the parts are no more than the whole, and exact ones are all of it.
	random := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		r, err := limiter.NewRate(1+random.Int64N(limiter.MaxRateCount), time.Duration(1+random.Int64N(int64(limiter.MaxPeriod))))
		if err != nil {
			continue
		}
		n := 1 + random.Int64N(999)
		a, exactA := r.Thousandths(n)
		b, exactB := r.Thousandths(1000 - n)
		sum := new(big.Rat).Add(big.NewRat(a.Count, int64(a.Per)), big.NewRat(b.Count, int64(b.Per)))
		if c := sum.Cmp(big.NewRat(r.Count, int64(r.Per))); exactA && exactB && c != 0 || a.Count > 1 && b.Count > 1 && c > 0 {
			t.Fatalf("%d thousandths of %+v are %+v, and the others %+v", n, r, a, b)
		}
	}
	if got, exact := (limiter.Rate{}).Thousandths(5); got.Count != 0 || !exact {
		t.Errorf("of no rate: %+v", got)
	}
}

// TestRestOf: something is left as long as there is something, and the largest burst
// stays a number.
func TestRestOf(t *testing.T) {
	for _, c := range []struct {
		n     int64
		share float64
		want  int64
	}{
		{0, 0.2, 0}, {1, 0.2, 1}, {4, 0.2, 3}, {4, 0.01, 3}, {4, 0.999, 1}, {10, 0.29, 7}, {999, 0.001, 998}, {1001, 0.5, 500},
		{1_000_000_000_000_000_000, 0.2, 800_000_000_000_000_000},
		{math.MaxInt64, 0.001, 9_214_148_664_817_921_031},
	} {
		if got := limiter.RestOf(c.n, limiter.Parts(c.share)); got != c.want {
			t.Errorf("of %d without %v: %d, want %d", c.n, c.share, got, c.want)
		}
	}
}
