package shaping

import (
	"context"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A bucket is the waiting around one Line: a mutex, a timer that runs only while
// somebody waits, and a channel for each who does. There is no goroutine that
// serves the queue, so an idle bucket costs its few words and nothing else.
type bucket struct {
	clock *clock

	mu    sync.Mutex
	rules *rules // as the line has them
	line  Line[turn]
	timer *time.Timer // calls wake when the head is due; nil until somebody waited
}

// A turn is what a waiter waits for. Its end is written once, under the
// bucket's lock, by whoever takes the waiter out of the line.
type turn struct {
	gone func() bool
	done chan struct{} // closed when the end stands

	decision limiter.Decision
	err      error
}

// arrive puts a request to the line. With a Waiter, wait tells the decision.
func (b *bucket) arriveLocked(now int64, gone func() bool) (limiter.Decision, *Waiter[turn]) {
	// Who is due goes first; an arrival need not wait for a late timer.
	if b.line.Head() != nil && b.line.Due(now) <= now {
		b.releaseLocked(now)
		b.armLocked(now)
	}
	if b.rules.DryRun {
		return b.decideLocked(now, b.line.Rehearse(now)), nil
	}
	verdict, w := b.line.Arrive(now, turn{gone: gone})
	if w == nil {
		return b.decideLocked(now, verdict), nil
	}
	w.Value.done = make(chan struct{})
	if b.line.Head() == w {
		b.armLocked(now)
	}
	return limiter.Decision{}, w
}

// wait waits for the end of w.
func (b *bucket) wait(ctx context.Context, w *Waiter[turn]) (limiter.Decision, error) {
	select {
	case <-w.Value.done:
	case <-ctx.Done():
		b.giveUp(w)
	}
	d, err := w.Value.decision, w.Value.err
	if d.Allowed && ctx.Err() != nil {
		// The grant came first. The departure is used all the same: handed on
		// to the next, it would be made by now later than the schedule knows,
		// and by more than Slack that breaks the promise about any interval.
		d.Allowed, d.Reason = false, limiter.ReasonClientGone
	}
	if !d.Allowed && err == nil {
		err = context.Cause(ctx)
	}
	return d, err
}

// giveUp takes w out of the line unless its turn has come, which only the lock
// can tell.
func (b *bucket) giveUp(w *Waiter[turn]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line.Cancel(w) {
		now := b.clock.now()
		b.endLocked(w, now, limiter.ReasonClientGone, nil)
		if b.line.Head() == nil {
			b.armLocked(now)
		}
	}
}

// wake is called by the timer. A call that Stop or Reset came too late for finds
// nobody due and does no harm.
func (b *bucket) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.now()
	b.releaseLocked(now)
	b.armLocked(now)
}

// release lets out everybody who is due.
func (b *bucket) releaseLocked(now int64) {
	for w := b.line.Head(); w != nil && b.line.Due(now) <= now; w = b.line.Head() {
		if w.Value.gone != nil && w.Value.gone() {
			b.line.Cancel(w) // and the same departure is the next one's
			b.endLocked(w, now, limiter.ReasonClientGone, limiter.ErrClientGone)
			continue
		}
		b.line.Leave(now)
		b.endLocked(w, now, limiter.ReasonNone, nil)
	}
}

// arm sets the timer to the head's turn, or stops it when nobody waits.
func (b *bucket) armLocked(now int64) {
	switch head := b.line.Head(); {
	case head != nil && b.timer == nil:
		b.timer = time.AfterFunc(time.Duration(b.line.Due(now)-now), b.wake)
	case head != nil:
		b.timer.Reset(time.Duration(b.line.Due(now) - now))
	case b.timer != nil:
		b.timer.Stop()
	}
}

// end writes how w's waiting ended; w is out of the line.
func (b *bucket) endLocked(w *Waiter[turn], now int64, reason limiter.Reason, err error) {
	d := b.stateLocked(now)
	d.Allowed, d.Reason = reason == limiter.ReasonNone, reason
	d.Queued, d.Waited, d.Ahead = true, time.Duration(now-w.Came), w.Ahead
	d.DryRun = false // it did wait, whatever the limit has become meanwhile
	w.Value.decision, w.Value.err = d, err
	close(w.Value.done)
}

// decide is the decision about a request that does not wait.
func (b *bucket) decideLocked(now int64, v Verdict) limiter.Decision {
	d := b.stateLocked(now)
	d.Allowed, d.Reason = v.Reason == limiter.ReasonNone, v.Reason
	d.Queued, d.Waited, d.Ahead = v.Queued, v.Wait, v.Ahead
	if !d.Allowed {
		d.RetryAfter = v.RetryAfter
		d.ResetAfter = min(d.ResetAfter, d.RetryAfter)
	}
	return d
}

// state is the part of a decision that does not depend on the request.
func (b *bucket) stateLocked(now int64) limiter.Decision {
	d := b.rules.decision(b.clock.at(now))
	d.Remaining, d.ResetAfter = b.line.Remaining(now)
	return d
}

// peek is what the line would say, without asking it.
func (b *bucket) peek() limiter.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.now()
	d := b.decideLocked(now, b.line.Look(now))
	d.Queued, d.Waited, d.Peeked = false, 0, true // nobody asked, so nobody waits
	return d
}

// adopt goes on under new rules. Who waits goes on waiting, in a dry run too:
// letting all of them out would be the bunch that the queue is there to prevent.
func (b *bucket) adopt(r *rules) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.now()
	if b.rules.DryRun && !r.DryRun {
		b.line.EndRehearsal(now)
	}
	b.rules = r
	b.line.Adopt(now, r.Rate, r.Burst, r.Queue, r.MaxWait)
	b.armLocked(now)
}

// idle ranks the bucket for the map of lines; see keyed.New.
func (b *bucket) idle(now int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(b.line.Idle(now))
}

// depth is how many wait, and for how long the first of those who really do.
func (b *bucket) depth() (n int, oldest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.now()
	if w := b.line.Head(); w != nil {
		oldest = time.Duration(now - w.Came)
	}
	return b.line.Depth(now), oldest
}

// A clock is the one place where the time is read: wall time at the start, and
// from there the monotonic clock, which nobody can set.
type clock struct{ base time.Time }

func (c *clock) now() int64 { return c.base.UnixNano() + int64(time.Since(c.base)) }

func (c *clock) at(now int64) time.Time {
	return c.base.Add(time.Duration(now - c.base.UnixNano()))
}
