package shaping

import (
	"math/bits"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A schedule is the rate's part of a Pace.
//
// It is the generic cell rate algorithm (ITU-T I.371), whose state is the
// theoretical arrival time tat: the instant at which everything that left so
// far would be paid for. A request that costs c may leave at
// tat − (burst − min(c, burst)) × interval: when its tokens are there, or if it
// costs more than the bucket holds, when that is full. What is lacking then is
// paid for by those who come after it. With burst 1 that is a leaky bucket's
// outflow, one each interval, or c intervals after one that costs c; with more
// it is a token bucket.
//
// tat is kept as an exact fraction: 701 requests at 7/m take 6000 s, and not
// one nanosecond more for each that an interval was rounded.
//
// It may be told of a clock that was set back, and takes note of that in every
// method; otherwise, those that answer a question change nothing.
type schedule struct {
	rate  limiter.Rate
	burst int64
	tat   span
	last  int64 // what the last departure cost
}

// left is tat for those who wait, where a pause has ended at that instant: what
// came together before is not for them but for one token, as it would leave in a
// bunch.
func (p *schedule) left(now, pause int64) span {
	tat := p.paid(now)
	if one := p.plus(span{ns: pause}, p.intervals(p.burst-1)); pause != 0 && tat.before(one) {
		return one
	}
	return tat
}

// lagging is tat as it is for one that waits, could not leave before ready, and
// leaves at now. Tokens that it could not use for want of a place are there still.
// Not so what would have come together since the instant at which it could have
// left, beyond Slack: that was a stall.
func (p *schedule) lagging(now, pause, ready, cost int64) (tat span, stalled int64) {
	tat = p.left(now, pause)
	from := p.due(tat, cost)
	if from.ns < ready {
		from = span{ns: ready}
	}
	if tat.before(from) {
		tat = from
	}
	if oldest := now - int64(Slack); from.ns < oldest {
		tat = p.plus(tat, p.minus(span{ns: oldest}, from))
		stalled = oldest - from.ns
	}
	return tat, stalled
}

// pass notes a departure at now of one that did not wait. It gets no credit for
// the time that nobody used.
func (p *schedule) pass(now, pause, cost int64) {
	tat := p.left(now, pause)
	if tat.ns < now {
		tat = span{ns: now}
	}
	p.charge(tat, cost)
}

// charge notes a departure that found the schedule at tat.
func (p *schedule) charge(tat span, cost int64) {
	p.tat, p.last = p.plus(tat, p.price(cost)), cost
}

// fits reports whether a request of that cost can ever be paid for.
func (p *schedule) fits(cost int64) bool { return p.intervals(cost).ns <= int64(limiter.MaxPeriod) }

// price is what fits, or else as much as can be.
func (p *schedule) price(cost int64) span {
	return p.intervals(cost).min(span{ns: int64(limiter.MaxPeriod)})
}

// needs is how many tokens a request has to find.
func (p *schedule) needs(cost int64) int64 { return min(cost, p.burst) }

// free is how many requests of cost 1 could go at now, one right after the other,
// if nobody waits; and the time until it is one more, which is zero when it is
// the whole burst.
func (p *schedule) free(now int64) (n int64, next time.Duration) {
	whole, rest := p.used(now)
	switch {
	case whole == 0 && rest == 0:
		return p.burst, 0
	case rest > 0:
		n = p.burst - whole - 1
	default:
		n = p.burst - whole
		whole, rest = whole-1, int64(p.rate.Per)
	}
	n = max(0, n)
	return n, time.Duration(p.plus(p.intervals(whole-(p.burst-n-1)), span{0, rest}.over(p.rate.Count)).ceil())
}

// settled is the time until the schedule is as good as new; forgetting it then
// changes no later answer. ahead is the cost of requests that still have to leave.
func (p *schedule) settled(now, ahead int64) time.Duration {
	tat := p.paid(now)
	tat.ns -= now
	return time.Duration(max(0, p.plus(tat, p.intervals(ahead)).ceil()))
}

// adopt goes on at another rate and burst. The tokens left are kept, whole and
// begun ones, up to the new burst, and so are those that are lacking: no change of limits fills a bucket, however
// often it is made (milvus-io/milvus #35675), and who has waited for half an
// interval has half an interval of the new rate before him.
func (p *schedule) adopt(now int64, rate limiter.Rate, burst int64) {
	if p.rate == rate && p.burst == burst {
		return
	}
	whole, rest := p.used(now)
	free, begun := p.burst-whole, uint64(0)
	if rest > 0 {
		free--
		// The begun part of a token, as a part of the new interval, rounded
		// down: both in units of 1/Count ns, of which an interval has Per.
		hi, lo := bits.Mul64(uint64(int64(p.rate.Per)-rest), uint64(rate.Per))
		begun, _ = bits.Div64(hi, lo, uint64(p.rate.Per))
	}
	p.rate, p.burst, p.last = rate, burst, burst-min(free, 0)
	p.tat = span{ns: now}
	if free < burst {
		p.tat = p.minus(p.plus(p.tat, p.price(burst-free)), span{0, int64(begun)}.over(rate.Count))
	}
}

// paid is tat as seen at now. What left by now found its tokens or a full
// bucket, so it is paid for no later than a full burst from now, or all the cost
// of the last if that is more. A tat beyond says that the clock was set back, and
// the schedule is set to that at once: corrected only when something leaves, it
// would move along with every look, and nothing would leave until the clock is
// where it was.
func (p *schedule) paid(now int64) span {
	if p.tat.ns > now {
		p.tat = p.tat.min(p.plus(span{ns: now}, p.price(max(p.burst, p.last))))
	}
	return p.tat
}

// due is when a request may leave of that cost, by what is paid for at tat.
func (p *schedule) due(tat span, cost int64) span {
	return p.minus(tat, p.intervals(p.burst-p.needs(cost)))
}

// used is what is not paid for at now, in whole intervals and a rest in units
// of 1/Count ns, of which an interval has Per.
func (p *schedule) used(now int64) (whole, rest int64) {
	tat := p.paid(now)
	if tat.ns < now {
		return 0, 0
	}
	hi, lo := bits.Mul64(uint64(tat.ns-now), uint64(p.rate.Count))
	lo, carry := bits.Add64(lo, uint64(tat.frac), 0)
	// paid is at most MaxPeriod from now, and so many intervals are a number.
	q, r := bits.Div64(hi+carry, lo, uint64(p.rate.Per))
	return int64(q), int64(r)
}

// far is beyond every wait that a policy may allow, and can be added to an
// interval without overflow.
const far = 1 << 62

// intervals is n × interval, exactly, or far if it is more than that.
func (p *schedule) intervals(n int64) span {
	count := uint64(p.rate.Count)
	hi, lo := bits.Mul64(uint64(n), uint64(p.rate.Per))
	if hi >= count {
		return span{ns: far}
	}
	ns, frac := bits.Div64(hi, lo, count)
	if ns >= far {
		return span{ns: far}
	}
	return span{int64(ns), int64(frac)}
}

// A span is ns + frac ÷ Count nanoseconds, 0 ≤ frac < Count, for the Count of
// the rate that it was made for.
type span struct{ ns, frac int64 }

func (p *schedule) plus(a, b span) span {
	a.ns += b.ns
	if a.frac += b.frac; a.frac >= p.rate.Count {
		a.frac -= p.rate.Count
		a.ns++
	}
	return a
}

func (p *schedule) minus(a, b span) span {
	a.ns -= b.ns
	if a.frac -= b.frac; a.frac < 0 {
		a.frac += p.rate.Count
		a.ns--
	}
	return a
}

// over brings a frac that is count or more into its range.
func (s span) over(count int64) span {
	return span{s.ns + s.frac/count, s.frac % count}
}

// ceil is the first whole nanosecond that is not before s.
func (s span) ceil() int64 {
	if s.frac > 0 {
		return s.ns + 1
	}
	return s.ns
}

func (s span) before(t span) bool {
	return s.ns < t.ns || s.ns == t.ns && s.frac < t.frac
}

func (s span) min(t span) span {
	if t.before(s) {
		return t
	}
	return s
}
