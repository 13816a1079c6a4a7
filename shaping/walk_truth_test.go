package shaping_test

import (
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// truth checks that a refusal is true: who comes alone after RetryAfter is let
// in. In a queue with one flow and no ageing it is also not let in 1 ns before.
func (w *lineWalk) truth(e shaping.Entrant) {
	w.serve()
	v := w.line.LookFor(w.now, e)
	w.foreseen(e, v)
	if v.Reason == limiter.ReasonNone || w.terms.Rate.Count == 0 || w.terms.Queue == 0 || w.terms.MaxInFlight > 0 || w.ref.paused == shaping.Endless {
		return
	}
	w.counts["checked refusals"]++
	then, expired := w.ref.alone(w.now, v.RetryAfter, e)
	if then.Reason != limiter.ReasonNone {
		w.fail("%+v is told %+v, and then %+v", e, v, then)
	}
	worse := func(o *refWaiter) bool { return o.level > e.Class }
	if over := len(w.ref.all) - w.terms.Queue; w.cost > 0 && (over > 0 || w.ref.paused != 0 || slices.ContainsFunc(w.ref.all, worse)) {
		// Who leaves until there is room is not known, nor who of a worse class
		// needs fewer tokens and goes before; and who comes after a pause finds
		// tokens that are not for those who come in it.
		return
	}
	if e.Class == queue.High && w.terms.ReserveHigh > 0 && w.ref.ofHigh() < w.ref.upTo(queue.Low) || w.ref.held(e.Class) && w.cost > 0 {
		return // it may pass the others, and nobody knows which; nor what the first of them costs
	}
	if len(w.ref.flows()) > 1 || len(w.ref.flows()) == 1 && w.ref.flows()[0] != e.Flow || w.terms.PromoteAfter > 0 || expired {
		return
	}
	by := time.Duration(1)
	if w.ref.held(e.Class) {
		by = 4 // an instant of one schedule is rounded for the other
	}
	if before, _ := w.ref.alone(w.now, v.RetryAfter-by, e); before.Reason == limiter.ReasonNone {
		w.fail("%+v is told %+v, and 1 ns earlier it is %+v", e, v, before)
	}
}

// foreseen checks that who is let in waits for no longer than it was told, if nobody
// comes; and where costs are one, nobody takes turns, and nobody comes to count
// better, for as long as it was told.
func (w *lineWalk) foreseen(e shaping.Entrant, v shaping.Verdict) {
	if !v.Queued || w.terms.MaxInFlight > 0 || w.ref.paused == shaping.Endless || w.ref.joined(w.now+int64(v.Wait), e.Class) {
		return
	}
	several := len(w.ref.flows()) > 1 || len(w.ref.flows()) == 1 && w.ref.flows()[0] != e.Flow
	if several && w.terms.PromoteAfter > 0 {
		return // who stands behind in its flow's turns may come to count better
	}
	w.counts["checked waits"]++
	really, ok := w.ref.leaves(w.now, e)
	if !ok || really > v.Wait {
		w.fail("%+v is told %+v, and leaves after %v, %v", e, v, really, ok)
	}
	if w.cost > 0 || several || w.terms.PromoteAfter > 0 || len(w.ref.all) >= w.terms.Queue ||
		w.ref.ofHigh() < w.ref.upTo(queue.High) {
		return
	}
	if e.Class == queue.High && w.terms.ReserveHigh > 0 && w.ref.ofHigh() < w.ref.upTo(queue.Low) {
		return // it may pass the others
	}
	if really < v.Wait-2 && !w.gaveUp(v.Wait) {
		w.fail("%+v is told %+v, and leaves after %v already", e, v, really)
	}
}

// gaveUp reports whether somebody who waits gives up by then.
func (w *lineWalk) gaveUp(d time.Duration) bool {
	for _, o := range w.ref.all {
		if w.ref.ends(w.now, o) <= w.now+int64(d) {
			return true
		}
	}
	return false
}
