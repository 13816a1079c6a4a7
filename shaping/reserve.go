package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A rest is what classes below High may use of a Pace, where a share of rate, burst
// and places is reserved for High, as in Stripe's fleet usage load shedder ("Scaling
// your API with rate limiters", 2017): also while nobody uses that share.
//
// One of those that leaves is paid for in two schedules: the pace's, as everybody,
// and the rest's. It leaves at the instant from which on both allow it.
type rest struct {
	schedule              // the rest of the rate
	parts    int64        // what is reserved, in thousandths
	reserved limiter.Rate // what that is of the rate
	places   int          // how many of those may be unfinished; 0: any number
	ready    int64        // of these places none was free for what waits before
}

// whole is the thousandths in all.
const whole = 1000

// reserve goes on with so many thousandths reserved, after other numbers have
// changed; rated says whether there was a rate before. Nobody leaves sooner for what
// gathered until now.
func (p *Pace) reserve(now, parts int64, rated bool) {
	switch {
	case p.rest == nil && parts == 0:
		return
	case parts == 0:
		if p.rest = nil; p.rated() {
			p.reopened(now)
		}
		return
	case p.rest == nil:
		p.rest = &rest{schedule: p.schedule, parts: parts}
		rated, p.slowed = true, now
	}
	p.rest.parts = parts
	p.rest.follow(now, p, rated)
}

// reserved is how many thousandths are.
func (p *Pace) reserved() int64 {
	if p.rest == nil {
		return 0
	}
	return p.rest.parts
}

// of is the rest, as new, of a pace as new.
func (r *rest) of(p *Pace) *rest {
	rate, _ := p.rate.Thousandths(whole - r.parts)
	r.schedule = schedule{rate: rate, burst: limiter.RestOf(p.burst, r.parts)}
	r.reserved, _ = p.rate.Thousandths(r.parts)
	r.places = int(limiter.RestOf(int64(p.places), r.parts))
	return r
}

// follow goes on as the rest of p, whose numbers have changed. The tokens left are
// kept as those of p are, if it had a rate before.
func (r *rest) follow(now int64, p *Pace, rated bool) {
	if r.full(p) {
		r.ready = max(r.ready, now) // a place may have become free by this
	}
	was := *r
	r.of(p)
	if lowered(was.rate, r.rate, was.burst, r.burst, was.places, r.places) {
		p.slowed = now
	}
	if rated && p.rated() {
		rate, burst := r.rate, r.burst
		r.schedule = was.schedule
		r.schedule.adopt(now, rate, burst)
	}
}

// below is 1 for a class that has less than all of a pace where some is reserved.
func below(c queue.Class) int {
	if c == queue.High {
		return 0
	}
	return 1
}

// holds reports whether those of that class are held to the rest.
func (p *Pace) holds(c queue.Class) bool { return p.rest != nil && c != queue.High }

// full reports whether none of the places is free that are not reserved.
func (r *rest) full(p *Pace) bool { return r.places > 0 && p.below >= r.places }

// settle is as the pace's.
func (r *rest) settle(now int64) {
	if r.ready > now {
		r.ready = 0
	}
	if r.rate.Count > 0 {
		r.paid(now)
	}
}

// clear is the instant from which on the rest lets one of that cost leave that
// waits, whatever the whole allows: Endless until a place is free. It could not
// leave before since.
func (p *Pace) clear(now, since, cost int64) int64 {
	p.settle(now)
	r := p.rest
	switch {
	case r.full(p):
		return Endless
	case p.rated():
		return max(r.ready, p.pause.until, r.due(r.left(now, p.since(since)), cost).ceil())
	}
	return max(r.ready, p.pause.until)
}

// leaveRest lets one out that waited, as far as the rest is concerned, and returns
// the instant before which that did not allow it. An instant of one schedule counts
// in the other as the first whole nanosecond that is not before it.
func (p *Pace) leaveRest(now, cost int64) (ready int64) {
	r := p.rest
	ready = max(p.ready, r.ready)
	mine := r.due(r.left(now, p.resumed), cost).ceil()
	tat, _ := r.lagging(now, p.resumed, max(ready, p.due(p.left(now, p.resumed), cost).ceil()), cost)
	r.charge(tat, cost)
	return max(ready, mine)
}

// freeRest is Free for those below High, by what it is for all.
func (p *Pace) freeRest(now, n int64, next time.Duration) (int64, time.Duration) {
	r := p.rest
	if p.rated() {
		switch m, more := r.free(now); {
		case m < n:
			n, next = m, more
		case m == n && (more == 0 || next == 0):
			next = 0
		case m == n:
			next = max(next, more)
		}
	}
	if r.places > 0 {
		if free := int64(max(0, r.places-p.below)); free <= n {
			n, next = free, 0
		}
	}
	return n, next
}
