package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A Line is one queue without the waiting: [queue.Turns] say who is next, a
// [Pace] says when. It reads no clock, arms no timer and wakes nobody, so
// the same line serves live requests and a replay of last week's log: its
// driver tells it the time.
//
// A driver puts every request to [Line.Enter] or Arrive. While somebody waits,
// it calls [Line.Leave] until that returns nil and then [Line.Expire], until both
// do, at
// [Line.Wake] or soon after, and if that has come then also before anything
// else; [Line.Cancel] for a waiter that gives up; and [Line.Done] when a request
// that left has ended. Wake changes only by those, by Adopt, Pause, Resume, and
// a clock set back.
//
// Every operation takes constant or logarithmic time, but for the newcomer of
// a flow that holds many places, see [queue.Turns]; and while somebody passes
// others who stand before a Gate that is closed, it takes time for each of them.
// Times are as for Pace. A
// Line is not safe for concurrent use, and must not be copied while anybody
// waits.
type Line[T any] struct {
	pace     Pace
	capacity int
	maxWait  time.Duration
	queue    queue.Turns[*Waiter[T]]
	head     *Waiter[T] // who was next when that was last asked
	came     uint64     // how many have come to wait, or passed those who do, ever
	latest   [2]uint64  // of those who have left, who came last: of all, and of those below High
	left     int64      // what those cost who have left after waiting, ever

	// Who waits stands in one of these, by when it gives up: on the clock of
	// Pace.Patience, or if that is its own deadline on the plain one. The client
	// that set it does not stop its clock for a pause here.
	patience  heap[T]
	deadlines heap[T]

	ghosts ghosts
	search *search // nil: all is known
	shed   *shed   // nil: nobody is refused for the waits of others

	gates map[passage]stand // before which somebody waits; nil: none
	owner *bucket           // whose clock it goes by, and who takes its turns at gates; nil: Unix time
}

// A Waiter is one request's place in a Line.
type Waiter[T any] struct {
	Value T     // the driver's own
	Came  int64 // instant of arrival; of one that came back, the last
	Ahead int   // how many would have gone before it when it came

	entrant Entrant
	place   queue.Place[*Waiter[T]]
	before  int64  // what those ahead cost when it came
	until   int64  // when it gives up
	came    uint64 // who came before whom
	left    int64  // the line's left when it came
	index   int32  // in its heap
	own     bool   // until is its own deadline
	prompt  bool   // it was to leave at once, and did as soon as that was granted
}

// NewLine returns an empty line.
func NewLine[T any](t Terms) Line[T] {
	l := Line[T]{capacity: t.Queue, maxWait: t.MaxWait, search: newSearch(t), shed: newShed(t.ShedAbove)}
	rate, places := l.search.found(t)
	l.pace = NewPace(rate, t.Burst, places)
	if t.ReserveHigh != 0 {
		l.pace.rest = (&rest{parts: limiter.Parts(t.ReserveHigh)}).of(&l.pace)
	}
	l.queue.Ageing = int64(t.PromoteAfter)
	return l
}

// Arrive is Enter where all are of one class and flow, so that nobody is put
// out.
func (l *Line[T]) Arrive(now int64, v T) (Verdict, *Waiter[T]) {
	verdict, w, _ := l.Enter(now, Entrant{}, v)
	return verdict, w
}

