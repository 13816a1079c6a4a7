package queue

import (
	"math"
	"math/bits"
)

// Ahead is how many of those who wait at now would go before a newcomer of that
// class and flow, or at most so many where turns are not yet decided, and at
// most what those cost together. Later newcomers are not foreseen.
func (q *Turns[T]) Ahead(class Class, key string, now int64) (n int, cost int64) {
	q.age(now)
	for l := range class {
		n += q.levels[l].n
		cost += q.levels[l].cost
	}
	// Before its own flow's next place, every flow has at most as many turns.
	turns := 1
	if f := q.flows[key]; f != nil {
		turns += f.n
	}
	same := &q.levels[class]
	first, dues := q.first(turns)
	return n + min(same.n, first), cost + min(same.cost, dues)
}

// UpTo is how many of those who wait at now count as class or better, and what
// they cost together.
func (q *Turns[T]) UpTo(class Class, now int64) (n int, cost int64) {
	q.age(now)
	for l := range class + 1 {
		n += q.levels[l].n
		cost += q.levels[l].cost
	}
	return n, cost
}

// Joined reports whether, of those who wait now, anybody comes to count as class
// by that instant who does not yet.
func (q *Turns[T]) Joined(class Class, by int64) bool {
	if q.Ageing <= 0 {
		return false
	}
	for c := class + 1; c <= Low; c++ {
		for l := class + 1; l <= c; l++ {
			if p := q.marks[c][l]; p != nil && p.since+q.Ageing*int64(c-class) <= by {
				return true
			}
		}
	}
	return false
}

// first is how many places lie in the first n turns of all flows, and at most
// what those cost: of a flow that has more turns, as if each were the dearest.
func (q *Turns[T]) first(n int) (places int, cost int64) {
	if n >= len(q.sizes) {
		return q.n, q.cost
	}
	flows := 0
	for i := 1; i < n; i++ {
		places += i * q.sizes[i].n
		cost += q.sizes[i].cost
		flows += q.sizes[i].n
	}
	more := n * (len(q.flows) - flows)
	return places + more, cost + min(q.cost-cost, times(more, q.most))
}

// times is n × cost, or the highest number if it is more than that.
func times(n int, cost int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(cost))
	if hi > 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// Victim is who has to go for a newcomer of that class and flow when there is no
// room, or nil if the newcomer has to. It is the newest of the lowest class, if
// that is below the newcomer's. Otherwise it is the newest of the flow that
// holds most places, if that would still hold no fewer than the newcomer's: so
// the share of places is bounded as the share of turns is. Nobody of a better
// class goes.
func (q *Turns[T]) Victim(class Class, key string, now int64) *Place[T] {
	q.age(now)
	for l := Class(Low); l > class; l-- {
		if q.levels[l].n > 0 {
			return newest(&q.came, l)
		}
	}
	mine := 0
	if f := q.flows[key]; f != nil {
		mine = f.n
	}
	most := len(q.sizes) - 1
	if most < mine+2 {
		return nil
	}
	// Flows of that size differ in class; the first with somebody to go will
	// do, and one that has only better ones is rare enough to look past.
	for n := q.sizes[most].first; n != nil; n = n.next {
		if p := newest(&n.flow.own, class); p != nil {
			return p
		}
	}
	return nil
}

// newest is who came last of those in the series that count as l.
func newest[T any](by *[classes]series[T], l Class) (newest *Place[T]) {
	for c := range by {
		// Of each class the last to come counts worst, and nobody counts worse
		// than l.
		p := by[c].last
		if p != nil && p.level == l && (newest == nil || p.seq > newest.seq) {
			newest = p
		}
	}
	return newest
}
