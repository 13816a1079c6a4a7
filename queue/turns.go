// Package queue says who is next.
//
// It knows no time, takes no lock and waits for nobody: a queue is a value
// that its owner guards, and whoever is taken from it is told by its owner.
// When the next may go is the business of package shaping.
package queue

import (
	"iter"
	"math"
)

// A Class is a priority: who is of a better class goes first.
type Class int8

// The classes, best first.
const (
	High Class = iota
	Normal
	Low
	classes = 3
)

// String is the class's word in the configuration.
func (c Class) String() string { return [...]string{"high", "normal", "low"}[c] }

// Turns lets out by class, within a class by turns between flows, and within a
// flow first who came first. With one class and one flow it is a FIFO.
//
// Waiting makes up for class: a waiter counts one class better for each Ageing
// that it has waited, until it counts as High. So the longest that a Low waiter
// can be overtaken by newcomers is 2 × Ageing: after that it stands among the
// High ones, before every High one that comes later, and has its flow's turns
// there.
//
// Flows take turns in a ring (round robin). One that begins to wait joins the
// ring at its end, so it is let out after one turn of each other flow, however
// many places those hold; and since one that went empty begins again at the
// end, coming back one by one gives no more than waiting together does.
//
// A turn is one request's, whatever that costs. Costs are only added up: Ahead
// and UpTo say what those who go before a newcomer cost together.
//
// The zero Turns, with an Ageing or without, is empty and ready. Every operation
// takes constant time (amortised, for ageing), but for Ahead, which may look
// at as many numbers as the flow has places, and what concerns a Ticket. It must
// not be copied while anything waits in it, and is not safe for concurrent use.
type Turns[T any] struct {
	// Ageing is how much later, in the unit of the now that methods take, a
	// waiter counts one class better; 0 means never. It may be changed at any
	// time; who counts better already goes on doing so.
	Ageing int64

	n      int
	cost   int64
	least  int64 // what one cost, of all who waited since nobody did
	most   int64
	costs  [classes]int64 // by own class
	seq    uint64
	levels [classes]level[T]
	high   *node[T]                    // in the ring of High: no flow before it has any of that class; nil: none has
	came   [classes]series[T]          // by own class, in order of arrival
	marks  [classes][classes]*Place[T] // by own class and level: the first that counts so, if the level is to be left
	flows  map[string]*flow[T]
	sizes  []size[T] // flows by how many places they hold
}

// A Place is one waiter's. The zero Place with its Value set is ready; after it
// has left it may be used again.
type Place[T any] struct {
	Value T
	Cost  int64 // not negative, and not to be changed while it waits

	in    *flow[T] // nil while it waits nowhere
	class Class    // its own
	level Class    // what it counts as
	since int64    // when it came
	seq   uint64   // who came before whom
	back  bool     // it has had its turn before
	all   links[T] // among those of its class
	own   links[T] // among those of its class and flow
}

type links[T any] struct{ prev, next *Place[T] }

// A level is everybody who counts as one class.
type level[T any] struct {
	n    int
	cost int64
	ring ring[T]
}

// A size is the flows that hold as many places each, and what those cost.
type size[T any] struct {
	ring[T]
	cost int64
}

// A flow is whoever takes turns as one.
type flow[T any] struct {
	key    string
	n      int
	cost   int64
	counts [classes]int // places by level
	own    [classes]series[T]
	turns  [classes]node[T] // in the ring of each level
	size   node[T]          // in the list of flows that hold as many
}

// Len is how many wait.
func (q *Turns[T]) Len() int { return q.n }

// Cost is what all who wait cost together.
func (q *Turns[T]) Cost() int64 { return q.cost }

// Costs are the least and the most that one costs, of all who waited since nobody
// did.
func (q *Turns[T]) Costs() (least, most int64) { return q.least, q.most }

// CostOf is what those cost together who wait and are of that class, whatever they
// count as by now.
func (q *Turns[T]) CostOf(c Class) int64 { return q.costs[c] }

// Flows is how many flows wait.
func (q *Turns[T]) Flows() int { return len(q.flows) }

// Oldest is who came first of all who wait, or nil when nobody does.
func (q *Turns[T]) Oldest() (oldest *Place[T]) {
	for c := range q.came {
		if p := q.came[c].first; p != nil && (oldest == nil || p.seq < oldest.seq) {
			oldest = p
		}
	}
	return oldest
}

