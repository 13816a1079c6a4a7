package shaping

import (
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// grants are a Pace's part in a schedule that lines of several processes share:
// the departures that this line has been granted and has not used. While it binds,
// the line leaves by these only.
//
// A departure that could not be used, as a timer was late, is good for two intervals
// more, and for 2 × Slack at least. So of all lines together, in any interval of
// length t at most rate × (t + 2 × Slack) + burst + 2 leave, as far as their clocks
// agree. What is late does not leave in a bunch: with a burst of 1, a line keeps
// its interval but for Slack.
type grants struct {
	key    string
	leases []*lease // in order of their instants
	ahead  int64    // how many the line asks for in advance
	next   int64    // when the next may leave that nobody has been granted, by the last answer
	rivals int64    // how many other lines want more than they have, by the last answer
	last   int64    // when the last of all may leave that this line was ever granted
	alone  int64    // until then the line goes by a schedule of its own
	spaced int64    // not before that may the next leave, as the last one was late
	asking bool     // a call is under way
}

// aheadAtFirst is how many departures are held in advance until it is known what is
// worth it.
const aheadAtFirst = 2

// A lease is some departures of the schedule, one behind the other.
type lease struct {
	rate     limiter.Rate
	first    span  // when the first may leave
	from     int64 // none leaves before
	n        int64
	answered int64 // when it was known
	back     func(n int64) bool
	kept     bool // it could not be given back
}

func (l *lease) schedule() *schedule { return &schedule{rate: l.rate} }

// at is when the ith may leave.
func (l *lease) at(i int64) int64 {
	s := l.schedule()
	return max(l.from, s.plus(l.first, s.intervals(i)).ceil())
}

// drop takes n from the front.
func (l *lease) drop(n int64) {
	s := l.schedule()
	l.first, l.n = s.plus(l.first, s.intervals(n)), l.n-n
}

// bind reports whether the line leaves by grants at now.
func (g *grants) bind(now int64) bool { return g != nil && now >= g.alone }

// mayAsk reports whether nothing keeps one from leaving but that no departure is
// held, which may be there as soon as it is asked for.
func (p *Pace) mayAsk(now int64) bool {
	return p.grants.bind(now) && p.grants.held() == 0 && p.Paused(now) == 0 && !p.full(now)
}

func (g *grants) held() (n int64) {
	for _, l := range g.leases {
		n += l.n
	}
	return n
}

// at is when the ith may leave of those that are held, and the lease it is of.
func (g *grants) at(i int64) (int64, *lease) {
	for _, l := range g.leases {
		if i < l.n {
			return l.at(i), l
		}
		i -= l.n
	}
	return Endless, nil
}

// take uses n from the front.
func (g *grants) take(n int64) {
	for n > 0 && len(g.leases) > 0 {
		l := g.leases[0]
		some := min(n, l.n)
		l.drop(some)
		n -= some
		g.tidy()
	}
}

func (g *grants) tidy() {
	g.leases = slices.DeleteFunc(g.leases, func(l *lease) bool { return l.n <= 0 })
}

// add puts a lease among the others.
func (g *grants) add(l *lease) {
	g.leases = append(g.leases, l)
	slices.SortStableFunc(g.leases, func(a, b *lease) int {
		if a.first.before(b.first) {
			return -1
		}
		return 1
	})
	g.last = max(g.last, l.at(l.n-1))
}

// usable is how late a departure may be used.
func (p *Pace) usable() int64 { return max(p.intervals(2).ceil(), int64(2*Slack)) }

// lapse drops the departures that are too late for one that needs so many.
func (p *Pace) lapse(now, needs int64) {
	g := p.grants
	late := now - p.usable()
	for held := g.held(); held >= needs; held = g.held() {
		// Of the lease with the one that decides, those that are too late.
		i := needs - 1
		for _, l := range g.leases {
			if i < l.n {
				n := int64(sort.Search(int(min(l.n-i, math.MaxInt32)), func(k int) bool { return l.at(i+int64(k)) >= late }))
				if n == 0 {
					return
				}
				g.take(n)
				break
			}
			i -= l.n
		}
	}
}

// granted is when one of that cost may leave, by what is held: Endless if that is
// not enough.
func (p *Pace) granted(now, cost int64) int64 {
	p.lapse(now, p.needs(cost))
	if p.grants.held() < cost {
		return Endless
	}
	at, _ := p.grants.at(p.needs(cost) - 1)
	return max(at, p.grants.spaced)
}

// prompt reports whether the departures of one of that cost, which are held, were
// due as soon as they were granted.
func (p *Pace) prompt(now, cost int64) bool {
	if p.grants == nil {
		return true
	}
	if !p.grants.bind(now) {
		return false
	}
	at, l := p.grants.at(p.needs(cost) - 1)
	return l != nil && at <= l.answered
}

// leaveGranted uses the departures of one of that cost, which must be due.
func (p *Pace) leaveGranted(now, cost int64) {
	g := p.grants
	g.spaced = 0
	if at, _ := g.at(p.needs(cost) - 1); p.burst == 1 && now-at > int64(Slack) {
		g.spaced = addTime(now-int64(Slack), p.price(cost).ceil())
	}
	g.take(cost)
	p.pass(now, 0, cost) // so that the line's own schedule knows, if it is to go on by that
}

// waitGranted is how long one of that cost would wait behind others that cost so
// much, if nobody leaves before that instant: by what is held, and from there on by
// the schedule as it was last seen, in turns with all who want more than they have.
func (p *Pace) waitGranted(now, from, before, cost int64) time.Duration {
	g, n := p.grants, addTime(before, p.needs(cost))
	at := g.next
	switch held := g.held(); {
	case from > now:
		at = from
	case n <= held:
		at, _ = g.at(n - 1)
		return time.Duration(max(0, at-now))
	default:
		n -= held
	}
	if p.burst == 1 {
		at = max(at, now) // what nobody has used is no credit
	}
	turns := g.rivals + 1
	at = addTime(at, p.intervals(min(n-1, far/turns)*turns).ceil())
	return time.Duration(min(max(from, at), far) - now)
}

// freeGranted is how many could leave at now, one right after the other, by the
// schedule as it was last seen, and the time until it is one more.
func (p *Pace) freeGranted(now int64) (n int64, next time.Duration) {
	g := p.grants
	switch since := now - g.next; {
	case since < 0:
		next = time.Duration(-since)
	case since >= p.intervals(p.burst-1).ceil():
		n = p.burst
	default:
		hi, lo := bits.Mul64(uint64(since), uint64(p.rate.Count))
		q, _ := bits.Div64(hi, lo, uint64(p.rate.Per))
		n = int64(q) + 1
		next = time.Duration(g.next + p.intervals(n).ceil() - now)
	}
	held := int64(0)
	for _, l := range g.leases {
		held += int64(sort.Search(int(min(l.n, math.MaxInt32)), func(k int) bool { return l.at(int64(k)) > now }))
	}
	return max(n, held), next
}

// settledGranted is the time until everybody has left who was granted a departure,
// as far as that is known.
func (p *Pace) settledGranted(now int64) time.Duration {
	g := p.grants
	if g.next == 0 {
		return 0
	}
	return time.Duration(max(0, g.last-now, g.next+p.intervals(p.burst-1).ceil()-now))
}
