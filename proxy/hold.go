package proxy

import (
	"context"
	"errors"
	"time"
)

// A Gate stands behind the queues that lead to an Upstream and holds back who
// waits there, in order, while it is closed for any cause. A *shaping.Gate is
// one. It is safe for concurrent use.
type Gate interface {
	// Close closes it for a cause until an instant, or if that is zero until
	// Open. For one cause the later instant counts.
	Close(why string, until time.Time) bool
	// Open takes a cause away.
	Open(why string) bool
}

// Causes for which breakers close the Gate.
const (
	causeOpen  = "breaker_open"  // they are open, until one is to be probed
	causeProbe = "breaker_probe" // a probe is under way
)

// regate brings the Gate into line with the breakers, after one of them changed:
// while none of the addresses that are in takes a request, nobody is to come.
func (u *Upstream) regate() {
	if u.opts.Gate == nil {
		return
	}
	u.gating.Lock()
	defer u.gating.Unlock()
	close(u.moved)
	u.moved = make(chan struct{})
	if u.closed {
		return
	}
	until, probing, free := u.course()
	// What closes comes before what opens, that nobody slips through between.
	switch {
	case free:
		u.opts.Gate.Open(causeProbe)
		u.opts.Gate.Open(causeOpen)
	case probing:
		u.opts.Gate.Close(causeProbe, time.Time{})
		u.opts.Gate.Open(causeOpen)
	default:
		u.opts.Gate.Close(causeOpen, until)
		u.opts.Gate.Open(causeProbe)
	}
}

// course sums up the breakers of the addresses that are in: until when all are
// open, whether a probe is under way, or whether one takes a request. Where
// none is in, holding requests back would be of no use, so they are free.
func (u *Upstream) course() (until time.Time, probing, free bool) {
	all, now := u.known(), time.Now()
	free = true
	for _, a := range all {
		a.mu.Lock()
		out, state, ready, ends := a.out(len(all) == 1), a.breaker.at(now), a.breaker.ready(now), a.breaker.until
		a.mu.Unlock()
		switch {
		case out:
			continue
		case ready:
			return time.Time{}, false, true
		case state == BreakerHalfOpen:
			probing = true
		case until.IsZero() || ends.Before(until):
			until = ends
		}
		free = false
	}
	return until, probing, free
}

// leaveGate ends what u does to its Gate, which another may have by now.
func (u *Upstream) leaveGate() {
	if u.opts.Gate == nil {
		return
	}
	u.gating.Lock()
	defer u.gating.Unlock()
	u.closed = true
	close(u.moved)
	u.moved = make(chan struct{})
	u.opts.Gate.Open(causeProbe)
	u.opts.Gate.Open(causeOpen)
}

// whenMoved is closed when a breaker has changed.
func (u *Upstream) whenMoved() <-chan struct{} {
	u.gating.Lock()
	defer u.gating.Unlock()
	return u.moved
}

var errClientLeft = errors.New("the client left")

// wait is for a request that was let go in the instant before the Gate closed,
// from another queue than the one whose request probes: it waits for the
// breaker, and so do those behind it.
func (d *dispatch) wait(ctx context.Context, all []*address) error {
	select {
	case d.up.first <- struct{}{}: // in the order in which they came
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-d.up.first }()
	for {
		moved := d.up.whenMoved()
		err := d.try(ctx, all, nil)
		var held *unavailableError
		if !errors.As(err, &held) || held.reason != ReasonBreakerOpen {
			if err == nil && d.gone() {
				d.done()
				return errClientLeft
			}
			return err
		}
		timer := time.NewTimer(held.retryAfter)
		select {
		case <-moved:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
