package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// What a Line does about gates. Who waits behind one that is closed keeps its
// place in the queue and is passed over; so no change of a gate moves anybody.

// closed is the instant until which that gate is closed; 0 if it is open.
func (l *Line[T]) closed(now int64, g *Gate) int64 {
	if until := g.until(l.clock()); until > now {
		return until
	}
	return 0
}

// shut is the instant until which e may not pass its gate, for it is closed or
// for its quota; 0 if it may.
func (l *Line[T]) shut(now int64, e Entrant) int64 {
	until := l.closed(now, e.Gate)
	if e.Paced {
		if at := e.Gate.slot(l.owner, l.clock().at(now), 0); !at.IsZero() {
			until = max(until, l.clock().of(at))
		}
	}
	return until
}

// opened is the instant since which w may pass its gate, if it could not before;
// else 0. Who came at that very instant was not the first who could leave.
func (l *Line[T]) opened(now int64, w *Waiter[T]) int64 {
	since := w.entrant.Gate.until(l.clock())
	if w.entrant.Paced {
		if at := w.entrant.Gate.since(l.clock().at(now)); !at.IsZero() {
			since = max(since, l.clock().of(at))
		}
	}
	if since < w.Came || since > now {
		return 0
	}
	return since
}

// take lets e pass its gate. It is not ok if that has just let another pass.
func (l *Line[T]) take(now int64, e Entrant) (ok bool) {
	return !e.Paced || e.Gate.take(l.owner, l.clock().at(now))
}

// clock is what now is read from; nil if that is Unix time.
func (l *Line[T]) clock() *clock {
	if l.owner == nil {
		return nil
	}
	return &l.owner.shaper.clock
}

// A passage is a gate as somebody passes it who waits.
type passage struct {
	gate  *Gate
	paced bool
}

func (e *Entrant) passage() passage { return passage{e.Gate, e.Paced} }

func (p passage) entrant() Entrant { return Entrant{Gate: p.gate, Paced: p.paced} }

// A stand is how many wait for one gate, and what they cost.
type stand struct {
	n    int
	cost int64
}

// stand notes that w waits for its gate, or with -1 that it does no more.
func (l *Line[T]) stand(w *Waiter[T], by int) {
	if w.entrant.Gate == nil {
		return
	}
	if l.gates == nil {
		l.gates = make(map[passage]stand)
	}
	p := w.entrant.passage()
	s := l.gates[p]
	s.n, s.cost = s.n+by, s.cost+int64(by)*w.place.Cost
	l.gates[p] = s
	if s.n == 0 {
		delete(l.gates, p)
		if p.paced {
			p.gate.queue(l.owner, time.Now(), false)
		}
	}
	if len(l.gates) == 0 {
		l.gates = nil
	}
}

// barred is how many wait who may not pass their gates, what they cost, and the
// instant at which the first of these is open, as far as is known.
func (l *Line[T]) barred(now int64) (n int, cost, opens int64) {
	opens = Endless
	for p, s := range l.gates {
		until := l.closed(now, p.gate)
		if until == 0 {
			until = l.shut(now, p.entrant()) // only now does the line take its turn at the quota
		}
		if until != 0 {
			n, cost = n+s.n, cost+s.cost
			opens = min(opens, until)
		}
	}
	return n, cost, opens
}

// turn is when the line can have its turn at a gate that is open but for its quota,
// if nobody else has it before; now, if it stands in turn there, and Endless if nobody
// waits for such a gate. For longer than that a place would be idle meanwhile.
func (l *Line[T]) turn(now int64) int64 {
	first := Endless
	for p := range l.gates {
		if p.paced && l.closed(now, p.gate) == 0 {
			first = min(first, l.clock().of(p.gate.turn(l.owner, l.clock().at(now))))
		}
	}
	return first
}

// ready tells the gates whether the line would let one pass that waits for them,
// but for their quotas.
func (l *Line[T]) ready(now int64) {
	for p := range l.gates {
		if p.paced && p.gate.slow.Load() {
			p.gate.queue(l.owner, l.clock().at(now), l.closed(now, p.gate) == 0 && l.readyFor(now, p))
		}
	}
}

// readyFor reports whether, if that passage were free, one that waits for it would
// be next and due.
func (l *Line[T]) readyFor(now int64, free passage) bool {
	next := l.queue.First(now, func(p *queue.Place[*Waiter[T]]) bool {
		e := p.Value.entrant
		return e.passage() == free || l.shut(now, e) == 0
	})
	return next != nil && next.Value.entrant.passage() == free && (l.due(now, next.Value) <= now || l.pace.mayAsk(now))
}

// wait is how long e waits if it comes at now and finds some before it that cost
// so much. Those of them that are for the same gate leave when it opens at the
// earliest, and no faster than its quota allows.
func (l *Line[T]) wait(now int64, e *Entrant, before, cost int64) time.Duration {
	lineup := l.lineup(now, e, before, cost)
	wait := l.pace.wait(now, &lineup, cost, e.Class)
	if e.Gate == nil {
		return wait
	}
	same := l.gates[e.passage()]
	if until := l.shut(now, *e); until != 0 && until != Endless {
		lineup.cost = min(before, same.cost)
		lineup.below = min(lineup.below, lineup.cost)
		lineup.high = min(lineup.high, lineup.cost-lineup.below)
		wait = max(wait, l.pace.waitFrom(now, until, lineup, cost, e.Class))
	}
	if e.Paced {
		// Each that costs something is one request.
		if at := e.Gate.slot(l.owner, l.clock().at(now), int(min(before, int64(same.n)))); !at.IsZero() {
			wait = max(wait, time.Duration(l.clock().of(at)-now))
		}
	}
	return wait
}

// gateless is wait as if e had no gate to pass.
func (l *Line[T]) gateless(now int64, e *Entrant, before, cost int64) time.Duration {
	lineup := l.lineup(now, e, before, cost)
	return l.pace.wait(now, &lineup, cost, e.Class)
}

// place is how long it takes until those before have left, and one more of that
// cost and class. If nobody may pass, that begins when somebody may.
func (l *Line[T]) place(now int64, before *lineup, cost int64, c queue.Class) time.Duration {
	if barred, _, opens := l.barred(now); barred > 0 && barred == l.queue.Len() && opens != Endless {
		return l.pace.waitFrom(now, opens, *before, cost, c)
	}
	return l.pace.wait(now, before, cost, c)
}

// Late takes out those behind g whose turns have moved beyond their patience
// because it is closed, so that they can be told at once.
func (l *Line[T]) Late(now int64, g *Gate) []*Waiter[T] {
	until := l.closed(now, g)
	if until == 0 || until == Endless || l.gates[passage{g, true}].n+l.gates[passage{g, false}].n == 0 {
		return nil
	}
	var late []*Waiter[T]
	var before lineup
	for p := range l.queue.All(now) {
		w := p.Value
		if w.entrant.Gate != g {
			continue
		}
		gives := w.until
		if !w.own {
			gives = l.pace.Runs(now, w.until)
		}
		// It is told only if there is no way: one of class High passes all others.
		c, sure := w.entrant.Class, before
		if l.pace.holds(c) {
			sure.most = w.place.Cost
		} else if l.pace.rest != nil {
			sure.cost = before.high
		}
		sure.high = 0
		if addTime(now, int64(l.pace.waitFrom(now, until, sure, w.place.Cost, c))) > gives {
			late = append(late, w)
			continue
		}
		before.cost += w.place.Cost
		if c == queue.High {
			before.high += w.place.Cost
		} else {
			before.below += w.place.Cost
		}
	}
	for _, w := range late {
		l.Cancel(w)
	}
	return late
}
