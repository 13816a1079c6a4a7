package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// An AutoRate searches for the highest rate at which an upstream does not
// throttle, when nobody knows it.
//
// It is additive increase and multiplicative decrease in the shape of CUBIC (RFC
// 9438, section 4.2), with a rate in the place of a window. After a decrease it
// comes back quickly to just below the rate that was too much, stays there for
// most of the time, and only then tries for more, faster and faster:
//
//	rate(t) = before × (1 + c × (t − K)³)
//
// where c makes rate(0) the decreased rate, and is larger beyond K. That keeps
// the share of throttled requests small, as there is one decrease in each K or
// more, and finds a doubled limit within some seconds. Until the first decrease
// the rate doubles each second, and so it does after one at the lowest rate: where
// that is too much, the upstream has throttled for another reason than the rate,
// as for what was sent before a restart.
//
// Time counts only while requests wait for their turn: a rate that nobody uses
// is not known to be well (RFC 7661). It reads no clock and draws no lots, so
// that the same events give the same rates. Times are nanoseconds since any epoch.
type AutoRate struct {
	bounds      [2]limiter.Rate
	least, most float64 // these, a second
	rate        float64
	before      float64 // the rate at the last decrease; 0: there was none
	grown       float64 // seconds of use since then
	turn        float64 // K, in seconds
	used        int64   // the last departure of one that had waited
	lowered     int64   // when the last decrease was, and the rest after it over
	settled     int64   // who leaves from then on does so at the rate since
	falls       int64   // decreases that followed each other closely
}

// The shape of the search.
const (
	backOff     = 0.9  // of the rate, at a decrease
	fallOff     = 0.5  // at one that follows within a second, as the limit has fallen
	leastTurn   = 4.0  // seconds from a decrease until the rate is tried again
	turnDepth   = 70   // requests that at least lie between; or slow upstreams would throttle a large share
	accelerated = 12.0 // how much faster it rises above the rate that was too much
	closely     = int64(time.Second)
	restTurns   = int64(2) // that pass unused at the second decrease of those, and twice as many at each further one
	restMost    = 64       // at any
)

// NewAutoRate searches between two rates, from the lower one up.
func NewAutoRate(least, most limiter.Rate) AutoRate {
	a := AutoRate{used: math.MinInt64, lowered: math.MinInt64, settled: math.MinInt64}
	a.Adopt(least, most)
	return a
}

// Adopt goes on between two other rates.
func (a *AutoRate) Adopt(least, most limiter.Rate) {
	a.bounds = [2]limiter.Rate{least, most}
	a.least, a.most = perSecond(least), perSecond(most)
	a.rate = min(max(a.rate, a.least), a.most)
}

// start begins the search at a rate, as far as it is within the bounds.
func (a *AutoRate) start(at limiter.Rate) { a.rate = min(max(perSecond(at), a.least), a.most) }

func perSecond(r limiter.Rate) float64 {
	return float64(r.Count) / time.Duration(r.Per).Seconds()
}

// Rate is the rate for now, which is never above what it was given as the
// highest: between its bounds it is rounded down to a thousandth.
func (a *AutoRate) Rate() limiter.Rate {
	switch {
	case a.rate <= a.least:
		return a.bounds[0]
	case a.rate >= a.most:
		return a.bounds[1]
	}
	per := time.Second
	count := a.rate
	for count < 1000 && per < 1_000_000_000*time.Second {
		count *= 10
		per *= 10
	}
	if count < 1 {
		return a.bounds[0]
	}
	return limiter.Rate{Count: int64(count), Per: per}
}

// Left notes the departure of a request of that cost which the rate had held up.
func (a *AutoRate) Left(now, cost int64) {
	if a.used != math.MinInt64 && now > a.used {
		// What passed beyond a turn or two was no use but a lull, or a pause.
		since := min(time.Duration(now-a.used).Seconds(), 2*float64(cost)/a.rate)
		a.grown += since
		a.rise(since)
	}
	a.used = max(a.used, now)
}

func (a *AutoRate) rise(since float64) {
	if a.before == 0 {
		a.rate *= math.Exp2(since)
	} else {
		c := (1 - a.rateAfter()) / (a.turn * a.turn * a.turn)
		x := a.grown - a.turn
		if x > 0 {
			c *= accelerated
		}
		a.rate = a.before * (1 + c*x*x*x)
	}
	a.rate = min(max(a.rate, a.least), a.most)
}

// rateAfter is what share of the rate the last decrease left.
func (a *AutoRate) rateAfter() float64 {
	if a.falls > 1 {
		return fallOff
	}
	return backOff
}

// Throttled notes that a request was throttled which had left at sent. All that were under way at a
// decrease, and the next one, which followed at the old distance, tell of the
// rate before.
//
// The upstream has nothing left then, and at a rate near its limit has nothing
// for a while, so that what it refused would be refused again, until that may be
// sent no more. So rest turns are to pass unused: one, and more where it is the
// limit that has fallen.
func (a *AutoRate) Throttled(now, sent int64) (rest int64) {
	if sent < a.settled {
		return 0
	}
	if a.rate <= a.least {
		a.before = 0
		a.settled = now + int64(float64(time.Second)/a.rate)
		return 0
	}
	if a.lowered != math.MinInt64 && now-a.lowered < closely {
		a.falls++
	} else {
		a.falls = 1
	}
	a.before = a.rate
	a.rate = max(a.least, a.rate*a.rateAfter())
	a.turn = max(leastTurn, turnDepth/a.before)
	rest = 1
	if a.falls > 1 {
		rest = min(restTurns<<min(a.falls-2, 8), restMost)
	}
	turn := float64(time.Second) / a.rate
	a.grown, a.lowered = 0, now+int64(float64(rest)*turn)
	a.settled = now + int64(turn)
	return rest
}

// Sooner is how long that may take which takes d at the rate for now: less, while
// the rate still doubles.
func (a *AutoRate) Sooner(d time.Duration) time.Duration {
	if a.before != 0 || a.rate >= a.most {
		return d
	}
	seconds, times := d.Seconds(), a.most/a.rate
	takes := math.Log2(1 + seconds*math.Ln2)
	if doubling := (times - 1) / math.Ln2; seconds > doubling {
		takes = math.Log2(times) + (seconds-doubling)/times
	}
	takes += 2 / a.rate // a turn counts when the next one leaves
	return min(d, time.Duration(takes*float64(time.Second)))
}
