package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// What a Line does where a share is reserved for class High. Who is below and first
// in order, but held to the rest until then, keeps its place, and the next of class
// High passes it, if it may go before that.

// passing is who is next where w is the first in order, and below High.
func (l *Line[T]) passing(now int64, w *Waiter[T]) *Waiter[T] {
	clear := l.clear(now, w)
	if clear <= now {
		return w
	}
	if h := l.nextHigh(now); h != nil && l.due(now, h) < clear {
		return h
	}
	return w
}

// nextHigh is the first in order that is of class High and may pass its gate; nil if
// there is none.
func (l *Line[T]) nextHigh(now int64) *Waiter[T] {
	p := l.queue.NextHigh(now)
	if p != nil && l.gates != nil && l.shut(now, p.Value.entrant) != 0 {
		p = l.queue.First(now, func(p *queue.Place[*Waiter[T]]) bool {
			return p.Value.entrant.Class == queue.High && l.shut(now, p.Value.entrant) == 0
		})
	}
	if p == nil {
		return nil
	}
	return p.Value
}

// clear is the instant from which on the rest lets w leave, which is below High.
func (l *Line[T]) clear(now int64, w *Waiter[T]) int64 {
	return l.pace.clear(now, l.opened(now, w), w.place.Cost)
}

// passes reports whether one of that class that comes at now need not wait for
// anybody, although some wait.
func (l *Line[T]) passes(now int64, c queue.Class) bool {
	if c != queue.High || l.pace.rest == nil || l.ghosts.n > 0 || l.nextHigh(now) != nil {
		return false
	}
	w := l.Head(now)
	return w == nil && l.gates != nil || w != nil && l.clear(now, w) > now
}

// gone notes that one of that class has left which was the came-th to come.
func (l *Line[T]) gone(c queue.Class, came uint64) {
	l.latest[0] = max(l.latest[0], came)
	if c != queue.High {
		l.latest[1] = max(l.latest[1], came)
	}
}

// overtaken reports whether others went before w that were not to when it came, or
// the head keeps it waiting by what it needs more. To one that is held to the rest,
// and finds none of the rest's places free, those of class High take nothing.
func (l *Line[T]) overtaken(w *Waiter[T], kept int64) bool {
	held := l.pace.holds(w.entrant.Class)
	if held && l.pace.rest.full(&l.pace) {
		return l.latest[1] > w.came
	}
	return l.left-w.left+kept > w.before || held && l.latest[0] > w.came
}

// Places is how many of that class may be unfinished, if nobody else is.
func (l *Line[T]) Places(c queue.Class) int64 {
	if l.pace.holds(c) {
		return int64(l.pace.rest.places)
	}
	return int64(l.pace.places)
}

// lineup is those who stand before e, if they cost so much.
func (l *Line[T]) lineup(now int64, e *Entrant, before, cost int64) (a lineup) {
	a = lineup{cost: before, head: cost, class: e.Class}
	if before > 0 {
		a.head, a.class = l.next(now)
	}
	if l.pace.rest == nil {
		return a
	}
	high, others := l.ofHigh(), l.all()-l.ofHigh()
	a.most = l.dearest()
	switch {
	case e.Class != queue.High && e.Ticket.back():
		// Those of class High may pass it that stand behind.
		a.high, a.below = high, min(before, others)
		a.cost = addTime(before, high)
	case l.gates != nil: // which of them may pass theirs is not known
		a.high, a.below = min(before, high), min(before, others)
	default:
		a.high = min(before, high)
		a.below = before - a.high
	}
	return a
}

// all is what everybody costs who waits, or is rehearsed.
func (l *Line[T]) all() int64 { return l.queue.Cost() + l.ghosts.cost }

// ofHigh is what those of class High cost.
func (l *Line[T]) ofHigh() int64 { return l.queue.CostOf(queue.High) + l.ghosts.cost }

// dearest is the most that one costs.
func (l *Line[T]) dearest() int64 {
	_, most := l.queue.Costs()
	return max(most, l.ghosts.dearest)
}

// anybody is the lineup of some who cost so much, whoever that is.
func (l *Line[T]) anybody(now, cost int64) (a lineup, c queue.Class) {
	a = lineup{cost: cost, head: cost}
	if cost > 0 {
		a.head, a.class = l.next(now)
	}
	if l.pace.rest == nil {
		return a, c
	}
	a.most, c = l.dearest(), queue.Low
	others := l.all() - l.ofHigh()
	if others == 0 {
		c = queue.High
	}
	a.high = max(0, cost-others)
	if _, best := l.queue.UpTo(queue.High, now); l.queue.Ageing <= 0 && best == l.queue.CostOf(queue.High) {
		a.high = min(cost, l.ofHigh()) // they go first
	}
	a.below = cost - a.high
	return a, c
}

// drained is how long it takes until some have left that cost so much, and one more
// of e's cost. Where a share is reserved, of class High they may be passed sooner.
func (l *Line[T]) drained(now int64, e *Entrant, before, cost int64) time.Duration {
	if l.pace.rest != nil && l.all() > l.ofHigh() {
		last := *e
		last.Class = queue.Low
		e = &last
	}
	return l.wait(now, e, before, cost)
}

// sooner is after what time e, of that cost, need not wait for longer than most if
// it comes alone, where that is so late at the latest. One of class High is in time
// too when those of its class who wait have left by what is reserved, and what
// others may take until then that the rest's bucket holds.
func (l *Line[T]) sooner(now int64, e *Entrant, cost int64, most, late time.Duration) time.Duration {
	if e.Class != queue.High || l.pace.rest == nil {
		return late
	}
	others := lineup{cost: far, head: cost, split: split{high: l.ofHigh(), below: 1, most: l.dearest()}}
	if l.all() > 0 {
		others.head, others.class = l.next(now)
	}
	held := l.pace.rest.atMost(max(l.pace.rest.burst, others.most))
	return min(late, sum(l.pace.wait(now, &others, cost, e.Class), held)-most)
}
