package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
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
// see [Pace.Leave].
//
// Time is an argument everywhere: nanoseconds since any epoch, from 0 to 2^62.
// It may step: set back, a schedule waits for one interval more at most; set
// forward, nothing that waits leaves in a bunch. A Pace is a value without
// locks.
type Pace struct {
	schedule       // no rate: as fast as places become free
	places   int   // how many may be unfinished at once; 0: any number
	taken    int   // how many are unfinished
	pause    pause // what an operator has stopped
	ready    int64 // nothing that waits could have left before, whatever the rate allows
	held     int64 // how long pauses and stalls have held up those who wait, in all
	slowed   int64 // when the pace was last lowered or paused
}

type pause struct{ from, until int64 } // until 0: none

// NewPace returns a pace at which burst requests may go at once and rate in the
// long run, as far as fewer than places are unfinished. A zero rate or zero
// places are no bound. It takes what [limiter.ValidateBucket] accepts.
func NewPace(rate limiter.Rate, burst int64, places int) Pace {
	return Pace{schedule: schedule{rate: rate, burst: burst}, places: places, slowed: math.MinInt64}
}

func (p *Pace) rated() bool { return p.rate.Count > 0 }

// Due is the earliest instant at which the next request may leave, as seen at
// now, if no further place becomes free: long past after a quiet time, Endless
// if it does not come by itself.
func (p *Pace) Due(now int64) int64 {
	p.settle(now)
	if p.places > 0 && p.taken >= p.places {
		return Endless
	}
	at := int64(math.MinInt64)
	if p.rated() {
		at = p.due(now).ceil()
	}
	return max(at, p.pause.until)
}

// Pass lets a request through that found nobody waiting, and reports whether
// it may go at once. It gets no credit for the time that nobody used.
func (p *Pace) Pass(now int64) bool {
	if p.Due(now) > now {
		return false
	}
	if p.rated() {
		p.pass(now)
	}
	p.taken++
	return true
}

// Leave lets out a request that waited; Due must have come. What follows is
// scheduled from the instant at which it was due, not from now, but at most
// Slack in the past. So the instants from which the schedule goes on are at
// least an interval apart while somebody waits, and each lies at most Slack
// before the real departure: that is the whole proof of the promise. It holds
// for every burst, as somebody who waits proves that no token was left.
func (p *Pace) Leave(now int64) {
	p.settle(now)
	if p.rated() {
		at, stalled := p.lagging(now)
		p.held += stalled
		p.leave(at)
	}
	p.taken++
}

// lagging is the instant from which the schedule goes on if one that waits
// leaves at now: that at which it was due, but at most Slack before now. What
// lies beyond was a stall. A wait for a place, or for the end of a pause, is
// none: who waited for that was not due before.
func (p *Pace) lagging(now int64) (at span, stalled int64) {
	at = p.due(now)
	if ready := min(p.ready, now); at.ns < ready {
		at = span{ns: ready}
	}
	if oldest := now - int64(Slack); at.ns < oldest {
		return span{ns: oldest}, oldest - at.ns
	}
	return at, 0
}

// Done gives a place back. Each request that left does it once.
func (p *Pace) Done(now int64) {
	if p.places > 0 && p.taken == p.places {
		p.ready = max(p.ready, now)
	}
	p.taken--
}

// Taken is how many requests that left are unfinished.
func (p *Pace) Taken() int { return p.taken }

// Pause stops departures until that instant, or until Resume for Endless.
func (p *Pace) Pause(now, until int64) {
	p.settle(now)
	if until <= now {
		return
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

// settle takes note of a pause that has ended.
func (p *Pace) settle(now int64) {
	if p.pause.until != 0 && p.pause.until <= now {
		p.held += p.pause.until - p.pause.from
		p.ready = max(p.ready, p.pause.until)
		p.pause = pause{}
	}
}

// Paused is the instant until which departures are stopped; 0 if they are not.
func (p *Pace) Paused(now int64) int64 {
	p.settle(now)
	return p.pause.until
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

// Wait is how long a request would wait that comes at now and finds ahead
// requests waiting, if none of them gives up, places are free in time, and a
// pause without end ends now. It is not negative.
func (p *Pace) Wait(now int64, ahead int) time.Duration {
	p.settle(now)
	var from int64 // relative to now, as an instant that far ahead may not be a number
	if p.pause.until != 0 && p.pause.until != Endless {
		from = p.pause.until - now
	}
	if !p.rated() {
		return time.Duration(from)
	}
	at, _ := p.lagging(now)
	if at.ns -= now; from > 0 && at.ns < from {
		at = span{ns: from}
	}
	return time.Duration(max(0, p.plus(at, p.intervals(int64(ahead))).ceil()))
}

// Free is how many requests could go at now, one right after the other, if
// nobody waits; and the time until it is one more, which is zero when it is
// the whole burst or not known.
func (p *Pace) Free(now int64) (n int64, next time.Duration) {
	p.settle(now)
	n = math.MaxInt64
	if p.rated() {
		n, next = p.free(now)
	}
	if p.places > 0 {
		if free := int64(max(0, p.places-p.taken)); free <= n {
			n, next = free, 0
		}
	}
	if p.pause.until != 0 {
		n, next = 0, p.Wait(now, 0)
	}
	return n, next
}

// Settled is the time until the pace is as good as new, so that forgetting it
// changes no later answer; Pinned while a request is unfinished and places
// matter. ahead requests still have to leave.
func (p *Pace) Settled(now int64, ahead int) time.Duration {
	switch p.settle(now); {
	case p.places > 0 && p.taken > 0:
		return Pinned
	case !p.rated():
		return 0
	}
	return p.settled(now, ahead)
}

// Adopt goes on under other numbers. The tokens left are kept, up to the new
// burst, and so are the places taken: if that is more than there are now, the
// next has to wait until enough are free.
func (p *Pace) Adopt(now int64, rate limiter.Rate, burst int64, places int) {
	p.settle(now)
	if slower(rate, p.rate) || p.places == 0 && places > 0 || places > 0 && places < p.places {
		p.slowed = now
	}
	if p.places > 0 && p.taken >= p.places {
		p.ready = max(p.ready, now) // a place may have become free by this
	}
	p.places = places
	switch {
	case p.rated() && rate.Count > 0:
		p.adopt(now, rate, burst)
	default:
		p.schedule = schedule{rate: rate, burst: burst}
	}
}

// slower reports whether a is a lower rate than b.
func slower(a, b limiter.Rate) bool {
	if a.Count == 0 || b.Count == 0 {
		return a.Count != 0
	}
	return float64(a.Count)*float64(b.Per) < float64(b.Count)*float64(a.Per)
}
