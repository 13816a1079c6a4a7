package shaping

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A walk is one request on its way through a Chain.
type walk struct {
	chain    *Chain
	req      *limiter.Request
	gate     *Gate              // behind the limits
	all      []limiter.Decision // by link; one that was not asked has no Policy
	held     []limiter.Charge   // what limits in reject mode have been charged
	at       time.Time          // the instant of those charges
	shared   []SharedCharge     // what shared limits have been charged
	since    time.Time          // the instant of those charges, by their store
	dry      []rehearsed        // what shared limits in dry run have been charged
	places   []held             // what is held until the request has ended
	shares   []func()           // the same of shared places, to give them back
	learners []learner
	last     int           // the link that was asked last
	paced    int           // the link that holds it to the pace of the gate; -1: none
	waited   time.Duration // in the queues behind it
	tickets  []Ticket      // by link; nil: it does not come again
	back     bool          // it comes again
}

// again asks for another turn for a request that was let go.
func (w *walk) again(ctx context.Context, gone func() bool) (limiter.Permit, error) {
	req := *w.req
	req.Gone = gone
	next := &walk{chain: w.chain, req: &req, gate: w.gate, all: make([]limiter.Decision, len(w.all)), tickets: w.tickets, back: true}
	return next.acquire(ctx)
}

func (w *walk) acquire(ctx context.Context) (p limiter.Permit, err error) {
	ok, err := w.ask(ctx)
	switch {
	case err != nil:
		p.Decision, p.All = w.all[w.last], w.decided()
	case ok:
		w.passed(&p)
	default:
		w.refused(&p)
	}
	return p, err
}

// ask asks the limits until one refuses.
func (w *walk) ask(ctx context.Context) (ok bool, err error) {
	if !w.haveKeys() || !w.mayPass() || !w.back && !w.charge() {
		return false, nil
	}
	w.findPaced()
	if !w.takePlaces() {
		w.release()
		w.giveBack()
		return false, nil
	}
	// Places that nobody may wait for are asked before those that one may.
	for _, waits := range [...]bool{false, true} {
		for i := range w.chain.links {
			link := &w.chain.links[i]
			if link.Queue == nil || link.waits() != waits || !w.asked(i) {
				continue
			}
			if ok, err := w.enter(ctx, i); !ok {
				w.last = i
				return false, err
			}
		}
	}
	if w.paced < 0 {
		w.gate.pass()
	}
	return true, nil
}

// charge takes from the limits in reject mode, or if one of them refuses, from
// none.
func (w *walk) charge() bool {
	if !w.reject() {
		return false
	}
	if !w.rejectShared() {
		w.giveBack()
		return false
	}
	w.rejectDry()
	w.rejectSharedDry()
	return true
}

// turn is what the request asks of the queue at link i.
func (w *walk) turn(i int) Request {
	key := &w.req.Keys[i]
	return Request{
		Key: key.Value, Cost: key.Cost, Free: key.Free, Gone: w.req.Gone,
		Class: w.chain.class, Flow: key.Flow, MaxWait: key.MaxWait, Gate: w.gate, Paced: i == w.paced,
	}
}

// enter asks link i for a turn. It is not ok if the request goes no further; what
// it holds is then given back.
func (w *walk) enter(ctx context.Context, i int) (ok bool, err error) {
	d, req := &w.all[i], w.turn(i)
	if w.tickets != nil && w.holds(i) {
		req.Ticket = &w.tickets[i]
	}
	if req.MaxWait > 0 { // it is the client's, who does not begin anew at each queue
		req.MaxWait = max(1, req.MaxWait-w.waited)
	}
	holds, err := w.chain.links[i].Queue.acquire(ctx, &req, d)
	if err != nil && errors.Is(context.Cause(ctx), limiter.ErrShutdown) {
		d.Reason, d.Status, d.RetryAfter, err = limiter.ReasonShutdown, http.StatusServiceUnavailable, time.Second, nil
	}
	if holds != nil {
		w.places = append(w.places, held{holds, as(d, req.Class)})
		if w.chain.links[i].Queue.Policy().searches() {
			w.learners = append(w.learners, learner{holds, d.At})
		}
	}
	switch {
	case err != nil:
		w.release()
		return false, err
	case !d.Allowed && !d.DryRun:
		w.release()
		w.giveBack()
		return false, nil
	}
	if !d.DryRun {
		w.waited += d.Waited
	}
	return true, nil
}

