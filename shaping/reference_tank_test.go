package shaping_test

import (
	"math/big"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A tank is a bucket in its slow and obvious form: a fraction of tokens at an
// instant.
type tank struct {
	each  *big.Rat // the time in which there is one more, up to the burst; nil: no rate
	burst int64

	tokens, at *big.Rat
	last       int64 // what the last departure cost
}

// newTank is full.
func newTank(r limiter.Rate, burst int64) tank {
	t := tank{burst: burst, tokens: rat(burst), at: rat(0)}
	if r.Count > 0 {
		t.each = big.NewRat(int64(r.Per), r.Count)
	}
	return t
}

// restTank is what those below High have, as new: a share of rate and burst.
func (m *ref) restTank() tank {
	share := m.unreserved()
	t := newTank(m.terms.Rate, 0)
	if t.each != nil {
		t.each.Quo(t.each, share)
		t.burst = max(1, floor(mul(rat(m.terms.Burst), share)))
		t.tokens = rat(t.burst)
	}
	return t
}

// unreserved is the share that everybody may use.
func (m *ref) unreserved() *big.Rat {
	return big.NewRat(1000-int64(m.terms.ReserveHigh*1000+0.5), 1000)
}

// restPlaces are the places that those below High may take; 0: any number.
func (m *ref) restPlaces() int {
	if m.terms.MaxInFlight == 0 {
		return 0
	}
	return int(max(1, floor(mul(rat(int64(m.terms.MaxInFlight)), m.unreserved()))))
}

func (m *ref) held(c queue.Class) bool { return m.terms.ReserveHigh > 0 && c != queue.High }

func (m *ref) restFull() bool { return m.restPlaces() > 0 && m.below >= m.restPlaces() }

// gone notes who has left.
func (m *ref) gone(c queue.Class, id int) {
	m.latest[0] = max(m.latest[0], id)
	if c != queue.High {
		m.latest[1] = max(m.latest[1], id)
	}
}

func (m *ref) takePlace(c queue.Class) {
	m.taken++
	if c != queue.High {
		m.below++
	}
}

// level is how many tokens there are at an instant.
func (t *tank) level(at *big.Rat) *big.Rat {
	grown := new(big.Rat).Quo(sub(at, t.at), t.each)
	return lesser(rat(t.burst), add(t.tokens, grown))
}

// whole is the instant at which there are n tokens, or were last fewer.
func (t *tank) whole(n int64) *big.Rat {
	return add(t.at, mul(sub(rat(n), t.tokens), t.each))
}

// needs is how many tokens one must find that costs so much: all of them, or a
// full bucket.
func (t *tank) needs(cost int64) int64 { return min(cost, t.burst) }

// look takes note of a clock set back by so much that the bucket would owe.
func (t *tank) look(now int64) {
	if least := rat(min(0, t.burst-t.last)); t.level(rat(now)).Cmp(least) < 0 {
		t.tokens, t.at = least, rat(now)
	}
}

// kept is the bucket as it is for those who wait: at the end of a pause it holds
// no more than one token.
func (t *tank) kept(resumed int64) tank {
	k := *t
	if r := rat(resumed); resumed != 0 && t.whole(1).Cmp(r) < 0 {
		k.tokens, k.at = rat(1), r
	}
	return k
}

// from is the instant at which there are the tokens that one who waits must find.
func (t *tank) from(resumed, cost int64) *big.Rat {
	k := t.kept(resumed)
	return k.whole(t.needs(cost))
}

// serve is the bucket as it is for one who waited, could not leave before ready, and
// leaves at now: as it was at the instant at which it counts as leaving, which is at
// most Slack ago. What it could not use for lack of a place is still there;
// what came together before a pause ended, but for one token, or while the
// machine stood still beyond Slack, is not.
func (t *tank) serve(now, resumed, ready, cost int64) (k tank, stalled int64) {
	from := later(t.from(resumed, cost), rat(ready))
	k = t.kept(resumed)
	k.tokens, k.at = k.level(from), from
	if oldest := rat(now - int64(shaping.Slack)); from.Cmp(oldest) < 0 {
		k.at = oldest
		return k, now - int64(shaping.Slack) - floor(from)
	}
	return k, 0
}

func (t *tank) pays(k tank, cost int64) {
	t.tokens, t.at, t.last = sub(k.tokens, rat(cost)), k.at, cost
}

func (t *tank) pass(now, resumed, cost int64) {
	k := t.kept(resumed)
	k.tokens, k.at = k.level(rat(now)), rat(now)
	t.pays(k, cost)
}

// both are the buckets as they are for one of that class who waited.
func (m *ref) both(now, resumed, ready, restReady, cost int64, c queue.Class) (all, rest tank, stalled int64) {
	rest = m.rest.kept(resumed)
	if m.held(c) {
		mine := max(ready, restReady, ceil(m.tank.from(resumed, cost)))
		ready = max(ready, restReady, ceil(m.rest.from(resumed, cost)))
		rest, _ = m.rest.serve(now, resumed, mine, cost)
	}
	all, stalled = m.tank.serve(now, resumed, ready, cost)
	return all, rest, stalled
}

// pays is a departure after waiting.
func (m *ref) pays(now, cost int64, c queue.Class) (stalled int64) {
	all, rest, stalled := m.both(now, m.resumed, m.placeFrom, m.restFrom, cost, c)
	m.tank.pays(all, cost)
	if m.held(c) {
		m.rest.pays(rest, cost)
	}
	return stalled
}

// clear is when one below High may leave by the rest.
func (m *ref) clear(cost int64) int64 {
	switch {
	case m.restFull():
		return shaping.Endless
	case m.rated():
		return max(m.restFrom, m.paused, ceil(m.rest.from(m.pauseEnds(), cost)))
	}
	return max(m.restFrom, m.paused)
}

// adopt makes the bucket another, whose rate has that Per.
func (t *tank) adopt(now int64, next tank) {
	if t.each.Cmp(next.each) == 0 && t.burst == next.burst {
		return
	}
	// A begun token is kept in the units of the new schedule, of which an
	// interval has Per.
	tokens := t.level(rat(now))
	per := new(big.Rat).SetInt(next.each.Num())
	n := rat(floor(tokens))
	begun := rat(floor(mul(sub(tokens, n), per)))
	tokens = add(n, begun.Quo(begun, per))
	*t = tank{
		each: next.each, burst: next.burst, tokens: lesser(tokens, rat(next.burst)), at: rat(now),
		last: next.burst - min(0, floor(tokens)),
	}
}

// perNS is the rate; nil if there is none.
func (t *tank) perNS() *big.Rat {
	if t.each == nil {
		return nil
	}
	return new(big.Rat).Inv(t.each)
}
