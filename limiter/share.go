package limiter

import (
	"math"
	"time"
)

// whole is all of something, in thousandths.
const whole = 1000

// Parts is a share in the thousandths that [RestOf] and [Rate.Thousandths] count in,
// the nearest.
func Parts(share float64) int64 { return int64(math.Round(share * whole)) }

// RestOf is how many of n are left where so many thousandths are reserved, rounded
// down: at least one, as long as there is one.
func RestOf(n, parts int64) int64 {
	thousands, more := n/whole, n%whole
	return max(min(n, 1), thousands*(whole-parts)+more*(whole-parts)/whole)
}

// Thousandths is a share of the rate, n of 1000: exactly, or where that would be
// less than 1 in MaxPeriod when written as a fraction, rounded down. The zero Rate
// stays so.
func (r Rate) Thousandths(n int64) (share Rate, exact bool) {
	if r.Count == 0 {
		return r, true
	}
	count, per, of := r.Count, int64(r.Per), int64(whole)
	for _, pair := range [...][2]*int64{{&n, &of}, {&count, &of}, {&per, &n}} {
		g := gcd(*pair[0], *pair[1])
		*pair[0] /= g
		*pair[1] /= g
	}
	count *= n
	for exact = true; per > int64(MaxPeriod)/of; exact = false {
		count, per = count/2, per/2+1
	}
	return Rate{Count: max(1, count), Per: time.Duration(per * of)}, exact
}