// release gives the places back.
func (w *walk) release() {
	for _, h := range w.places {
		h.bucket.done(h.class)
	}
	for _, release := range w.shares {
		release()
	}
}

// findPaced finds the last link that may hold the request.
func (w *walk) findPaced() {
	w.paced = -1
	for i := range w.chain.links {
		if w.holds(i) {
			w.paced = i
		}
	}
}

// isHeld reports whether there is a link at which the request may have to wait.
func (w *walk) isHeld() bool {
	for i := range w.chain.links {
		if w.holds(i) {
			return true
		}
	}
	return false
}

// holds reports whether the request may have to wait at link i.
func (w *walk) holds(i int) bool {
	link := &w.chain.links[i]
	if link.Queue == nil || !w.asked(i) || w.req.Keys[i].Free {
		return false
	}
	p := link.Queue.Policy()
	return p.Queue > 0 && !p.DryRun
}

// asked reports whether link i is to decide about the request.
func (w *walk) asked(i int) bool {
	return !w.req.Keys[i].Skip && !w.req.Keys[i].Missing
}

// haveKeys notes the limits whose key the request lacks, and reports whether
// none of them refuses it for that.
func (w *walk) haveKeys() bool {
	ok := true
	for i, link := range w.chain.links {
		if !w.req.Keys[i].Missing {
			continue
		}
		name, dry := link.name()
		w.all[i] = limiter.Decision{
			Policy: name, Reason: limiter.ReasonMissingKey, Status: http.StatusBadRequest, DryRun: dry,
			RetryAfter: limiter.Never, At: time.Now(),
		}
		ok = ok && dry
	}
	return ok
}

// mayPass reports whether the gate is open, or else whether there is a queue to
// wait in until it is, or no limit that binds. The first limit in reject mode
// refuses for the gate.
func (w *walk) mayPass() bool {
	_, until, closed := w.gate.Closed()
	if !closed {
		return true
	}
	refuses := -1
	for i, link := range w.chain.links {
		if w.holds(i) {
			return true
		}
		if _, dry := link.name(); link.Queue == nil && !dry && w.asked(i) && refuses < 0 {
			refuses = i
		}
	}
	if refuses < 0 {
		return true
	}
	d := &w.all[refuses]
	if link := &w.chain.links[refuses]; link.Shared != nil || link.Places != nil {
		*d = w.peekShared(refuses)
	} else {
		key := &w.req.Keys[refuses]
		*d = w.chain.store.Peek(w.chain.links[refuses].Reject, key.Value, key.Charge())
	}
	d.Allowed, d.Peeked, d.Reason, d.RetryAfter = false, false, limiter.ReasonPaused, time.Second
	if !until.IsZero() {
		d.RetryAfter = max(1, until.Sub(d.At))
	}
	d.ResetAfter = min(d.ResetAfter, d.RetryAfter)
	return false
}

// reject takes from all binding limits in reject mode, or from none.
func (w *walk) reject() bool {
	var links []int
	for i, link := range w.chain.links {
		if link.Reject == nil || !w.asked(i) {
			continue
		}
		if _, dry := link.name(); dry {
			continue
		}
		w.held = append(w.held, limiter.Charge{Limit: link.Reject, Key: w.req.Keys[i].Value, Cost: w.req.Keys[i].Charge()})
		links = append(links, i)
	}
	if len(w.held) == 0 {
		return true
	}
	ok := true
	for n, d := range w.chain.store.Take(make([]limiter.Decision, 0, len(w.held)), w.held) {
		w.all[links[n]], w.at = d, d.At
		ok = ok && d.Allowed
	}
	if !ok {
		w.held = w.held[:0]
	}
	return ok
}

// rejectDry asks the limits in reject mode that are in dry run, each for
// itself: the refusal of one must not keep another from counting.
func (w *walk) rejectDry() {
	for i, link := range w.chain.links {
		if link.Reject == nil || !w.asked(i) {
			continue
		}
		if _, dry := link.name(); !dry {
			continue
		}
		charge := limiter.Charge{Limit: link.Reject, Key: w.req.Keys[i].Value, Cost: w.req.Keys[i].Charge()}
		w.all[i] = w.chain.store.Take(nil, []limiter.Charge{charge})[0]
	}
}

