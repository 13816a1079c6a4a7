package shaping_test

import (
	"slices"

	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// The part of the reference that says who is next, who is ahead, and who has to
// go.

// tidy lets flows join and leave the turns of each level.
func (m *ref) tidy() {
	for l := range m.turns {
		m.turns[l] = slices.DeleteFunc(m.turns[l], func(flow string) bool {
			return !slices.ContainsFunc(m.all, func(w *refWaiter) bool { return w.level == queue.Class(l) && w.e.Flow == flow })
		})
		for _, w := range m.all {
			if w.level == queue.Class(l) && !slices.Contains(m.turns[l], w.e.Flow) {
				m.turns[l] = append(m.turns[l], w.e.Flow)
			}
		}
	}
}

func (m *ref) holds(flow string) (n int) {
	for _, w := range m.all {
		if w.e.Flow == flow {
			n++
		}
	}
	return n
}

func (m *ref) flows() (flows []string) {
	for _, w := range m.all {
		if !slices.Contains(flows, w.e.Flow) {
			flows = append(flows, w.e.Flow)
		}
	}
	return flows
}

// ahead is all of a better class, and of the same at most as many as stand in
// the first turns of all flows, and what those cost: of flows that have more
// turns, as if each was the dearest, but no more than all.
func (m *ref) ahead(e shaping.Entrant) (n int, cost int64) {
	better, same, turns := 0, 0, 0
	var betterCost, sameCost, whole, begun, more int64
	for _, w := range m.all {
		if w.level < e.Class {
			better++
			betterCost += w.cost
		}
		if w.level == e.Class {
			same++
			sameCost += w.cost
		}
		if m.holds(w.e.Flow) <= m.holds(e.Flow) {
			whole += w.cost
		} else {
			begun += w.cost
		}
	}
	for _, flow := range m.flows() {
		turns += min(m.holds(flow), m.holds(e.Flow)+1)
		if m.holds(flow) > m.holds(e.Flow) {
			more += int64(m.holds(e.Flow)+1) * m.dearest
		}
	}
	return better + min(same, turns), betterCost + min(sameCost, whole+min(begun, more))
}

// really lets everybody out before a newcomer, counts, and adds up what they
// cost.
func (m *ref) really(e shaping.Entrant) (n int, cost int64) {
	trial := &ref{all: slices.Clone(m.all), since: map[string]int64{}}
	for l := range m.turns {
		trial.turns[l] = slices.Clone(m.turns[l])
	}
	me := &refWaiter{e: e, level: e.Class}
	trial.all = append(trial.all, me)
	trial.tidy()
	for ; ; n++ {
		w := trial.next()
		if w == me {
			return n, cost
		}
		cost += w.cost
		trial.take(w)
	}
}

func (m *ref) victim(e shaping.Entrant) *refWaiter {
	for l := queue.Low; l > e.Class; l-- {
		for _, w := range slices.Backward(m.all) {
			if w.level == l {
				return w
			}
		}
	}
	most := 0
	flows := m.flows()
	for _, flow := range flows {
		most = max(most, m.holds(flow))
	}
	if most < m.holds(e.Flow)+2 {
		return nil
	}
	slices.SortFunc(flows, func(a, b string) int { return int(m.since[a] - m.since[b]) })
	for _, flow := range flows {
		for _, w := range slices.Backward(m.all) {
			if w.e.Flow == flow && w.level == e.Class && m.holds(flow) == most {
				return w
			}
		}
	}
	return nil
}

// first reports whether w came first of its class and level. Of those the first
// to come is the first to count better, though the clock was set back since.
func (m *ref) first(w *refWaiter) bool {
	i := slices.IndexFunc(m.all, func(o *refWaiter) bool { return o.e.Class == w.e.Class && o.level == w.level })
	return m.all[i] == w
}

// upTo is what those cost who count as class or better.
func (m *ref) upTo(class queue.Class) (cost int64) {
	for _, w := range m.all {
		if w.level <= class {
			cost += w.cost
		}
	}
	return cost
}

// joined reports whether others come to count as class by that instant.
func (m *ref) joined(at int64, class queue.Class) bool {
	return m.terms.PromoteAfter > 0 && slices.ContainsFunc(m.all, func(w *refWaiter) bool {
		return w.level > class && m.first(w) && w.came+int64(m.terms.PromoteAfter)*int64(w.e.Class-class) <= at
	})
}

func (m *ref) changed(flow string) {
	m.moves++
	m.since[flow] = m.moves
	m.tidy()
}

func (m *ref) remove(w *refWaiter) bool {
	i := slices.Index(m.all, w)
	if i < 0 {
		return false
	}
	m.all = slices.Delete(slices.Clone(m.all), i, i+1)
	m.changed(w.e.Flow)
	return true
}

// take removes one whose flow has had its turn.
func (m *ref) take(w *refWaiter) {
	m.remove(w)
	if i := slices.Index(m.turns[w.level], w.e.Flow); i >= 0 {
		m.turns[w.level] = append(slices.Delete(slices.Clone(m.turns[w.level]), i, i+1), w.e.Flow)
	}
}

// next is the first in order, unless it is held to the rest for longer than one of
// class High is held.
func (m *ref) next() *refWaiter {
	w := m.inOrder()
	if w == nil || !m.held(w.e.Class) || m.clear(w.cost) <= m.now {
		return w
	}
	for _, flow := range m.turns[queue.High] {
		for _, o := range m.all {
			if o.e.Flow == flow && o.e.Class == queue.High {
				if m.dueFor(o.cost, queue.High) < m.clear(w.cost) {
					return o
				}
				return w
			}
		}
	}
	return w
}

func (m *ref) inOrder() *refWaiter {
	for l, flows := range m.turns {
		for _, w := range m.all {
			if len(flows) > 0 && w.level == queue.Class(l) && w.e.Flow == flows[0] {
				return w
			}
		}
	}
	return nil
}
