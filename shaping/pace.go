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
	ready    int64 // no place was free for what waits before, whatever the rate allows
	resumed  int64 // when the last pause ended
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
	if p.full() {
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
	p.resumed = 0 // nobody waits who waited for that
	p.taken++
	return true
}

// Leave lets out a request that waited; Due must have come. What follows is
// scheduled from the instant at which it could have left, not from now, but at
// most Slack in the past. Each departure is paid for at that instant, as the
// bucket is then, which lies at most Slack before the real one: that is the
// whole proof of the promise.
func (p *Pace) Leave(now int64) {
	p.settle(now)
	if p.rated() {
		tat, stalled := p.lagging(now)
		if stalled > 0 {
			p.held += stalled
			p.ready = max(p.ready, now-int64(Slack)) // it has been counted
		}
		p.tat = p.plus(tat, p.intervals(1))
	}
	p.taken++
}

// lagging is the schedule's tat as it is for one that waits and leaves at now.
// Tokens that it could not use for want of a place are there still. What came
// together before the end of a pause is not, but for one token: it would leave
// in a bunch. Nor is what would have come together since the instant at which it
// could have left, beyond Slack: that was a stall.
func (p *Pace) lagging(now int64) (tat span, stalled int64) {
	tat = p.paid(now)
	from := p.due(now)
	if from.ns < p.resumed {
		from = span{ns: p.resumed}
		tat = p.plus(from, p.intervals(p.burst-1))
	}
	if from.ns < p.ready {
		from = span{ns: p.ready}
	}
	if tat.before(from) {
		tat = from
	}
	if oldest := now - int64(Slack); from.ns < oldest {
		tat = p.plus(tat, p.minus(span{ns: oldest}, from))
		stalled = oldest - from.ns
	}
	return tat, stalled
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

// Wait is how long a request would wait that comes at now and finds ahead
// requests waiting, if none of them gives up, places are free in time, and a
// pause without end ends now. It is not negative.
func (p *Pace) Wait(now int64, ahead int) time.Duration {
	p.settle(now)
	var pause int64 // relative to now, as an instant that far ahead may not be a number
	if p.pause.until != 0 && p.pause.until != Endless {
		pause = p.pause.until - now
	}
	if !p.rated() {
		return time.Duration(pause)
	}
	trial := *p
	if p.pause.until != 0 {
		trial.resumed = now
	}
	if p.full() {
		trial.ready = now
	}
	tat, _ := trial.lagging(now)
	at := p.minus(tat, p.intervals(p.burst-1))
	if at.ns -= now; pause > 0 && at.ns < pause {
		at = span{ns: pause}
	}
	return time.Duration(max(pause, p.plus(at, p.intervals(int64(ahead))).ceil()))
}

// waitFrom is Wait for a request that cannot leave before that instant, and the
// ahead requests neither.
func (p *Pace) waitFrom(now, from int64, ahead int) time.Duration {
	trial := *p
	if trial.pause.until == 0 {
		trial.pause.from = now
	}
	if trial.pause.until == Endless {
		trial.pause.until = 0
	}
	trial.pause.until = max(trial.pause.until, from)
	return trial.Wait(now, ahead)
}

// reopened notes that what waits could not leave before that instant, so that
// it is no stall of the machine, and nothing that came together before leaves
// in a bunch.
func (p *Pace) reopened(at int64) { p.resumed = max(p.resumed, at) }

// full reports whether no place is free.
func (p *Pace) full() bool { return p.places > 0 && p.taken >= p.places }

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
	if slower(rate, p.rate) || rate.Count > 0 && p.rated() && burst < p.burst || p.places == 0 && places > 0 || places > 0 && places < p.places {
		p.slowed = now
	}
	if p.full() {
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
