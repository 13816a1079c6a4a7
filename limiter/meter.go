package limiter

import "math/bits"

// A meter is one algorithm with its parameters, behind a pointer, as a call that
// copies them takes longer than it computes; S is what it keeps for a key.
// It is pure: now is an argument, in nanoseconds of Unix time from 0 to 2⁶²
// (the year 2116), there is no float and no lock, and what only looks takes S
// by value and so cannot write.
//
// The zero S is a key that was never seen. A state from a future instant means
// that the clock was set back: it then counts as used no more than everything,
// so that the key is blocked for no longer than by an ordinary exhaustion.
// Looking can only assume that; settle makes it so.
type meter[S, M any] interface {
	// settle brings s up to now: what has run out is dropped, and what lies
	// beyond the worst that a clock never set back could leave is cut off.
	settle(s *S, now int64)

	// wait is the time until cost fits if nothing else comes: 0 now, never
	// if no time is long enough. The cost is above zero.
	wait(s S, now, cost int64) int64
	// remaining is the greatest cost whose wait is 0.
	remaining(s S, now int64) int64
	// rank is the time until s is as good as new times the used share of the
	// limit, rounded up, 0 when it is as good as new. The share keeps an
	// exhausted key above a fresh one where all run out together.
	rank(s S, now int64) int64

	// take uses cost, for which wait was 0 at the same now.
	take(s *S, now, cost int64)
	// giveBack undoes a take made at an earlier instant, as far as that can
	// not let anything extra through: what had drained by now is not returned.
	giveBack(s *S, at, now, cost int64)
	// adopt turns a state of the meter old into one of this meter, keeping
	// how many requests are used, as far as this meter's limit goes.
	adopt(old M, s *S, now int64)

	// quota is the limit, and the nanoseconds in which it becomes available at
	// now.
	quota(now int64) (limit, window int64)
}

const never = int64(Never)

// mulDiv returns a × b ÷ c and the remainder, by way of 128 bits. None is
// negative, and the quotient must fit.
func mulDiv(a, b, c int64) (quo, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, r := bits.Div64(hi, lo, uint64(c))
	return int64(q), int64(r)
}

// mulAddDiv is mulDiv of a × b + d.
func mulAddDiv(a, b, d, c int64) (quo, rem int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(d), 0)
	q, r := bits.Div64(hi+carry, lo, uint64(c))
	return int64(q), int64(r)
}

func ceilMulDiv(a, b, c int64) int64 {
	q, r := mulDiv(a, b, c)
	if r > 0 {
		q++
	}
	return q
}

// A grid is a division of time into windows, aligned as time.Time.Truncate
// aligns in UTC: counted from the start of year 1.
type grid struct {
	length int64
	phase  int64 // how far into its window Unix time 0 is
}

func newGrid(length int64) grid {
	const unixToYear1 = 62135596800 // seconds
	hi, lo := bits.Mul64(unixToYear1, 1e9)
	return grid{length, int64(bits.Rem64(hi, lo, uint64(length)))}
}

// start returns the start of the window that now is in; it may be negative.
func (g grid) start(now int64) int64 {
	in := now%g.length - (g.length - g.phase)
	if in < 0 {
		in += g.length
	}
	return now - in
}
