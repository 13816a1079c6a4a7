package limitertest

import (
	"math/big"
	"sort"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A reference is one key under one algorithm, written to be obviously right:
// every take is kept, numbers are exact fractions, and what is not a question
// of yes or no is found by searching.
type reference interface {
	fits(now time.Time, cost int64) bool
	take(now time.Time, cost int64)
	giveBack(at, now time.Time, cost int64)
}

func newReference(p limiter.Policy) reference {
	switch p.Algorithm {
	case limiter.FixedWindow:
		return &fixedReference{takes{p: p}}
	case limiter.SlidingWindowLog:
		return &logReference{takes{p: p}}
	case limiter.SlidingWindowCounter:
		return &counterReference{takes{p: p}}
	}
	return &bucketReference{p: p, level: new(big.Rat)}
}

// decide is the whole answer for a cost, before it is taken.
func decide(r reference, p limiter.Policy, now time.Time, cost int64) Want {
	limit, longest := p.Limit, 2*p.Window
	if !p.Algorithm.Windowed() {
		limit = p.Burst
		longest = time.Duration(limit)*(p.Rate.Per/time.Duration(p.Rate.Count)+1) + 1
	}
	wait := func(cost int64) time.Duration {
		if cost > limit {
			return limiter.Never
		}
		return time.Duration(sort.Search(int(longest), func(ns int) bool {
			return r.fits(now.Add(time.Duration(ns)), cost)
		}))
	}
	w := Want{RetryAfter: wait(cost)}
	w.Allowed = w.RetryAfter == 0
	w.Remaining = int64(sort.Search(int(limit), func(n int) bool { return !r.fits(now, int64(n)+1) }))
	if w.Remaining < limit {
		w.ResetAfter = wait(w.Remaining + 1)
	}
	return w
}

// A bucketReference is the level of a bucket that leaks.
type bucketReference struct {
	p     limiter.Policy
	level *big.Rat
	at    time.Time
}

func (r *bucketReference) leaked(from, to time.Time) *big.Rat {
	ns := big.NewRat(int64(to.Sub(from)), int64(r.p.Rate.Per))
	return ns.Mul(ns, new(big.Rat).SetInt64(r.p.Rate.Count))
}

func positive(x *big.Rat) *big.Rat {
	if x.Sign() < 0 {
		return new(big.Rat)
	}
	return x
}

func (r *bucketReference) levelAt(now time.Time) *big.Rat {
	if r.at.IsZero() {
		return new(big.Rat)
	}
	return positive(new(big.Rat).Sub(r.level, r.leaked(r.at, now)))
}

func (r *bucketReference) fits(now time.Time, cost int64) bool {
	after := r.levelAt(now)
	after.Add(after, new(big.Rat).SetInt64(cost))
	return after.Cmp(new(big.Rat).SetInt64(r.p.Burst)) <= 0
}

func (r *bucketReference) take(now time.Time, cost int64) {
	level := r.levelAt(now)
	r.level, r.at = level.Add(level, new(big.Rat).SetInt64(cost)), now
}

func (r *bucketReference) giveBack(at, now time.Time, cost int64) {
	back := positive(new(big.Rat).Sub(new(big.Rat).SetInt64(cost), r.leaked(at, now)))
	level := r.levelAt(now)
	r.level, r.at = positive(level.Sub(level, back)), now
}

// takes are all that was ever taken.
type takes struct {
	p    limiter.Policy
	list []taken
}

type taken struct {
	at time.Time
	n  int64
}

func (l *takes) take(now time.Time, cost int64) { l.list = append(l.list, taken{now, cost}) }

func (l *takes) giveBack(at, _ time.Time, cost int64) {
	for i := range l.list {
		if one := &l.list[i]; one.at.Equal(at) {
			back := min(cost, one.n)
			one.n, cost = one.n-back, cost-back
		}
	}
}

func (l *takes) sum(which func(at time.Time) bool) (n int64) {
	for _, one := range l.list {
		if which(one.at) {
			n += one.n
		}
	}
	return n
}

// in counts the takes of the window that begins at start.
func (l *takes) in(start time.Time) int64 {
	return l.sum(func(at time.Time) bool { return at.UTC().Truncate(l.p.Window).Equal(start) })
}

type fixedReference struct{ takes }

func (r *fixedReference) fits(now time.Time, cost int64) bool {
	return r.in(now.UTC().Truncate(r.p.Window))+cost <= r.p.Limit
}

type logReference struct{ takes }

func (r *logReference) fits(now time.Time, cost int64) bool {
	return r.sum(func(at time.Time) bool { return now.Sub(at) < r.p.Window })+cost <= r.p.Limit
}

type counterReference struct{ takes }

func (r *counterReference) fits(now time.Time, cost int64) bool {
	start := now.UTC().Truncate(r.p.Window)
	share := big.NewRat(int64(start.Add(r.p.Window).Sub(now)), int64(r.p.Window))
	used := share.Mul(share, new(big.Rat).SetInt64(r.in(start.Add(-r.p.Window))))
	used.Add(used, new(big.Rat).SetInt64(r.in(start)+cost))
	return used.Cmp(new(big.Rat).SetInt64(r.p.Limit)) <= 0
}
