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

// stand notes that one more, or with -1 one less, waits for g.
func (l *Line[T]) stand(g *Gate, by int) {
	if g == nil {
		return
	}
	if l.gates == nil {
		l.gates = make(map[*Gate]int)
	}
	if l.gates[g] += by; l.gates[g] == 0 {
		delete(l.gates, g)
	}
	if len(l.gates) == 0 {
		l.gates = nil
	}
}

// barred is how many wait behind gates that are closed, and the instant at which
// the first of these opens.
func (l *Line[T]) barred(now int64) (n int, opens int64) {
	opens = Endless
	for g, waiting := range l.gates {
		if until := l.shut(now, g); until != 0 {
			n += waiting
			opens = min(opens, until)
		}
	}
	return n, opens
}

// wait is how long a request waits that comes at now, wants to pass g, and finds
// ahead requests before it. Those of them that are for g leave when it opens at
// the earliest.
func (l *Line[T]) wait(now int64, g *Gate, ahead int) time.Duration {
	until := l.shut(now, g)
	if until == 0 || until == Endless {
		return l.pace.Wait(now, ahead)
	}
	return max(l.pace.Wait(now, ahead), l.pace.waitFrom(now, until, min(ahead, l.gates[g])))
}

// place is how long it takes until so many have left, and one more. If nobody
// may pass, that begins when somebody may.
func (l *Line[T]) place(now int64, ahead int) time.Duration {
	if barred, opens := l.barred(now); barred > 0 && barred == l.queue.Len() && opens != Endless {
		return l.pace.waitFrom(now, opens, ahead)
	}
	return l.pace.Wait(now, ahead)
}

// Late takes out those behind g whose turns have moved beyond their patience
// because it is closed, so that they can be told at once.
func (l *Line[T]) Late(now int64, g *Gate) []*Waiter[T] {
	until := l.shut(now, g)
	if until == 0 || until == Endless || l.gates[g] == 0 {
		return nil
	}
	var late []*Waiter[T]
	before := 0
	for p := range l.queue.All(now) {
		w := p.Value
		if w.entrant.Gate != g {
			continue
		}
		gives := w.until
		if !w.own {
			gives = l.pace.Runs(now, w.until)
		}
		if addTime(now, int64(l.pace.waitFrom(now, until, before))) > gives {
			late = append(late, w)
		} else {
			before++
		}
	}
	for _, w := range late {
		l.Cancel(w)
	}
	return late
}
