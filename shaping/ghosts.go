package shaping

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
