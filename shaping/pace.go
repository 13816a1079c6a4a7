package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// Slack is how far a schedule may lag behind the clock. A departure that a
// late timer delayed by less is made up for, so that the long-run rate is
// exact; what a longer stall of the machine delayed is not, so that nothing
// leaves in a bunch.
const Slack = 2 * time.Millisecond

// Endless is the instant of what does not come by itself: the end of a pause
// that somebody has to end, the next departure while no place is free.
const Endless int64 = math.MaxInt64

// A Pace says when the next request may go, and nothing about who that is. It
// may go when the rate allows, and a place is free at the upstream, and no
// pause lasts; each of them may be absent.
//
// In any interval of length t at most rate × (t + Slack) + burst requests
// leave, whatever the arrivals, pauses and places, and however late the timers;
// see [Pace.Leave]. A request may cost more than one, and is then as many: what
// leaves costs at most rate × (t + Slack) + the burst, or if that is more, the
// cost of the last one in the interval.
//
// Time is an argument everywhere: nanoseconds since any epoch, from 0 to 2^62.
// It may step: set back, a schedule waits for one interval more at most, or for
// what the last departure cost; set forward, nothing that waits leaves in a
// bunch. Costs are at least 1. A Pace is a value without locks.
type Pace struct {
	schedule         // no rate: as fast as places become free
	places   int     // how many may be unfinished at once; 0: any number
	taken    int     // how many are unfinished
	below    int     // how many of these are of classes below High
	pause    pause   // what an operator has stopped
	ready    int64   // no place was free for what waits before, whatever the rate allows
	resumed  int64   // when the last pause ended
	held     int64   // how long pauses and stalls have held up those who wait, in all
	slowed   int64   // when the pace was last lowered or paused
	grants   *grants // of a schedule that others share; nil: of none
	leases   *leases // of places that others share; nil: of none
	rest     *rest   // what those below High may use of it; nil: all
}

type pause struct{ from, until int64 } // until 0: none

// NewPace returns a pace at which burst requests may go at once and rate in the
// long run, as far as fewer than places are unfinished. A zero rate or zero
// places are no bound. It takes what [limiter.ValidateBucket] accepts.
func NewPace(rate limiter.Rate, burst int64, places int) Pace {
	return Pace{schedule: schedule{rate: rate, burst: burst}, places: places, slowed: math.MinInt64}
}

func (p *Pace) rated() bool { return p.rate.Count > 0 }

// Due is the earliest instant at which the next that waits may leave, if it is of
// that cost and class, as seen at now, and no further place becomes free: long past
// after a quiet time, Endless if it does not come by itself.
func (p *Pace) Due(now, cost int64, c queue.Class) int64 { return p.dueSince(now, 0, cost, c) }

// dueSince is Due for one that could not leave before that instant, as if a
// pause had ended then.
func (p *Pace) dueSince(now, since, cost int64, c queue.Class) int64 {
	p.settle(now)
	if p.full(now) {
		return Endless
	}
	return p.dueByRate(now, since, cost, c)
}

// dueByRate is dueSince if a place is free.
func (p *Pace) dueByRate(now, since, cost int64, c queue.Class) int64 {
	at := int64(math.MinInt64)
	if p.grants.bind(now) {
		at = p.granted(now, cost)
	} else if p.rated() {
		at = p.due(p.left(now, p.since(since)), cost).ceil()
	}
	if p.holds(c) {
		at = max(at, p.clear(now, since, cost))
	}
	return max(at, p.pause.until)
}

// since is that instant, or the one at which a pause has ended or will.
func (p *Pace) since(since int64) int64 {
	since = max(since, p.resumed)
	if p.pause.until != Endless {
		since = max(since, p.pause.until)
	}
	return since
}

// Pass lets a request through that does not have to wait for others, and reports
// whether it may go at once. It gets no credit for the time that nobody used.
func (p *Pace) Pass(now, cost int64, c queue.Class) bool {
	if p.Due(now, cost, c) > now {
		return false
	}
	if p.grants.bind(now) {
		p.leaveGranted(now, cost)
	} else if p.rated() {
		p.pass(now, p.resumed, cost)
		if p.holds(c) {
			p.rest.pass(now, p.resumed, cost)
		}
	}
	p.occupy(now, c)
	return true
}

// idle notes that nobody waits, so that nobody does who waited for the end of a
// pause.
func (p *Pace) idle(now int64) {
	if p.settle(now); p.pause.until == 0 {
		p.resumed = 0
	}
}