// Enter is called for each request. If it has to wait, w is its place, with v as
// Value. If there was room for it only because another has less right to a
// place, that one is put out: it waits no more.
//
// What the wait will be is known on arrival, so a request that would wait too
// long is refused now and not after having waited.
func (l *Line[T]) Enter(now int64, e Entrant, v T) (verdict Verdict, w, out *Waiter[T]) {
	l.shed.see(now, l.Oldest())
	verdict, before := l.look(now, e)
	back := e.Ticket.back()
	if !back && (verdict.Queued || verdict.Reason != limiter.ReasonNone) {
		l.shed.came(e.Class)
	}
	switch {
	case verdict.Reason != limiter.ReasonNone:
		return verdict, nil, nil
	case !verdict.Queued:
		if !l.take(now, e) {
			return l.Enter(now, e, v) // the gate has just let another line's pass
		}
		l.pace.Pass(now, l.cost(e), e.Class)
		l.left += l.cost(e) // where some wait, it has passed them
		l.came++
		l.gone(e.Class, l.came)
		l.search.use(now)
		if !back {
			l.note(now, e, l.queue.Ticket(now))
		}
		return verdict, nil, nil
	}
	if !back && l.Depth(now) >= l.places(now) {
		out = l.queue.Victim(e.Class, e.Flow, now).Value
		l.Cancel(out)
	}
	l.came++
	w = &Waiter[T]{
		Value: v, Came: now, Ahead: verdict.Ahead, before: before, came: l.came, left: l.left, entrant: e,
		prompt: verdict.Wait == 0 && (l.pace.grants != nil || l.pace.leases != nil) && (l.pace.leases == nil || l.pace.hopeful(now)),
	}
	w.entrant.Ticket = nil // what it is told later is of another one's place
	w.place.Value, w.place.Cost = w, l.cost(e)
	l.stand(w, +1)
	if back {
		l.queue.Return(&w.place, e.Class, e.Flow, l.stood(e.Ticket), now)
		w.until, w.own = e.Ticket.until, e.Ticket.own
	} else {
		l.queue.Push(&w.place, e.Class, e.Flow, now)
		w.until, w.own = l.until(now, e)
		l.note(now, e, w.place.Ticket())
	}
	l.heap(w).push(w)
	return verdict, w, out
}

// until is when e gives up that comes at now, and whether it is its own deadline.
func (l *Line[T]) until(now int64, e Entrant) (at int64, own bool) {
	if e.MaxWait > 0 && e.MaxWait <= l.maxWait {
		return addTime(now, int64(e.MaxWait)), true
	}
	return addTime(l.pace.Patience(now), int64(l.maxWait)), false
}

// heap is the one in which w stands.
func (l *Line[T]) heap(w *Waiter[T]) *heap[T] {
	if w.own {
		return &l.deadlines
	}
	return &l.patience
}