// giveBack undoes the charges of a request that a queue refused.
func (w *walk) giveBack() {
	if len(w.held) > 0 {
		w.chain.store.Return(w.held, w.at)
	}
	for i, link := range w.chain.links {
		if d := w.all[i]; link.Reject != nil && d.DryRun && d.Allowed {
			w.chain.store.Return([]limiter.Charge{{Limit: link.Reject, Key: w.req.Keys[i].Value, Cost: w.req.Keys[i].Charge()}}, d.At)
		}
	}
	w.giveBackShared()
}

// refused is the Permit of a request that a limit refused: the one from which
// it takes longest to be let through, as a client that comes back sooner is
// refused again. The limits that were not reached are looked at, but for those
// that are shared: a refusal is to cost no call.
func (w *walk) refused(p *limiter.Permit) {
	w.look(func(d *limiter.Decision) bool { return d.Policy == "" || d.Allowed && !d.DryRun })
	p.All = w.decided()
	found := false
	for _, d := range p.All {
		if !d.Allowed && !d.DryRun && !d.Peeked && (!found || d.RetryAfter > p.RetryAfter) {
			p.Decision, found = d, true
		}
	}
}

// passed is the Permit of a request that every limit let pass. After a wait
// the limits in reject mode are looked at again, so that the fields tell what
// is true when the client reads them.
func (w *walk) passed(p *limiter.Permit) {
	if w.waited > 0 || w.back {
		w.look(func(d *limiter.Decision) bool { return !d.DryRun })
		w.lookShared(func(d *limiter.Decision) bool { return (d.Policy != "" || w.back) && !d.DryRun })
	}
	if w.back { // those in reject mode let it pass when it came
		for i := range w.all {
			if d := &w.all[i]; d.Peeked {
				d.Allowed, d.Reason, d.RetryAfter = true, limiter.ReasonNone, 0
			}
		}
	}
	p.All = w.decided()
	p.Allowed = true
	if len(w.places)+len(w.shares) > 0 {
		p.Done = w.release
	}
	if len(w.learners) > 0 {
		p.Learn = w.learn
	}
	if w.tickets != nil {
		p.Again = w.again
	}
	for _, d := range p.All {
		// Smallest Remaining ÷ Limit; a limit that was not asked has none.
		if !d.DryRun && (p.Policy == "" || float64(d.Remaining)*float64(p.Limit) < float64(p.Remaining)*float64(d.Limit)) {
			p.Decision = d
		}
	}
}

// look brings the state in those decisions that which picks up to date; see
// lookShared for what takes a call.
func (w *walk) look(which func(*limiter.Decision) bool) {
	for i, link := range w.chain.links {
		d := &w.all[i]
		if link.Shared != nil || link.Places != nil || !w.asked(i) || !which(d) {
			continue
		}
		var now limiter.Decision
		if link.Queue != nil {
			now = link.Queue.peek(w.req.Keys[i].Value, w.chain.class)
		} else {
			now = w.chain.store.Peek(link.Reject, w.req.Keys[i].Value, w.req.Keys[i].Charge())
		}
		see(d, &now)
	}
}

// see brings the state in d up to date, and leaves what was decided as it is.
func see(d, now *limiter.Decision) {
	if d.Policy == "" {
		*d = *now
		return
	}
	d.Limit, d.Window, d.Remaining, d.ResetAfter = now.Limit, now.Window, now.Remaining, now.ResetAfter
}

// decided is the decisions in order, without the limits that had no say.
func (w *walk) decided() []limiter.Decision {
	all := w.all[:0]
	for _, d := range w.all {
		if d.Policy != "" {
			all = append(all, d)
		}
	}
	return all
}

// A held place is one of a line, taken as one of that class.
type held struct {
	*bucket
	class queue.Class
}

// A learner searches for its pace, and has let the request go at that instant.
type learner struct {
	*bucket
	left time.Time
}

// learn is the Permit's.
func (w *walk) learn(a limiter.Answer) {
	for _, l := range w.learners {
		l.bucket.learn(l.left, a)
	}
}
