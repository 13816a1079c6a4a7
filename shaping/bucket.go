package shaping

import (
	"context"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A bucket is the waiting around one Line: a mutex, an alarm that is set only
// while somebody waits, and a channel for each who does. There is no goroutine
// that serves the queue, so an idle bucket costs its few words and nothing else.
type bucket struct {
	shaper *Shaper

	mu    sync.Mutex
	rules *rules // as the line has them
	line  Line[turn]
	alarm alarm // calls wake when something is due; nil until somebody waited
}

// A turn is what a waiter waits for. Its end is written once, under the
// bucket's lock, by whoever takes the waiter out of the line.
type turn struct {
	gone func() bool
	done chan struct{} // closed when the end stands

	// decision is made when the waiting ends: it would be most of what a waiter
	// takes of memory.
	decision *limiter.Decision
}

// arrive puts a request to the line. With a Waiter, wait tells the decision.
func (b *bucket) arriveLocked(now int64, req *Request) (limiter.Decision, *Waiter[turn]) {
	b.serveLocked(now) // a late alarm makes nobody's turn later
	e := req.entrant()
	if b.rules.DryRun {
		return b.decideLocked(now, b.line.Rehearse(now, e), queue.High), nil
	}
	seen := e.Gate.closure()
	verdict, w, out := b.line.Enter(now, e, turn{gone: req.Gone})
	if out != nil {
		b.refuseLocked(out, now, limiter.ReasonQueueFull)
	}
	if w == nil {
		d := b.decideLocked(now, verdict, e.Class)
		d.OwnDeadline = d.Reason == limiter.ReasonMaxWait && e.MaxWait > 0 && e.MaxWait < b.rules.MaxWait
		return d, nil
	}
	w.Value.done = make(chan struct{})
	if e.Gate != nil {
		e.Gate.watch(b)
		if e.Gate.closure() != seen { // since it was looked at; else nobody's turn has moved, and a look at all would be dear
			b.tellLateLocked(now, e.Gate)
		}
	}
	b.serveLocked(now) // one that costs less than the head it overtook may be due
	b.armLocked(now)
	return limiter.Decision{}, w
}

// wait waits for the end of w.
func (b *bucket) wait(ctx context.Context, w *Waiter[turn], d *limiter.Decision) error {
	select {
	case <-w.Value.done:
	case <-ctx.Done():
		if b.giveUp(w) {
			*d = *w.Value.decision
			return context.Cause(ctx)
		}
	}
	switch *d = *w.Value.decision; {
	case d.Reason == limiter.ReasonClientGone:
		return limiter.ErrClientGone
	case d.Allowed && ctx.Err() != nil:
		// The grant came first. The departure is used all the same: handed on
		// to the next, it would be made by now later than the schedule knows,
		// and by more than Slack that breaks the promise about any interval.
		d.Allowed, d.Reason = false, limiter.ReasonClientGone
		b.done(w.entrant.Class)
		return context.Cause(ctx)
	}
	return nil
}

// giveUp takes w out of the line unless its waiting has ended, which only the
// lock can tell.
func (b *bucket) giveUp(w *Waiter[turn]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.line.Head(now) // who counts better by now does so before anybody leaves
	if !b.line.Cancel(w) {
		return false
	}
	b.endLocked(w, now, limiter.ReasonClientGone)
	b.serveLocked(now) // who stood behind may be due, if it costs less
	b.armLocked(now)
	return true
}

// wake is called by the alarm. A call that came too late to be stopped finds
// nobody due and does no harm.
func (b *bucket) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serveLocked(now)
	b.armLocked(now)
}

// gateMoved is called when g is closed for another time than before. Who can no
// longer be let go in time is told so.
func (b *bucket) gateMoved(g *Gate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.tellLateLocked(now, g)
	b.serveLocked(now)
	b.armLocked(now)
}

func (b *bucket) tellLateLocked(now int64, g *Gate) {
	for _, w := range b.line.Late(now, g) {
		b.refuseLocked(w, now, limiter.ReasonPaused)
	}
}

// done gives back the place of a request that was let go, as one of that class.
func (b *bucket) done(c queue.Class) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.line.Done(now, c)
	if b.line.Waiting() > 0 || b.line.pace.leases != nil {
		b.serveLocked(now)
		b.armLocked(now)
	}
}

// learn takes note of how the upstream took a request that left at that instant.
func (b *bucket) learn(left time.Time, a limiter.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serveLocked(now) // by the pace under which they were due
	b.line.Learn(now, b.shaper.clock.of(left), a)
	b.serveLocked(now)
	b.armLocked(now)
}

// serve lets out everybody who is due, and tells those whose patience is over: one
// after the other, as one that is cheaper may become the head by it and be due.
func (b *bucket) serveLocked(now int64) {
	b.leaveLocked(now)
	for w, why := b.line.Expire(now); w != nil; w, why = b.line.Expire(now) {
		b.refuseLocked(w, now, why)
		b.leaveLocked(now)
	}
}

// leave lets out everybody who is due.
func (b *bucket) leaveLocked(now int64) {
	for w := b.line.Head(now); w != nil && b.line.Due(now) <= now; w = b.line.Head(now) {
		if w.Value.gone != nil && w.Value.gone() {
			b.line.Cancel(w) // and the same departure is the next one's
			b.endLocked(w, now, limiter.ReasonClientGone)
			close(w.Value.done)
			continue
		}
		if !b.line.leave(now, w) {
			continue // its gate has just let another line's pass
		}
		b.endLocked(w, now, limiter.ReasonNone)
		close(w.Value.done)
	}
}