// addTime is a + b, or the last instant there is.
func addTime(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Due is the instant at which the head may leave, if there is one, as seen at
// now; Endless if a place has to become free first, or a pause to be ended.
func (l *Line[T]) Due(now int64) int64 {
	w := l.Head(now)
	if w == nil {
		return l.pace.Due(now, l.ghosts.head(), queue.High)
	}
	return l.due(now, w)
}

// due is the instant at which w may leave, if it is the next and may pass its gate.
func (l *Line[T]) due(now int64, w *Waiter[T]) int64 {
	return l.pace.dueSince(now, l.opened(now, w), w.place.Cost, w.entrant.Class)
}

// Wake is the instant at which something is due for those who wait: the head
// to leave, or somebody's patience to end. Endless when nobody waits.
func (l *Line[T]) Wake(now int64) int64 {
	if l.queue.Len() == 0 {
		return Endless
	}
	at := l.Due(now)
	if l.gates != nil {
		l.ready(now)
	}
	if l.head == nil {
		if at = l.pace.Due(now, 1, queue.High); at <= now || l.pace.mayAsk(now) { // else the line takes its turn at quotas then
			_, _, at = l.barred(now)
		}
	} else if at > now {
		// One that may pass then may become the head, and be due.
		if l.gates != nil {
			_, _, opens := l.barred(now)
			at = min(at, opens)
		}
		if least, _ := l.queue.Costs(); least < l.head.place.Cost { // so may one that is cheaper
			at = min(at, l.queue.Ages())
		}
	}
	if g := l.pace.grants; g != nil && g.alone > now {
		at = min(at, g.alone) // to ask again
	}
	if l.pace.leases != nil {
		at = min(at, l.leaseWake(now))
	}
	if len(l.patience) > 0 {
		at = min(at, l.pace.Runs(now, l.patience[0].until))
	}
	if len(l.deadlines) > 0 {
		at = min(at, l.deadlines[0].until)
	}
	return at
}

// Waiting is how many really wait.
func (l *Line[T]) Waiting() int { return l.queue.Len() }

// Oldest is when the one came, first, who has waited longest; negative when
// nobody waits.
func (l *Line[T]) Oldest() int64 {
	if p := l.queue.Oldest(); p != nil {
		return p.Since()
	}
	return -1
}

// Head is the waiter that is next, or nil when nobody waits who may pass its
// gate.
func (l *Line[T]) Head(now int64) (w *Waiter[T]) {
	l.shed.see(now, l.Oldest())
	p := l.queue.Next(now)
	if p != nil && l.gates != nil && l.shut(now, p.Value.entrant) != 0 {
		if l.gates[p.Value.entrant.passage()].n < l.queue.Len() {
			p = l.queue.First(now, func(p *queue.Place[*Waiter[T]]) bool { return l.shut(now, p.Value.entrant) == 0 })
		} else {
			p = nil
		}
	}
	if p != nil {
		w = p.Value
	}
	if w != nil && l.pace.holds(w.entrant.Class) {
		w = l.passing(now, w)
	}
	if w != nil && l.head != nil && w.place.Cost < l.head.place.Cost {
		l.pace.passedOver(now, l.head.place.Cost, l.head.entrant.Class)
	}
	l.head = w
	return w
}

// Leave lets the head out and returns it; nil when nobody waits or the head is
// not yet due. It holds a place until Done.
func (l *Line[T]) Leave(now int64) *Waiter[T] {
	w := l.Head(now)
	if w == nil || !l.leave(now, w) {
		return nil
	}
	return w
}

// leave lets the head out. It is told who that is, as a gate that other lines have
// too may have changed since somebody looked.
func (l *Line[T]) leave(now int64, w *Waiter[T]) (ok bool) {
	if l.due(now, w) > now {
		return false
	}
	opened := l.opened(now, w)
	if !l.take(now, w.entrant) {
		return false
	}
	l.queue.Take(&w.place)
	l.shed.see(now, l.Oldest())
	l.stand(w, -1)
	l.heap(w).remove(w)
	if opened != 0 {
		l.pace.reopened(opened)
	}
	held := l.search != nil && l.pace.rateHeld(now, max(w.Came, opened), w.place.Cost, w.entrant.Class)
	w.prompt = w.prompt && l.prompt(now, w)
	l.pace.Leave(now, w.place.Cost, w.entrant.Class)
	if held {
		l.search.left(now, w.place.Cost)
		l.follow(now)
	}
	l.search.use(now)
	l.head = nil
	l.left += w.place.Cost
	l.gone(w.entrant.Class, w.came)
	return true
}

// Done gives back the place of a request of that class that went, at once or after
// waiting; one that was rehearsed is of class High. Who waits for a place may be due
// by it.
func (l *Line[T]) Done(now int64, c queue.Class) { l.pace.Done(now, c) }

// Expire takes out one who has waited as long as it may and is still not due,
// and says why; nil if there is none. On arrival its turn was to come in time:
// then the pace was lowered or paused, or others have overtaken it, or the
// places at the upstream were longer in use than anybody could know.
func (l *Line[T]) Expire(now int64) (*Waiter[T], limiter.Reason) {
	var w *Waiter[T]
	switch {
	case len(l.patience) > 0 && l.pace.Runs(now, l.patience[0].until) <= now:
		w = l.patience[0]
	case len(l.deadlines) > 0 && l.deadlines[0].until <= now:
		w = l.deadlines[0]
	default:
		return nil, limiter.ReasonNone
	}
	kept := int64(0) // what the head needs more than it, and so may keep it from going
	if head := l.Head(now); head != nil {
		kept = l.pace.needs(head.place.Cost) - l.pace.needs(w.place.Cost)
	}
	l.Cancel(w)
	switch {
	case l.pace.slowed >= w.Came, w.own && l.pace.stopped(now, w.Came), w.entrant.Gate.until(l.clock()) > w.Came:
		return w, limiter.ReasonPaused
	case l.overtaken(w, kept):
		return w, limiter.ReasonQueueFull
	}
	return w, limiter.ReasonMaxWait
}

// Cancel gives up a waiter's place, and reports whether it was still waiting.
// Who stands behind moves up at once, and nobody leaves earlier than the pace
// allows: if all give up, the next to come still waits for the schedule.
// Where flows and ageing meet, the order of turns is exact only if [Line.Head]
// has been asked at the same instant before, and so with ShedAbove is who is
// refused.
func (l *Line[T]) Cancel(w *Waiter[T]) bool {
	if !l.queue.Remove(&w.place) {
		return false
	}
	l.stand(w, -1)
	l.heap(w).remove(w)
	return true
}

// Depth is how many wait at now, rehearsed requests included.
func (l *Line[T]) Depth(now int64) int {
	l.settle(now)
	return l.queue.Len() + l.ghosts.n
}

// InFlight is how many that went are not Done.
func (l *Line[T]) InFlight() int { return l.pace.Taken() }

// Paused is the instant until which a pause lasts; 0 if there is none.
func (l *Line[T]) Paused(now int64) int64 { return l.pace.Paused(now) }

// Pinned is the Idle time of a line that must not be forgotten.
const Pinned time.Duration = math.MaxInt64

// Idle is the time until the line is as good as new, so that forgetting it
// changes no later answer; Pinned while somebody waits, or is unfinished and
// holds a place.
func (l *Line[T]) Idle(now int64) time.Duration {
	if l.queue.Len() > 0 {
		return Pinned
	}
	return max(l.pace.Settled(now, l.ghosts.cost), l.pace.leases.settled(now), l.search.kept(now), l.shed.settled(now))
}

// Adopt goes on under other terms. Nobody who waits is refused for it, nobody
// is overtaken, and a change lets out no bunch; see [Terms]. Who waits
// already keeps his own MaxWait.
func (l *Line[T]) Adopt(now int64, t Terms) {
	l.settle(now)
	l.Head(now) // who counts better by now does so by the old Ageing
	if _, most := l.queue.Costs(); l.pace.rated() && t.Burst > l.pace.burst && most > l.pace.burst {
		l.pace.slowed = now // who found a full bucket enough has to wait for a larger one
	} else if rest := l.pace.rest; rest != nil && most > rest.burst && limiter.RestOf(t.Burst, limiter.Parts(t.ReserveHigh)) > rest.burst {
		l.pace.slowed = now
	}
	l.shed.see(now, l.Oldest())
	l.shed = l.shed.adopt(t.ShedAbove)
	l.search = l.search.adopt(t, l.pace.rate, l.pace.places)
	rate, places := l.search.found(t)
	l.pace.adopt(now, rate, t.Burst, places, limiter.Parts(t.ReserveHigh))
	l.capacity, l.maxWait = t.Queue, t.MaxWait
	l.queue.Ageing = int64(t.PromoteAfter)
}

// Forgive makes the rate as good as new, as if nobody had left until now. It
// changes nothing for places and pauses.
func (l *Line[T]) Forgive(now int64) {
	l.settle(now)
	l.pace.Forgive(now)
}

// Pause stops departures until that instant, or until Resume for Endless. Its
// time does not count as waiting.
func (l *Line[T]) Pause(now, until int64) {
	l.settle(now)
	l.pace.Pause(now, until)
}

// Resume ends a pause.
func (l *Line[T]) Resume(now int64) {
	l.settle(now)
	l.pace.Resume(now)
}