// Push puts p last of its class and flow. It panics if p waits already.
func (q *Turns[T]) Push(p *Place[T], class Class, key string, now int64) {
	q.age(now)
	q.seq++
	p.since, p.seq, p.back = now, q.seq, false
	q.enter(p, class, class, key)
}

// enter puts p among those of its class and flow, in order of arrival. It counts
// as the level, or what the order of those who count as much needs.
func (q *Turns[T]) enter(p *Place[T], class, level Class, key string) {
	if p.in != nil {
		panic("queue: Push of a place that is taken already")
	}
	f := q.flows[key]
	if f == nil {
		f = &flow[T]{key: key}
		for l := range f.turns {
			f.turns[l].flow = f
		}
		f.size.flow = f
		if q.flows == nil {
			q.flows = make(map[string]*flow[T])
		}
		q.flows[key] = f
	}
	p.in, p.class = f, class
	q.came[class].insert(p, all)
	f.own[class].insert(p, own)
	if next := p.all.next; next != nil {
		level = min(level, next.level)
	}
	prev := p.all.prev
	if prev != nil {
		level = max(level, prev.level)
	}
	p.level = level
	if level > High && (prev == nil || prev.level != level) {
		q.marks[class][level] = p
	}
	if q.n == 0 {
		q.least, q.most = p.Cost, p.Cost
	}
	q.n++
	q.cost += p.Cost
	q.costs[class] += p.Cost
	q.least, q.most = min(q.least, p.Cost), max(q.most, p.Cost)
	q.resize(f, +1, p.Cost)
	q.count(p, +1)
	if class == High && f.own[High].first == f.own[High].last && f.counts[High] > 1 {
		q.high = q.levels[High].ring.first // the flow stood there already
	}
}

// Next is who is next at now, or nil when nobody waits.
func (q *Turns[T]) Next(now int64) *Place[T] {
	q.age(now)
	for l := range q.levels {
		if first := q.levels[l].ring.first; first != nil {
			return first.flow.oldest(Class(l))
		}
	}
	return nil
}

// First is who is next at now of those that may go; nil if there is none. The
// others keep their places, and a flow of which nobody may go keeps its turn. It
// looks at everybody who stands before the one it finds.
func (q *Turns[T]) First(now int64, may func(*Place[T]) bool) *Place[T] {
	q.age(now)
	for l := range q.levels {
		for n := q.levels[l].ring.first; n != nil; n = n.next {
			for t := n.flow.at(Class(l)); t.has(); {
				p := t.take()
				if may(p) {
					return p
				}
			}
		}
	}
	return nil
}

// All are those who wait at now, in the order in which they leave if nobody
// comes, gives up or comes to count better. To look at the first of them takes
// time and memory for no more than those.
func (q *Turns[T]) All(now int64) iter.Seq[*Place[T]] {
	q.age(now)
	return func(yield func(*Place[T]) bool) {
		for l := range q.levels {
			var flows []turn[T] // those with more than has been yielded
			for n := q.levels[l].ring.first; n != nil; n = n.next {
				t := n.flow.at(Class(l))
				if !yield(t.take()) {
					return
				}
				if t.has() {
					flows = append(flows, t)
				}
			}
			for len(flows) > 0 {
				rest := flows[:0]
				for _, t := range flows {
					if !yield(t.take()) {
						return
					}
					if t.has() {
						rest = append(rest, t)
					}
				}
				flows = rest
			}
		}
	}
}

// A turn walks through the waiters of a flow that count as one level, in order
// of arrival.
type turn[T any] struct {
	level Class
	next  [classes]*Place[T]
}

func (f *flow[T]) at(l Class) turn[T] {
	t := turn[T]{level: l}
	for c := range f.own {
		t.next[c] = f.own[c].first
		for t.next[c] != nil && t.next[c].level < l { // of each class the first to come count best
			t.next[c] = t.next[c].own.next
		}
	}
	return t
}

func (t turn[T]) oldest() (oldest *Place[T]) {
	for _, p := range t.next {
		if p != nil && p.level == t.level && (oldest == nil || p.seq < oldest.seq) {
			oldest = p
		}
	}
	return oldest
}

