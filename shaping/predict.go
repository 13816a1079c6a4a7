package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// What a Pace foresees of a wait.

// A lineup is who stands before somebody.
type lineup struct {
	cost  int64       // of all together
	head  int64       // what the next costs, or who asks itself if nobody stands before it
	class queue.Class // of that
	split             // only where a share is reserved
}

// wait is how long a request of that cost and class would wait that comes at now
// and finds those before it, if none of them gives up, places are free in time, and
// a pause without end ends now. It is not negative.
func (p *Pace) wait(now int64, before *lineup, cost int64, c queue.Class) time.Duration {
	p.settle(now)
	from := now
	if p.pause.until != 0 && p.pause.until != Endless {
		from = p.pause.until
	}
	if !p.rated() {
		return time.Duration(from - now)
	}
	if p.grants.bind(now) {
		return p.waitGranted(now, from, before.cost, cost)
	}
	resumed, ready := p.resumed, p.ready
	if p.pause.until != 0 {
		resumed = from
	}
	if p.full(now) {
		ready = from
	}
	if p.rest != nil {
		return max(time.Duration(from-now), p.waitReserved(now, from, resumed, ready, before, cost, c))
	}
	tat, _ := p.lagging(from, resumed, ready, before.head)
	return max(time.Duration(from-now), p.paidAfter(now, tat, before.cost, cost))
}

// paidAfter is how long it takes from now until one of that cost may leave that
// finds the schedule at tat, and before itself others that cost so much.
func (p *schedule) paidAfter(now int64, tat span, before, cost int64) time.Duration {
	at := p.due(tat, cost)
	at.ns = min(at.ns-now, far-1) // relative to now, as an instant that far ahead may not be a number
	return time.Duration(p.plus(at, p.intervals(before)).ceil())
}

// waitFrom is wait for a request that cannot leave before that instant, nor can
// those before it.
func (p *Pace) waitFrom(now, from int64, before lineup, cost int64, c queue.Class) time.Duration {
	trial := *p
	if trial.pause.until == 0 {
		trial.pause.from = now
	}
	if trial.pause.until == Endless {
		trial.pause.until = 0
	}
	trial.pause.until = max(trial.pause.until, from)
	before.head, before.class = cost, c // from the end of a pause on, it does not matter who is first
	return trial.wait(now, &before, cost, c)
}

// A split is how a lineup's cost divides at most among High and those below, and
// what the dearest who waits costs. Of whom more are below, it takes longer.
type split struct{ high, below, most int64 }

// waitReserved is wait where a share is reserved, and nobody leaves before from; when
// a pause will have ended, and a place was free, is as it is seen then.
//
// One below High leaves no later than if all those of class High that stand before
// it went first, and then, with as many tokens of the rest as it holds at most,
// the others by the rest. For each departure, as things go, follows another by an
// interval of the one schedule or of the other, and the rest's is the longer one.
//
// One of class High leaves when all before it are paid for; but as the others cannot
// take more than the rest, not later than if all of class High before it went by
// what is reserved, after all that the rest's bucket holds at most.
func (p *Pace) waitReserved(now, from, resumed, free int64, before *lineup, cost int64, c queue.Class) time.Duration {
	r, ready := p.rest, p.rest.ready
	if r.full(p) {
		ready = from
	}
	tat, _ := p.lagging(from, resumed, free, before.head)
	rest := r.left(from, resumed)
	if below(before.class) > 0 {
		ready = max(ready, free)
		clear := max(ready, r.due(rest, before.head).ceil())
		rest, _ = r.lagging(from, resumed, max(ready, p.due(p.left(from, resumed), before.head).ceil()), before.head)
		stalled := int64(0)
		tat, stalled = p.lagging(from, resumed, clear, before.head)
		if c == queue.High && stalled == 0 { // it may pass
			if tat = p.left(from, resumed); tat.ns < from {
				tat = span{ns: from}
			}
		}
	}
	wait := p.paidAfter(now, tat, before.cost, cost)
	const rounding = 1 // one schedule may be told of the other's up to a nanosecond late
	if c == queue.High {
		if before.below > 0 {
			first := max(time.Duration(from-now), p.paidAfter(now, tat, 0, cost))
			wait = sum(min(wait, sum(first, r.atMost(addTime(before.high, max(r.burst, before.most))))), rounding)
		}
		return wait
	}
	dearest := cost
	if before.cost > 0 {
		dearest = max(cost, before.most)
	}
	if first := addTime(now, max(from-now, int64(p.paidAfter(now, tat, before.high, dearest)))); rest.ns < first {
		rest = span{ns: first}
	}
	byRest := r.paidAfter(now, rest, before.below, cost)
	if before.cost > 0 {
		byRest = sum(byRest, rounding)
	}
	return max(wait, byRest)
}

// atMost is how long it takes until what is reserved has let out so much, if nobody
// is let out by anything else.
func (r *rest) atMost(cost int64) time.Duration {
	s := schedule{rate: r.reserved}
	return time.Duration(s.intervals(cost).ceil())
}

func sum(a, b time.Duration) time.Duration { return time.Duration(addTime(int64(a), int64(b))) }

// filled is how long it takes until an empty bucket is full.
func (p *Pace) filled() time.Duration {
	full := p.intervals(p.burst).ceil()
	if p.rest != nil {
		full = max(full, p.rest.intervals(p.rest.burst).ceil())
	}
	return time.Duration(full)
}
