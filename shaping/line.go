package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A Line is one queue without the waiting: a [queue.FIFO] says who is next, a
// [Pace] says when. It reads no clock, arms no timer and wakes nobody, so
// the same line serves live requests and a replay of last week's log: its
// driver tells it the time.
//
// A driver puts every request to [Line.Arrive]. While [Line.Head] is not nil it
// sees to it that [Line.Leave] is called at [Line.Due] or soon after, and
// [Line.Cancel] for a waiter that gives up. While somebody waits, Due changes
// only by Leave, Adopt and a clock set back.
//
// Every operation takes constant time, where each rehearsed request pays for
// its own leaving. Times are as for Pace: now is always the present, as an
// instant before the last one says that the clock was set back. A Line is not
// safe for concurrent use, and must not be copied while anybody waits.
type Line[T any] struct {
	pace    Pace
	places  int
	maxWait time.Duration
	queue   queue.FIFO[*Waiter[T]]

	// ghosts is how many places behind the queue are taken by rehearsed
	// requests. Nobody stands there, so a number is enough, and a dry run
	// takes no memory however long its queue would be.
	ghosts int
}

// A Waiter is one request's place in a Line.
type Waiter[T any] struct {
	Value T     // the driver's own
	Came  int64 // instant of arrival
	Ahead int   // how many waited when it came

	item queue.Item[*Waiter[T]]
}

// A Verdict is what a Line says to a request that comes.
type Verdict struct {
	// Reason is why the request is refused: limiter.ReasonQueueFull or
	// limiter.ReasonMaxWait; limiter.ReasonNone if it goes at once or waits.
	Reason limiter.Reason
	// RetryAfter, on a refusal, is the time after which a request that comes
	// alone is not refused: until a place is free and the wait short enough.
	RetryAfter time.Duration
	// Queued: the request waits.
	Queued bool
	// Wait is how long, if nobody ahead gives up.
	Wait time.Duration
	// Ahead is how many are waiting before it.
	Ahead int
}

// NewLine returns an empty line of that many places, at the pace of burst
// requests at once and rate in the long run. Who would have to wait longer
// than maxWait is refused.
func NewLine[T any](rate limiter.Rate, burst int64, places int, maxWait time.Duration) Line[T] {
	return Line[T]{pace: NewPace(rate, burst), places: places, maxWait: maxWait}
}

// Look says what Arrive would say, and changes nothing.
func (l *Line[T]) Look(now int64) Verdict {
	depth := l.Depth(now)
	if depth == 0 && l.pace.Due(now) <= now {
		return Verdict{}
	}
	v := Verdict{Queued: true, Ahead: depth, Wait: l.pace.Wait(now, depth)}
	if depth >= l.places {
		v.Reason = limiter.ReasonQueueFull
		v.RetryAfter = l.pace.Wait(now, depth-l.places) // the head's departure, or a later one's where places were taken away
	}
	if v.Wait > l.maxWait {
		if v.Reason == limiter.ReasonNone {
			v.Reason = limiter.ReasonMaxWait
		}
		// Its turn would come at the same instant if it came later, as who is
		// ahead goes on leaving.
		v.RetryAfter = max(v.RetryAfter, v.Wait-l.maxWait)
	}
	if v.Reason != limiter.ReasonNone {
		v.Queued, v.Wait = false, 0
		// A head that is overdue frees its place any moment, but not now.
		v.RetryAfter = max(v.RetryAfter, 1)
	}
	return v
}

// Arrive is called for each request. If it has to wait, the Waiter is its
// place, with v as Value; otherwise that is nil.
//
// What the wait will be is known on arrival, so a request that would wait too
// long is refused now and not after having waited.
func (l *Line[T]) Arrive(now int64, v T) (Verdict, *Waiter[T]) {
	verdict := l.Look(now)
	switch {
	case verdict.Reason != limiter.ReasonNone:
		return verdict, nil
	case !verdict.Queued:
		l.pace.Pass(now)
		return verdict, nil
	}
	w := &Waiter[T]{Value: v, Came: now, Ahead: verdict.Ahead}
	w.item.Value = w
	l.queue.Push(&w.item)
	return verdict, w
}

// Rehearse decides as Arrive does for a request that goes on whatever is
// decided, as in a dry run: if it would wait, its place is taken until its turn
// would have come, with nobody in it.
func (l *Line[T]) Rehearse(now int64) Verdict {
	verdict := l.Look(now)
	switch {
	case verdict.Reason != limiter.ReasonNone:
	case verdict.Queued:
		l.ghosts++
	default:
		l.pace.Pass(now)
	}
	return verdict
}

// settle lets the rehearsed requests out that were due by now, each at its very
// instant: no timer is late when there is none.
func (l *Line[T]) settle(now int64) {
	for l.ghosts > 0 && l.queue.Len() == 0 {
		due := l.pace.Due(now)
		if due > now {
			return
		}
		l.pace.Leave(due)
		l.ghosts--
	}
}

// EndRehearsal empties the places that rehearsed requests have taken. Nobody is
// to wait behind one that is not there.
func (l *Line[T]) EndRehearsal(now int64) {
	l.settle(now)
	l.ghosts = 0
}

// Due is the instant at which the head may leave, as seen at now.
func (l *Line[T]) Due(now int64) int64 { return l.pace.Due(now) }

// Head is the waiter that is next, or nil when nobody waits.
func (l *Line[T]) Head() *Waiter[T] {
	if it := l.queue.Head(); it != nil {
		return it.Value
	}
	return nil
}

// Leave lets the head out and returns it; nil when nobody waits or the head is
// not yet due.
func (l *Line[T]) Leave(now int64) *Waiter[T] {
	w := l.Head()
	if w == nil || l.pace.Due(now) > now {
		return nil
	}
	l.queue.Remove(&w.item)
	l.pace.Leave(now)
	return w
}

// Cancel gives up a waiter's place, and reports whether it was still waiting.
// Who stands behind moves up at once, and nobody leaves earlier than the pace
// allows: if all give up, the next to come still waits for the schedule.
func (l *Line[T]) Cancel(w *Waiter[T]) bool { return l.queue.Remove(&w.item) }

// Depth is how many wait at now, rehearsed requests included.
func (l *Line[T]) Depth(now int64) int {
	l.settle(now)
	return l.queue.Len() + l.ghosts
}

// Remaining is how many more requests could be taken at now, at once or into
// the queue, and the time until it is more than that; zero when nothing is
// used.
func (l *Line[T]) Remaining(now int64) (n int64, more time.Duration) {
	if depth := l.Depth(now); depth > 0 {
		return int64(max(0, l.places-depth)), l.pace.Wait(now, max(0, depth-l.places))
	}
	n, more = l.pace.Free(now)
	return n + int64(l.places), more
}

// Pinned is the Idle time of a line in which somebody waits.
const Pinned time.Duration = math.MaxInt64

// Idle is the time until the line is as good as new, so that forgetting it
// changes no later answer; Pinned while somebody waits.
func (l *Line[T]) Idle(now int64) time.Duration {
	if l.queue.Len() > 0 {
		return Pinned
	}
	return l.pace.Settled(now, l.ghosts)
}

// Adopt goes on under other numbers. Nobody who waits is refused for it, nobody
// is overtaken, and a change lets out no bunch; see [Pace.Adopt].
func (l *Line[T]) Adopt(now int64, rate limiter.Rate, burst int64, places int, maxWait time.Duration) {
	l.settle(now)
	l.pace.Adopt(now, rate, burst)
	l.places, l.maxWait = places, maxWait
}
