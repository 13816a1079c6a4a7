package shaping_test

import (
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// The part of the reference that says how long a newcomer will wait, and what it is
// told.

// A refLineup is what those cost who stand before somebody: in all, and of these at
// most those of class High and those below.
type refLineup struct{ cost, high, below int64 }

func (m *ref) ofHigh() (cost int64) {
	for _, w := range m.all {
		if w.e.Class == queue.High {
			cost += w.cost
		}
	}
	return cost
}

// lineup is some who cost so much, those of class High first.
func (m *ref) lineup(cost int64) refLineup {
	high := min(cost, m.ofHigh())
	return refLineup{cost, high, cost - high}
}

// wait is how long one of that cost and class would wait with so much ahead.
func (m *ref) wait(now int64, ahead refLineup, cost int64, c queue.Class) time.Duration {
	m.look(now)
	head, class := cost, c
	if w := m.next(); ahead.cost > 0 && w != nil {
		head, class = w.cost, w.e.Class
	}
	begin, resumed, ready, restReady := now, m.resumed, m.placeFrom, m.restFrom
	if m.paused != 0 {
		if m.paused != shaping.Endless {
			begin = m.paused
		}
		resumed = begin
	}
	if m.full() {
		ready = begin
	}
	if m.restFull() {
		restReady = begin
	}
	if !m.rated() {
		return time.Duration(begin - now)
	}
	all, rest, stalled := m.both(begin, resumed, ready, restReady, head, class)
	if m.terms.ReserveHigh > 0 && c == queue.High && class != queue.High && stalled == 0 {
		all = m.tank.kept(resumed)
		all.tokens, all.at = all.level(rat(begin)), rat(begin)
	}
	at := ceil(all.whole(ahead.cost + m.tank.needs(cost)))
	switch {
	case m.held(c):
		// All of class High first, as early as the dearest of the others could.
		dearest := cost
		if ahead.cost > 0 {
			dearest = max(cost, m.dearest)
		}
		first := rat(max(begin, ceil(all.whole(ahead.high+m.tank.needs(dearest)))))
		rest.tokens, rest.at = rest.level(first), first
		at = max(at, ceil(rest.whole(ahead.below+m.rest.needs(cost)))+min(1, ahead.cost))
	case m.terms.ReserveHigh > 0 && ahead.below > 0:
		first := max(begin, ceil(all.whole(m.tank.needs(cost))))
		at = min(at, first+m.byReserve(ahead.high+max(m.rest.burst, m.dearest))) + 1
	}
	return time.Duration(max(begin, at) - now)
}

// byReserve is how long it takes until what is reserved has let out so much.
func (m *ref) byReserve(cost int64) int64 {
	return ceil(mul(rat(cost), mul(m.tank.each, sub(rat(1), m.unreserved()).Inv(sub(rat(1), m.unreserved())))))
}

// drained is how long it takes until so much has left, and one more like e, whom
// nobody lets pass.
func (m *ref) drained(now int64, e shaping.Entrant, cost int64) time.Duration {
	c := e.Class
	if m.terms.ReserveHigh > 0 && m.ofHigh() < m.upTo(queue.Low) {
		c = queue.Low
	}
	return m.wait(now, m.lineup(cost), m.cost(e), c)
}

// sooner is late, or when those of class High have left who wait, and what may leave
// before them, if that is sooner.
func (m *ref) sooner(now int64, e shaping.Entrant, most, late time.Duration) time.Duration {
	if m.terms.ReserveHigh == 0 || e.Class != queue.High || !m.rated() {
		return late
	}
	const endless = 1 << 30
	wait := m.wait(now, refLineup{endless, m.ofHigh(), 1}, m.cost(e), e.Class)
	return min(late, wait+time.Duration(m.byReserve(max(m.rest.burst, m.dearest)))-most)
}

// passes reports whether a newcomer need not wait for those who do.
func (m *ref) passes(now int64, e shaping.Entrant) bool {
	if len(m.all) == 0 || !m.held(queue.Low) || e.Class != queue.High || m.ofHigh() > 0 {
		return false
	}
	m.look(now)
	return m.clear(m.next().cost) > now
}

// room is how long it takes until the queue is not full: until the head has left,
// or if there are over more, so many. Of these no more is known than that none is
// dearer than the dearest.
func (m *ref) room(now int64, over int) time.Duration {
	if over <= 0 {
		w := m.next()
		return m.wait(now, refLineup{}, w.cost, w.e.Class)
	}
	var all int64
	best := true // all who count as High are
	for _, w := range m.all {
		all += w.cost
		best = best && (w.level > queue.High || w.e.Class == queue.High)
	}
	cost, c := min(all, int64(over)*m.dearest), queue.Low
	if m.terms.ReserveHigh == 0 || m.ofHigh() == all {
		c = queue.High
	}
	ahead := m.lineup(cost)
	if !best || m.terms.PromoteAfter > 0 {
		ahead.high = max(0, cost-(all-m.ofHigh()))
		ahead.below = cost - ahead.high
	}
	return m.wait(now, ahead, m.dearest, c)
}

// verdict is what a newcomer is told.
func (m *ref) verdict(now int64, e shaping.Entrant) shaping.Verdict {
	m.look(now)
	cost := m.cost(e)
	if len(m.all) == 0 && m.paused == 0 {
		m.resumed = 0 // nobody waited for it
	}
	if (len(m.all) == 0 || m.passes(now, e)) && m.dueFor(cost, e.Class) <= now {
		return shaping.Verdict{}
	}
	ahead, before := m.ahead(e)
	v := shaping.Verdict{Queued: true, Ahead: ahead, Wait: m.wait(now, m.lineup(before), cost, e.Class)}
	most := time.Duration(m.longest(e))
	if over := len(m.all) - m.terms.Queue; over >= 0 && m.victim(e) == nil {
		v.Reason = limiter.ReasonQueueFull
		if v.RetryAfter = m.wait(now, refLineup{}, cost, e.Class); len(m.all) > 0 {
			v.RetryAfter = m.room(now, over)
		}
	}
	if v.Wait > most {
		if v.Reason == "" {
			v.Reason = limiter.ReasonMaxWait
			if m.paused != 0 && m.paused != shaping.Endless && v.Wait-time.Duration(m.paused-now) <= most {
				v.Reason = limiter.ReasonPaused
			}
		}
		// By then all who count as much are in time, whoever of them goes first;
		// and if others come to count as much by then, all who wait.
		// By then those of a worse class may have left who need fewer tokens.
		count := e.Class
		if m.tank.needs(cost) > 1 {
			count = queue.Low
		}
		late := m.drained(now, e, m.upTo(count)) - most
		joined := m.joined(now+int64(max(v.RetryAfter, late)), e.Class)
		if joined {
			late = max(late, m.drained(now, e, m.upTo(queue.Low))-most)
		}
		v.RetryAfter = max(v.RetryAfter, m.sooner(now, e, most, late))
		// By then there may be nobody who would have to go for it, but of a worse
		// class.
		worse := slices.ContainsFunc(m.all, func(o *refWaiter) bool { return o.level > e.Class })
		if over := len(m.all) - m.terms.Queue; over >= 0 && len(m.all) > 0 && (joined || !worse) {
			v.RetryAfter = max(v.RetryAfter, m.room(now, over))
		}
	} else if v.Reason != "" && m.terms.ReserveHigh > 0 && e.Class == queue.High {
		v.RetryAfter = max(v.RetryAfter, m.sooner(now, e, most, m.drained(now, e, m.upTo(queue.Low))-most))
	}
	if v.Reason != "" {
		v.Queued, v.Wait, v.RetryAfter = false, 0, max(1, v.RetryAfter)
		if m.held(e.Class) {
			v.RetryAfter++
		}
	}
	return v
}