// Leave lets out a request that waited; Due must have come. What follows is
// scheduled from the instant at which it could have left, not from now, but at
// most Slack in the past. Each departure is paid for at that instant, as the
// bucket is then, which lies at most Slack before the real one: that is the
// whole proof of the promise. For the bucket held the burst at most before the
// first in an interval, and rate × (t + Slack) came in until the last, of cost c,
// which found min(c, burst). So those before it cost no more than
// rate × (t + Slack) + burst − min(c, burst), and with it all of them
// rate × (t + Slack) + max(burst, c).
func (p *Pace) Leave(now, cost int64, c queue.Class) {
	p.settle(now)
	if p.grants.bind(now) {
		p.leaveGranted(now, cost)
	} else if p.rated() {
		ready := p.ready
		if p.holds(c) {
			ready = p.leaveRest(now, cost)
		}
		tat, stalled := p.lagging(now, p.resumed, ready, cost)
		if stalled > 0 {
			p.held += stalled
			p.ready = max(p.ready, now-int64(Slack)) // it has been counted
		}
		p.charge(tat, cost)
	}
	p.occupy(now, c)
}

// passedOver notes that one of that cost and class is no more the next, and has
// not left. Until now no other could, so what gathered for it is no stall's.
func (p *Pace) passedOver(now, cost int64, c queue.Class) {
	p.ready = max(p.ready, min(now, p.Due(now, cost, c)))
}

// Rest lets n turns pass in which nobody leaves.
func (p *Pace) Rest(now, n int64) {
	if n > 0 && p.rated() {
		p.pass(now, 0, n)
	}
}

// Done gives a place back. Each request that left does it once.
func (p *Pace) Done(now int64, c queue.Class) {
	if n, ok := p.bound(now); ok && p.taken == n {
		p.ready = max(p.ready, now)
	}
	if p.holds(c) && p.rest.full(p) {
		p.rest.ready = max(p.rest.ready, now)
	}
	p.vacate(now, c)
}

// Taken is how many requests that left are unfinished.
func (p *Pace) Taken() int { return p.taken }

// Pause stops departures until that instant, or until Resume for Endless. It
// takes the place of a pause that lasts.
func (p *Pace) Pause(now, until int64) {
	p.settle(now)
	if until <= now {
		p.Resume(now)
		return
	}
	if until >= far {
		until = Endless
	}
	if p.pause.until == 0 {
		p.pause.from = now
	}
	p.pause.until, p.slowed = until, now
}

// Resume ends a pause. What waits goes on at the pace, with no bunch.
func (p *Pace) Resume(now int64) {
	if p.settle(now); p.pause.until != 0 {
		p.pause.until = now
		p.settle(now)
	}
}

// settle takes note of a pause that has ended, and of a clock set back: what is
// yet to come did not make anybody ready.
func (p *Pace) settle(now int64) {
	if p.ready > now {
		p.ready = 0
	}
	if p.resumed > now {
		p.resumed = 0
	}
	if p.rated() {
		p.paid(now)
	}
	if p.rest != nil {
		p.rest.settle(now)
	}
	if p.pause.until != 0 && p.pause.until <= now {
		p.held += p.pause.until - p.pause.from
		p.resumed = max(p.resumed, p.pause.until)
		p.pause = pause{}
	}
}

// Paused is the instant until which departures are stopped; 0 if they are not.
func (p *Pace) Paused(now int64) int64 {
	p.settle(now)
	return p.pause.until
}

// stopped reports whether there was a pause since that instant.
func (p *Pace) stopped(now, since int64) bool {
	return p.Paused(now) != 0 || p.resumed > since
}

// Patience is the clock by which the patience of those who wait runs: it stands
// still during a pause, and for as long as the machine stalled.
func (p *Pace) Patience(now int64) int64 {
	p.settle(now)
	if p.pause.until != 0 {
		now = p.pause.from
	}
	return now - p.held
}

// Runs is the instant at which Patience will be at that reading, if nothing
// holds it up further; Endless during a pause without end.
func (p *Pace) Runs(now, patience int64) int64 {
	p.settle(now)
	switch p.pause.until {
	case 0:
		return patience + p.held
	case Endless:
		return Endless
	}
	return patience + p.held + p.pause.until - p.pause.from
}

