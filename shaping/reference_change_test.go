package shaping_test

import (
	"math/big"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func (m *ref) done(now int64, c queue.Class) {
	if m.terms.MaxInFlight > 0 && m.taken == m.terms.MaxInFlight {
		m.placeFrom = max(m.placeFrom, now)
	}
	m.taken--
	if c != queue.High {
		if m.held(c) && m.restFull() {
			m.restFrom = max(m.restFrom, now)
		}
		m.below--
	}
}

func (m *ref) pause(now, until int64) {
	if until <= now {
		m.resume(now)
		return
	}
	m.look(now)
	if m.paused == 0 {
		m.pauseFrom = now
	}
	m.paused, m.slowed = until, now
}

func (m *ref) resume(now int64) {
	m.look(now)
	if m.paused != 0 {
		m.paused = now
		m.look(now)
	}
}

func (m *ref) adopt(now int64, t shaping.Terms) {
	m.look(now)
	old := m.terms
	slower := func(was, is *big.Rat) bool { return is != nil && (was == nil || is.Cmp(was) < 0) }
	perNS := func(r limiter.Rate) *big.Rat {
		if r.Count == 0 {
			return nil
		}
		return big.NewRat(r.Count, int64(r.Per))
	}
	if slower(perNS(old.Rate), perNS(t.Rate)) || old.Rate.Count > 0 && t.Rate.Count > 0 && t.Burst < old.Burst ||
		t.MaxInFlight > 0 && (old.MaxInFlight == 0 || t.MaxInFlight < old.MaxInFlight) {
		m.slowed = now
	}
	if old.Rate.Count > 0 && t.Burst > old.Burst && m.dearest > old.Burst {
		m.slowed = now // a full bucket is more than it was
	}
	if trial := (&ref{terms: t}); old.ReserveHigh > 0 && m.dearest > m.rest.burst && t.Rate.Count > 0 && trial.restTank().burst > m.rest.burst {
		m.slowed = now
	}
	if m.full() {
		m.placeFrom = max(m.placeFrom, now)
	}
	wasFull, wasPlaces, reserved := m.restFull(), m.restPlaces(), old.ReserveHigh > 0
	if wasFull && reserved && t.ReserveHigh > 0 {
		m.restFrom = max(m.restFrom, now)
	}
	m.terms = t
	rated := old.Rate.Count > 0 && t.Rate.Count > 0
	if rated {
		m.tank.adopt(now, newTank(t.Rate, t.Burst))
	} else {
		m.tank = newTank(t.Rate, t.Burst) // a new bucket is full
	}
	rest := m.restTank()
	switch {
	case t.ReserveHigh == 0:
		if reserved && t.Rate.Count > 0 {
			m.resumed = max(m.resumed, now) // what gathered is for nobody who waits
		}
		m.rest, m.restFrom = rest, 0
		return
	case !reserved: // it begins with what there is of the whole
		m.slowed = now
		m.rest, m.restFrom = m.tank, 0
	case rated && (rest.each.Cmp(m.rest.each) > 0 || rest.burst < m.rest.burst), slower(m.rest.perNS(), rest.perNS()),
		m.restPlaces() > 0 && (wasPlaces == 0 || m.restPlaces() < wasPlaces):
		m.slowed = now
	}
	if t.Rate.Count > 0 && (rated || !reserved) {
		m.rest.adopt(now, rest)
	} else {
		m.rest = rest
	}
}

// copy is the same line, for a look at what would be.
func (m *ref) copy() *ref {
	trial := *m
	trial.all, trial.since = nil, map[string]int64{}
	for _, w := range m.all {
		c := *w
		trial.all = append(trial.all, &c)
	}
	for l := range m.turns {
		trial.turns[l] = slices.Clone(m.turns[l])
	}
	return &trial
}

// step is the next thing that happens, if there is one by then: somebody leaves, or
// waits no more.
func (m *ref) step(at, by int64) (now int64, left, gone *refWaiter) {
	for ; at <= by; at = max(at, m.wake(at)) {
		if left = m.leave(at); left != nil {
			return at, left, nil
		}
		if gone, _ = m.expire(at); gone != nil {
			return at, nil, gone
		}
		if m.wake(at) <= at {
			panic("nothing to do, and no time to wait for")
		}
	}
	return by, nil, nil
}

// alone is how a newcomer would fare that comes so much later, if nobody else
// does and nothing else happens.
func (m *ref) alone(now int64, d time.Duration, e shaping.Entrant) (v shaping.Verdict, expired bool) {
	trial := m.copy()
	for at, then := now, now+int64(d); ; {
		var left, gone *refWaiter
		if at, left, gone = trial.step(at, then); left == nil && gone == nil {
			return trial.verdict(then, e), expired
		}
		expired = expired || gone != nil
	}
}

// leaves is how long a newcomer really waits that comes now, if nobody else does and
// nothing else happens; not ok if it gives up.
func (m *ref) leaves(now int64, e shaping.Entrant) (wait time.Duration, ok bool) {
	const me = -1
	trial := m.copy()
	trial.enter(now, e, me)
	for at := now; ; {
		var left, gone *refWaiter
		at, left, gone = trial.step(at, shaping.Endless-1)
		switch {
		case left == nil && gone == nil, gone != nil && gone.id == me:
			return 0, false
		case left != nil && left.id == me:
			return time.Duration(at - now), true
		}
	}
}
