package shaping

import (
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// ghosts are the rehearsed requests that have taken places behind a queue, first
// come, first out. Nobody stands there, so what they cost is enough, and where
// that is always the same a dry run takes no memory however long its queue would
// be.
type ghosts struct {
	n       int
	cost    int64 // of all
	dearest int64 // since there was none
	runs    []run // those before first are gone
	first   int
}

// A run is ghosts of one cost, one behind the other.
type run struct {
	cost int64
	n    int
}

func (g *ghosts) push(cost int64) {
	if last := len(g.runs) - 1; last >= g.first && g.runs[last].cost == cost {
		g.runs[last].n++
	} else {
		if g.first > len(g.runs)/2 { // what is gone gives its room back
			g.runs = g.runs[:copy(g.runs, g.runs[g.first:])]
			g.first = 0
		}
		g.runs = append(g.runs, run{cost, 1})
	}
	g.n++
	g.cost += cost
	g.dearest = max(g.dearest, cost)
}

// head is what the first costs; 1 if there is none.
func (g *ghosts) head() int64 {
	if g.n == 0 {
		return 1
	}
	return g.runs[g.first].cost
}

func (g *ghosts) pop() {
	r := &g.runs[g.first]
	g.n--
	g.cost -= r.cost
	if r.n--; r.n == 0 {
		g.first++
	}
	if g.n == 0 {
		*g = ghosts{}
	}
}

// Rehearse decides as Arrive does for a request that goes on whatever is
// decided, as in a dry run: if it would wait, its place is taken until its turn
// would have come, with nobody in it. If it would have passed at once it has
// left, and is Done once; what is at the upstream while it would have waited
// is not counted.
//
// It is decided as if all were of one class and flow, and that is High: only the
// cost of e counts, and nobody is held to what is not reserved.
func (l *Line[T]) Rehearse(now int64, e Entrant) Verdict {
	e = Entrant{Cost: e.Cost}
	verdict := l.LookFor(now, e)
	switch {
	case verdict.Reason != limiter.ReasonNone:
	case verdict.Queued:
		l.ghosts.push(l.cost(e))
	default:
		l.pace.Pass(now, l.cost(e), e.Class)
	}
	return verdict
}

// settle lets the rehearsed requests out that were due by now, each at its very
// instant: no timer is late when there is none.
func (l *Line[T]) settle(now int64) {
	for l.ghosts.n > 0 && l.queue.Len() == 0 {
		cost := l.ghosts.head()
		due := l.pace.Due(now, cost, queue.High)
		if due > now {
			return
		}
		l.pace.Leave(max(due, l.pace.ready, l.pace.resumed), cost, queue.High)
		l.pace.taken--
		l.ghosts.pop()
	}
}

// EndRehearsal empties the places that rehearsed requests have taken. Nobody is
// to wait behind one that is not there.
func (l *Line[T]) EndRehearsal(now int64) {
	l.settle(now)
	l.ghosts = ghosts{}
}