// reopened notes that what waits could not leave before that instant, so that
// it is no stall of the machine, and nothing that came together before leaves
// in a bunch.
func (p *Pace) reopened(at int64) { p.resumed = max(p.resumed, at) }

// rateHeld reports whether it is the rate that has held up one of that cost and
// class which leaves now, and nothing else: not its coming, nor a gate that opened,
// at since. That may be what the rest of the rate allows, so that it is searched
// for also while nobody uses what is reserved.
func (p *Pace) rateHeld(now, since, cost int64, c queue.Class) bool {
	if !p.rated() {
		return false
	}
	at := p.due(p.paid(now), cost).ceil()
	if p.holds(c) {
		at = max(at, p.rest.due(p.rest.paid(now), cost).ceil())
	}
	return at > max(since, p.ready, p.resumed)
}

// full reports whether no place is free.
func (p *Pace) full(now int64) bool {
	n, ok := p.bound(now)
	return ok && p.taken >= n
}

// Free is how many requests of cost 1 and that class could go at now, one right
// after the other, if nobody waits; and the time until it is one more, which is zero
// when it is the whole burst or not known.
func (p *Pace) Free(now int64, c queue.Class) (n int64, next time.Duration) {
	p.settle(now)
	n = math.MaxInt64
	if p.grants.bind(now) {
		n, next = p.freeGranted(now)
	} else if p.rated() {
		n, next = p.free(now)
	}
	free, bounded := p.places-p.taken, p.places > 0
	if p.leases != nil && bounded {
		free = p.freeLeased(now)
	}
	if free := int64(max(0, free)); bounded && free <= n {
		n, next = free, 0
	}
	if p.holds(c) {
		n, next = p.freeRest(now, n, next)
	}
	if p.pause.until != 0 {
		n, next = 0, p.wait(now, &lineup{head: 1, class: c}, 1, c)
	}
	return n, next
}

// Forgive makes the rate as good as new, as if nobody had left until now.
func (p *Pace) Forgive(now int64) {
	p.settle(now)
	p.tat, p.last = span{ns: now}, 0
	p.ready = max(p.ready, now) // nobody could have left by that before
	p.resumed = 0
	if p.rest != nil {
		p.rest.tat, p.rest.last = span{ns: now}, 0
	}
	if p.grants != nil {
		p.grants.next = 0
	}
}

// Settled is the time until the pace is as good as new, so that forgetting it
// changes no later answer; Pinned while a request is unfinished and places
// matter. ahead is the cost of requests that still have to leave.
func (p *Pace) Settled(now, ahead int64) time.Duration {
	switch p.settle(now); {
	case p.places > 0 && p.taken > 0, p.leases.pinned():
		return Pinned
	case !p.rated():
		return 0
	case p.grants != nil:
		return max(p.settledGranted(now), p.settled(now, ahead))
	case p.rest != nil:
		return max(p.rest.settled(now, 0), p.settled(now, ahead))
	}
	return p.settled(now, ahead)
}

// adopt goes on under other numbers, with so many thousandths reserved. The tokens
// left are kept, up to the new burst, and so are the places taken: if that is more
// than there are now, the next has to wait until enough are free.
func (p *Pace) adopt(now int64, rate limiter.Rate, burst int64, places int, parts int64) {
	p.settle(now)
	if lowered(p.rate, rate, p.burst, burst, p.places, places) {
		p.slowed = now
	}
	if p.full(now) {
		p.ready = max(p.ready, now) // a place may have become free by this
	}
	p.places = places
	p.leases.renew()
	rated := p.rated()
	switch {
	case rated && rate.Count > 0:
		if p.schedule.adopt(now, rate, burst); p.grants != nil {
			p.grants.alone = 0 // what that goes by is asked anew
		}
	default:
		p.schedule = schedule{rate: rate, burst: burst}
	}
	p.reserve(now, parts, rated)
}

// lowered reports whether any of these has become less.
func lowered(wasRate, rate limiter.Rate, wasBurst, burst int64, wasPlaces, places int) bool {
	return slower(rate, wasRate) || rate.Count > 0 && wasRate.Count > 0 && burst < wasBurst ||
		places > 0 && (wasPlaces == 0 || places < wasPlaces)
}

// slower reports whether a is a lower rate than b.
func slower(a, b limiter.Rate) bool {
	if a.Count == 0 || b.Count == 0 {
		return a.Count != 0
	}
	return float64(a.Count)*float64(b.Per) < float64(b.Count)*float64(a.Per)
}
