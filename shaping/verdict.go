package shaping

import (
	"math/bits"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A Verdict is what a Line says to a request that comes.
type Verdict struct {
	// Reason is why the request is refused: limiter.ReasonQueueFull,
	// limiter.ReasonMaxWait, limiter.ReasonPaused if it is a pause or a gate
	// that makes the wait too long, or limiter.ReasonLimit if it costs more than
	// limiter.MaxPeriod; limiter.ReasonNone if it goes at once or waits.
	Reason limiter.Reason
	// RetryAfter, on a refusal, is the time after which a request that comes
	// alone is not refused: until a place is free and the wait short enough.
	// It is limiter.Never for limiter.ReasonLimit.
	RetryAfter time.Duration
	// Queued: the request waits.
	Queued bool
	// Wait is how long, if nobody ahead gives up, nobody overtakes, and places
	// at the upstream are free in time.
	Wait time.Duration
	// Ahead is how many are waiting before it.
	Ahead int
}

// Look says what Arrive would say, and changes nothing.
func (l *Line[T]) Look(now int64) Verdict { return l.LookFor(now, Entrant{}) }

// LookFor says what Enter would say, and changes nothing.
func (l *Line[T]) LookFor(now int64, e Entrant) Verdict {
	v, _ := l.look(now, e)
	return v
}

// look also says what those cost who are ahead.
func (l *Line[T]) look(now int64, e Entrant) (v Verdict, before int64) {
	cost := l.cost(e)
	if l.pace.rated() && (!l.pace.fits(cost) || l.pace.holds(e.Class) && !l.pace.rest.fits(cost)) {
		return Verdict{Reason: limiter.ReasonLimit, RetryAfter: limiter.Never}, 0
	}
	depth, most, back := l.Depth(now), l.longest(e), e.Ticket.back()
	if back {
		if v.Ahead, before, most = l.before(now, e); most < 0 {
			return Verdict{Reason: limiter.ReasonMaxWait, RetryAfter: 1}, 0
		}
	}
	if depth == 0 {
		l.pace.idle(now)
	}
	shut := l.shut(now, e)
	free := depth == 0 || l.gates != nil && l.Head(now) == nil || l.pace.rest != nil && l.passes(now, e.Class)
	if free && shut == 0 && l.pace.Due(now, cost, e.Class) <= now {
		return Verdict{}, 0
	}
	all := l.all()
	if cost > far-all {
		// Sums stay numbers, though flows and classes do not count each other's.
		// When all have left, it waits no longer than for a full bucket.
		return Verdict{Reason: limiter.ReasonMaxWait, RetryAfter: max(1, sum(l.drained(now, &e, all, 1), l.pace.filled()))}, all
	}
	if !back {
		v.Ahead, before = l.queue.Ahead(e.Class, e.Flow, now)
		v.Ahead, before = v.Ahead+l.ghosts.n, before+l.ghosts.cost
	}
	if shut == 0 && l.gates != nil { // it does not stand behind those who may not pass
		barred, theirs, _ := l.barred(now)
		v.Ahead, before = min(v.Ahead, l.queue.Len()-barred), min(before, l.queue.Cost()-theirs)
	}
	v.Queued = true
	v.Wait = l.search.sooner(l.wait(now, &e, before, cost), l.held(now, shut))
	if !back && l.sheds(now, e.Class) {
		// When all have left who wait now, it need not wait.
		return Verdict{Reason: limiter.ReasonMaxWait, RetryAfter: max(1, l.wait(now, &e, all, cost))}, before
	}
	if !back && depth >= l.places(now) && l.queue.Victim(e.Class, e.Flow, now) == nil {
		v.Reason, v.RetryAfter = limiter.ReasonQueueFull, l.room(now, depth, cost, e.Class)
		if shut != 0 && depth == 0 && l.pace.Due(now, cost, e.Class) <= now {
			v.Reason, v.RetryAfter = limiter.ReasonPaused, v.Wait // there is no queue, and a place at the upstream is free
		}
	}
	if v.Wait > most {
		if v.Reason == limiter.ReasonNone {
			v.Reason = limiter.ReasonMaxWait
			if until := l.pace.Paused(now); until != 0 && until != Endless && v.Wait-time.Duration(until-now) <= most ||
				shut != 0 && l.gateless(now, &e, before, cost) <= most {
				v.Reason = limiter.ReasonPaused
			}
		}
		// Who stands ahead goes on leaving, so its turn would come at the same
		// instant if it came later. Not so with other flows: who joins their
		// turns later joins them at the end as well. But once all who count as
		// much would be in time, it would be too, whoever goes first.
		late := l.drained(now, &e, l.upTo(now, e), cost) - most
		joined := l.queue.Joined(e.Class, addTime(now, int64(max(v.RetryAfter, late))))
		if joined {
			late = max(late, l.drained(now, &e, all, cost)-most)
		}
		v.RetryAfter = max(v.RetryAfter, l.sooner(now, &e, cost, most, late))
		// Who would have to go for it now need not then: of others that count as
		// much, too few may be left.
		if even, _ := l.queue.UpTo(e.Class, now); depth >= l.capacity && (joined || even == l.queue.Len()) {
			v.RetryAfter = max(v.RetryAfter, l.room(now, depth, cost, e.Class))
		}
	} else if v.Reason != limiter.ReasonNone && l.pace.rest != nil && e.Class == queue.High {
		// Until there is room, others may use tokens that it would have found.
		v.RetryAfter = max(v.RetryAfter, l.sooner(now, &e, cost, most, l.drained(now, &e, all, cost)-most))
	}
	if v.Reason != limiter.ReasonNone {
		v.Queued, v.Wait = false, 0
		// A head that is overdue frees its place any moment, but not now.
		v.RetryAfter = max(v.RetryAfter, 1)
		if l.pace.holds(e.Class) {
			v.RetryAfter = sum(v.RetryAfter, 1) // what one schedule is told of the other is rounded up
		}
	}
	return v, before
}

// held is how long nobody leaves who may not pass before shut, which may be
// Endless.
func (l *Line[T]) held(now, shut int64) time.Duration {
	until := now
	for _, at := range [...]int64{shut, l.pace.Paused(now)} {
		if at != Endless {
			until = max(until, at)
		}
	}
	return time.Duration(until - now)
}

// places is how many may stand in the queue: those who wait, and where departures
// have to be asked for, those who go as soon as there is an answer.
func (l *Line[T]) places(now int64) int {
	p := &l.pace
	if !p.grants.bind(now) && !p.leases.bind(now) {
		return l.capacity
	}
	n, _ := p.Free(now, queue.High)
	return l.capacity + int(min(n, MaxQueue))
}

// cost is what e takes of the rate.
func (l *Line[T]) cost(e Entrant) int64 {
	if !l.pace.rated() {
		return 1
	}
	return max(1, e.Cost)
}

// upTo is what those cost who go before e if it is the last of all that count as
// much. Others of a worse class that need fewer tokens than it does may leave
// before it too.
func (l *Line[T]) upTo(now int64, e Entrant) int64 {
	_, cost := l.queue.UpTo(e.Class, now)
	if l.pace.needs(l.cost(e)) > 1 {
		cost = l.queue.Cost()
	}
	if l.gates != nil && l.shut(now, e) == 0 {
		_, theirs, _ := l.barred(now)
		cost = min(cost, l.queue.Cost()-theirs)
	}
	return cost + l.ghosts.cost
}

// next is what the one costs that leaves next, or would in a dry run, and its class;
// 1 if there is none.
func (l *Line[T]) next(now int64) (cost int64, c queue.Class) {
	if w := l.Head(now); w != nil {
		return w.place.Cost, w.entrant.Class
	}
	return l.ghosts.head(), queue.High
}

// room is the time until one leaves who takes the last place that makes the
// queue full: the head, or a later one where places were taken away. Of who
// leaves until then no more is known than that they are no dearer than the
// dearest. Where nobody can wait it is until one of that class goes at once that
// costs so much.
func (l *Line[T]) room(now int64, depth int, cost int64, c queue.Class) time.Duration {
	over := depth - l.capacity
	if over <= 0 {
		if depth > 0 {
			cost, c = l.next(now)
		}
		return l.place(now, &lineup{head: cost, class: c}, cost, c)
	}
	most := l.dearest()
	before, c := l.anybody(now, min(l.all(), times(over, most)))
	return l.place(now, &before, most, c)
}

// Remaining is how many more requests of that class could be taken at now, at once
// or into the queue, and the time until it is more than that; zero when nothing is
// used, or it is not known.
func (l *Line[T]) Remaining(now int64, c queue.Class) (n int64, more time.Duration) {
	if depth := l.Depth(now); depth > 0 {
		n, more = int64(max(0, l.capacity-depth)), l.room(now, depth, 1, c)
		if l.passes(now, c) {
			free, next := l.pace.Free(now, c)
			if n += free; next > 0 {
				more = min(more, next)
			}
		}
		return n, more
	}
	n, more = l.pace.Free(now, c)
	return n + int64(l.capacity), more
}

// Free is how many of that class could go at now at once.
func (l *Line[T]) Free(now int64, c queue.Class) int64 {
	if l.Depth(now) > 0 && !l.passes(now, c) {
		return 0
	}
	n, _ := l.pace.Free(now, c)
	return n
}

// longest is how long e may wait.
func (l *Line[T]) longest(e Entrant) time.Duration {
	if e.MaxWait > 0 {
		return min(e.MaxWait, l.maxWait)
	}
	return l.maxWait
}

// times is n × cost, or far if it is more than that.
func times(n int, cost int64) int64 {
	if hi, lo := bits.Mul64(uint64(n), uint64(cost)); hi == 0 && lo < far {
		return int64(lo)
	}
	return far
}
