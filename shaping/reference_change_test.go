package shaping_test

import (
	"math/big"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func (m *ref) done(now int64) {
	if m.terms.MaxInFlight > 0 && m.taken == m.terms.MaxInFlight {
		m.placeFrom = max(m.placeFrom, now)
	}
	m.taken--
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
	if m.full() {
		m.placeFrom = max(m.placeFrom, now)
	}
	var tokens *big.Rat
	if old.Rate.Count > 0 {
		tokens = m.level(rat(now))
	}
	m.terms = t
	switch {
	case !m.rated():
	case tokens == nil: // a new bucket is full
		m.tokens, m.at, m.last = rat(t.Burst), rat(0), 0
	case old.Rate != t.Rate || old.Burst != t.Burst:
		// A begun token is kept in the units of the new schedule, of which an
		// interval has Per.
		n := rat(floor(tokens))
		begun := rat(floor(mul(sub(tokens, n), rat(int64(t.Rate.Per)))))
		tokens = add(n, begun.Quo(begun, rat(int64(t.Rate.Per))))
		m.tokens, m.at = lesser(tokens, rat(t.Burst)), rat(now)
		m.last = t.Burst - min(0, floor(tokens))
	}
}

// alone is how a newcomer would fare that comes so much later, if nobody else
// does and nothing else happens.
func (m *ref) alone(now int64, d time.Duration, e shaping.Entrant) (v shaping.Verdict, expired bool) {
	trial := *m
	trial.all, trial.since = nil, map[string]int64{}
	for _, w := range m.all {
		c := *w
		trial.all = append(trial.all, &c)
	}
	for l := range m.turns {
		trial.turns[l] = slices.Clone(m.turns[l])
	}
	for at := now; at <= now+int64(d); at = max(at, trial.wake(at)) {
		if w := trial.leave(at); w != nil {
			continue
		}
		if w, _ := trial.expire(at); w != nil {
			expired = true
			continue
		}
		if trial.wake(at) <= at {
			panic("nothing to do, and no time to wait for")
		}
	}
	return trial.verdict(now+int64(d), e), expired
}
