package shaping

import "time"

// What a Line does about gates. Who waits behind one that is closed keeps its
// place in the queue and is passed over; so no change of a gate moves anybody.

// shut is the instant until which that gate is closed; 0 if it is open.
func (l *Line[T]) shut(now int64, g *Gate) int64 {
	if until := g.until(l.clock); until > now {
		return until
	}
	return 0
}

// A stand is how many wait for one gate, and what they cost.
type stand struct {
	n    int
	cost int64
}

// stand notes that w waits for its gate, or with -1 that it does no more.
func (l *Line[T]) stand(w *Waiter[T], by int) {
	g := w.entrant.Gate
	if g == nil {
		return
	}
	if l.gates == nil {
		l.gates = make(map[*Gate]stand)
	}
	s := l.gates[g]
	s.n, s.cost = s.n+by, s.cost+int64(by)*w.place.Cost
	l.gates[g] = s
	if s.n == 0 {
		delete(l.gates, g)
	}
	if len(l.gates) == 0 {
		l.gates = nil
	}
}

// barred is how many wait behind gates that are closed, what they cost, and the
// instant at which the first of these opens.
func (l *Line[T]) barred(now int64) (n int, cost, opens int64) {
	opens = Endless
	for g, s := range l.gates {
		if until := l.shut(now, g); until != 0 {
			n, cost = n+s.n, cost+s.cost
			opens = min(opens, until)
		}
	}
	return n, cost, opens
}

// wait is how long a request of that cost waits that comes at now, wants to pass
// g, and finds some before it that cost so much. Those of them that are for g
// leave when it opens at the earliest.
func (l *Line[T]) wait(now int64, g *Gate, before, cost int64) time.Duration {
	wait := l.pace.Wait(now, before, l.first(now, before, cost), cost)
	until := l.shut(now, g)
	if until == 0 || until == Endless {
		return wait
	}
	return max(wait, l.pace.waitFrom(now, until, min(before, l.gates[g].cost), cost))
}

// place is how long it takes until some have left that cost so much, and one more
// of that cost. If nobody may pass, that begins when somebody may.
func (l *Line[T]) place(now, before, cost int64) time.Duration {
	if barred, _, opens := l.barred(now); barred > 0 && barred == l.queue.Len() && opens != Endless {
		return l.pace.waitFrom(now, opens, before, cost)
	}
	return l.pace.Wait(now, before, l.first(now, before, cost), cost)
}

// Late takes out those behind g whose turns have moved beyond their patience
// because it is closed, so that they can be told at once.
func (l *Line[T]) Late(now int64, g *Gate) []*Waiter[T] {
	until := l.shut(now, g)
	if until == 0 || until == Endless || l.gates[g].n == 0 {
		return nil
	}
	var late []*Waiter[T]
	before := int64(0)
	for p := range l.queue.All(now) {
		w := p.Value
		if w.entrant.Gate != g {
			continue
		}
		gives := w.until
		if !w.own {
			gives = l.pace.Runs(now, w.until)
		}
		if addTime(now, int64(l.pace.waitFrom(now, until, before, w.place.Cost))) > gives {
			late = append(late, w)
		} else {
			before += w.place.Cost
		}
	}
	for _, w := range late {
		l.Cancel(w)
	}
	return late
}