// arm sets the alarm to what is due next, and asks for departures that are
// shared.
func (b *bucket) armLocked(now int64) {
	b.askLocked(now)
	at := b.line.Wake(now)
	if at == Endless {
		if b.alarm != nil {
			b.alarm.Stop()
		}
		return
	}
	if b.alarm == nil {
		b.alarm = b.shaper.alarms.newAlarm(b.wake)
	}
	b.alarm.Reset(time.Duration(at - now))
}

// refuse ends the waiting of one who is put out of the line, or was too long in
// it, with the time after which there is room for another like it.
func (b *bucket) refuseLocked(w *Waiter[turn], now int64, why limiter.Reason) {
	b.endLocked(w, now, why)
	d := w.Value.decision
	d.RetryAfter = max(1, b.line.LookFor(now, w.entrant).RetryAfter)
	d.ResetAfter = min(d.ResetAfter, d.RetryAfter)
	close(w.Value.done)
}

// end writes how w's waiting ended; w is out of the line.
func (b *bucket) endLocked(w *Waiter[turn], now int64, reason limiter.Reason) {
	if g := w.entrant.Gate; g != nil {
		g.unwatch(b)
	}
	d := b.stateLocked(now, w.entrant.Class)
	d.Allowed, d.Reason = reason == limiter.ReasonNone, reason
	d.OwnDeadline = reason == limiter.ReasonMaxWait && w.own
	d.Queued, d.Waited, d.Ahead = !w.prompt || !d.Allowed, time.Duration(now-w.Came), w.Ahead
	d.DryRun = false // it did wait, whatever the limit has become meanwhile
	w.Value.decision = &d
}

// decide is the decision about a request of that class that does not wait.
func (b *bucket) decideLocked(now int64, v Verdict, c queue.Class) limiter.Decision {
	d := b.stateLocked(now, c)
	d.Allowed, d.Reason = v.Reason == limiter.ReasonNone, v.Reason
	if v.Reason == limiter.ReasonQueueFull && b.rules.Queue == 0 {
		d.Reason = limiter.ReasonLimit // there is no queue to be full
	}
	d.Queued, d.Waited, d.Ahead = v.Queued, v.Wait, v.Ahead
	if !d.Allowed {
		d.RetryAfter = v.RetryAfter
		d.ResetAfter = min(d.ResetAfter, d.RetryAfter)
	}
	return d
}

// state is the part of a decision that does not depend on the request but for its
// class.
func (b *bucket) stateLocked(now int64, c queue.Class) limiter.Decision {
	d := b.rules.decision(b.shaper.clock.at(now), c)
	if b.rules.Rate.Count > 0 {
		d.Remaining, d.ResetAfter = b.line.Remaining(now, c)
	} else {
		d.Remaining = b.line.Free(now, c)
		d.Limit = b.line.Places(c)
	}
	return d
}

// peek is what the line would say to one of that class, without asking it.
func (b *bucket) peek(c queue.Class) limiter.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	d := b.decideLocked(now, b.line.LookFor(now, Entrant{Class: c}), c)
	d.Queued, d.Waited, d.Peeked = false, 0, true // nobody asked, so nobody waits
	return d
}

// adopt goes on under new rules. Who waits goes on waiting, in a dry run too:
// letting all of them out would be the bunch that the queue is there to prevent.
func (b *bucket) adopt(r *rules) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serveLocked(now) // by the old rules, under which they were due
	if b.rules.DryRun && !r.DryRun {
		b.line.EndRehearsal(now)
	}
	if b.rules.pausedUntil != r.pausedUntil {
		if r.pausedUntil == 0 {
			b.line.Resume(now)
		} else {
			b.line.Pause(now, r.pausedUntil)
		}
	}
	b.rules = r
	b.line.Adopt(now, r.Terms())
	b.serveLocked(now)
	b.armLocked(now)
}

// forget makes the rate as good as new.
func (b *bucket) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.serveLocked(now)
	b.line.Forgive(now)
	b.serveLocked(now)
	b.armLocked(now)
}

// idle ranks the bucket for the map of lines; see keyed.New.
func (b *bucket) idle(now int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(b.line.Idle(now))
}

// found is the rate and the places that are in force.
func (b *bucket) found() (limiter.Rate, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.line.Found()
}

// depth is how many wait, for how long the first of those who really do, how many
// are unfinished, and up to which class some are refused for the waits of others.
func (b *bucket) depth() (n int, oldest time.Duration, inFlight int, sheds string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if came := b.line.Oldest(); came >= 0 {
		oldest = time.Duration(now - came)
	}
	if c, ok := b.line.Sheds(now); ok {
		sheds = c.String()
	}
	return b.line.Depth(now), oldest, b.line.InFlight(), sheds
}

func (b *bucket) now() int64 { return b.shaper.clock.now() }

// A clock is the one place where the time is read: wall time at the start, and
// from there the monotonic clock, which nobody can set.
type clock struct{ base time.Time }

func (c *clock) now() int64 { return c.base.UnixNano() + int64(time.Since(c.base)) }

// of is the reading at t. A nil clock reads Unix time.
func (c *clock) of(t time.Time) int64 {
	if c == nil {
		return t.UnixNano()
	}
	return c.base.UnixNano() + int64(t.Sub(c.base))
}

func (c *clock) at(now int64) time.Time {
	if c == nil {
		return time.Unix(0, now)
	}
	return c.base.Add(time.Duration(now - c.base.UnixNano()))
}