func (t *turn[T]) has() bool { return t.oldest() != nil }

func (t *turn[T]) take() *Place[T] {
	p := t.oldest()
	t.next[p.class] = p.own.next
	return p
}

// oldest is the waiter of f that came first among those that count as l. Of each
// class the first to come counts best.
func (f *flow[T]) oldest(l Class) (oldest *Place[T]) {
	for c := range f.own {
		if p := f.own[c].first; p != nil && p.level == l && (oldest == nil || p.seq < oldest.seq) {
			oldest = p
		}
	}
	return oldest
}

// Take takes p out because its turn has come: its flow has had one.
func (q *Turns[T]) Take(p *Place[T]) bool {
	f, l := p.in, p.level
	if !q.Remove(p) {
		return false
	}
	if f.counts[l] > 0 {
		q.leave(f, l)
		q.join(f, l)
	}
	return true
}

// Remove takes p out because it gave up, and reports whether it waited. A second
// time is harmless. Its flow keeps its turn.
func (q *Turns[T]) Remove(p *Place[T]) bool {
	f := p.in
	if f == nil || q.flows[f.key] != f {
		return false
	}
	if q.marks[p.class][p.level] == p {
		q.marks[p.class][p.level] = sameLevel(p.all.next, p.level)
	}
	q.came[p.class].remove(p, all)
	f.own[p.class].remove(p, own)
	q.n--
	q.cost -= p.Cost
	q.costs[p.class] -= p.Cost
	q.count(p, -1)
	q.resize(f, -1, -p.Cost)
	if f.n == 0 {
		delete(q.flows, f.key)
	}
	p.in = nil
	return true
}

func sameLevel[T any](p *Place[T], l Class) *Place[T] {
	if p != nil && p.level == l {
		return p
	}
	return nil
}

// Ages is when the next waiter comes to count better; the last instant there is if
// none does.
func (q *Turns[T]) Ages() int64 {
	_, at := q.nextToAge()
	return at
}

// age lets waiters count better as the time has come for it, one after the
// other, so that it does not matter how often it is looked at.
func (q *Turns[T]) age(now int64) {
	for p, at := q.nextToAge(); at <= now; p, at = q.nextToAge() {
		q.marks[p.class][p.level] = sameLevel(p.all.next, p.level)
		q.count(p, -1)
		p.level--
		q.count(p, +1)
		if p.level > High && q.marks[p.class][p.level] == nil {
			q.marks[p.class][p.level] = p
		}
	}
}

// nextToAge is whose time to count better comes first, and when.
func (q *Turns[T]) nextToAge() (next *Place[T], first int64) {
	first = math.MaxInt64
	if q.Ageing <= 0 {
		return nil, first
	}
	for class := Normal; class <= Low; class++ {
		for l := class; l > High; l-- {
			p := q.marks[class][l]
			if p == nil {
				continue
			}
			at := p.since + q.Ageing*int64(class-l+1)
			if next == nil || at < first || at == first && p.seq < next.seq {
				next, first = p, at
			}
		}
	}
	return next, first
}

// count notes that p counts as its level, or no longer does.
func (q *Turns[T]) count(p *Place[T], by int) {
	l, f := &q.levels[p.level], p.in
	l.n += by
	l.cost += int64(by) * p.Cost
	f.counts[p.level] += by
	switch {
	case by > 0 && f.counts[p.level] == 1:
		q.join(f, p.level)
	case f.counts[p.level] == 0:
		q.leave(f, p.level)
	}
}

// resize notes that f holds one place more or less, and so much cost. The longest
// size stands last in sizes.
func (q *Turns[T]) resize(f *flow[T], by int, cost int64) {
	if f.n > 0 {
		q.sizes[f.n].remove(&f.size)
		q.sizes[f.n].cost -= f.cost
	}
	f.n += by
	f.cost += cost
	if f.n > 0 {
		for len(q.sizes) <= f.n {
			q.sizes = append(q.sizes, size[T]{})
		}
		q.sizes[f.n].push(&f.size)
		q.sizes[f.n].cost += f.cost
	}
	for len(q.sizes) > 0 && q.sizes[len(q.sizes)-1].n == 0 {
		q.sizes = q.sizes[:len(q.sizes)-1]
	}
}
