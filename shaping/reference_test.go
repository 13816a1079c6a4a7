package shaping_test

import (
	"math"
	"math/big"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A ref is a whole line in its slow and obvious form: a list of everybody, a
// bucket that is a fraction of tokens at an instant, and for each class that
// somebody counts as, the flows in the order of their turns.
type ref struct {
	terms shaping.Terms

	tank      // what the rate has filled
	rest tank // the same for those below High, where a share is reserved

	taken     int   // places
	below     int   // of these, those below High
	placeFrom int64 // since when a place was free that had not been
	restFrom  int64 // the same of the places that are not reserved
	pauseFrom int64
	paused    int64 // until when; 0: not
	resumed   int64 // when the last pause ended
	excused   int64 // the time that counts as nobody's waiting, in all
	slowed    int64

	dearest int64      // the highest cost since nobody waited
	least   int64      // and the lowest
	head    *refWaiter // who was next at the last look

	now    int64 // of the last look
	all    []*refWaiter
	turns  [3][]string      // flows by level
	since  map[string]int64 // when, in numbers of changes, a flow came to hold what it holds
	moves  int64
	left   int64  // what those cost who left
	latest [2]int // of these, who came last: of all, and of those below High
}

type refWaiter struct {
	id      int
	e       shaping.Entrant
	cost    int64
	level   queue.Class
	came    int64
	excused int64 // what was excused when it came
	longest int64
	own     bool // longest is the client's own time, which no operator stops
	ahead   int
	before  int64
	left    int64
}

func newRef(t shaping.Terms) *ref {
	m := &ref{terms: t, slowed: math.MinInt64, since: map[string]int64{}}
	m.tank, m.rest = newTank(t.Rate, t.Burst), m.restTank()
	return m
}

func rat(n int64) *big.Rat          { return new(big.Rat).SetInt64(n) }
func add(a, b *big.Rat) *big.Rat    { return new(big.Rat).Add(a, b) }
func sub(a, b *big.Rat) *big.Rat    { return new(big.Rat).Sub(a, b) }
func mul(a, b *big.Rat) *big.Rat    { return new(big.Rat).Mul(a, b) }
func later(a, b *big.Rat) *big.Rat  { return pickRat(a, b, 1) }
func lesser(a, b *big.Rat) *big.Rat { return pickRat(a, b, -1) }

func pickRat(a, b *big.Rat, sign int) *big.Rat {
	if a.Cmp(b) == sign {
		return a
	}
	return b
}

func floor(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
func ceil(r *big.Rat) int64  { return -floor(new(big.Rat).Neg(r)) }

func (m *ref) rated() bool { return m.terms.Rate.Count > 0 }

// look takes note of the time: a pause that has ended, a clock set back by so
// much that the bucket would owe, and who has come to count better.
func (m *ref) look(now int64) {
	m.now = now
	if m.placeFrom > now {
		m.placeFrom = 0
	}
	if m.resumed > now {
		m.resumed = 0
	}
	if m.paused != 0 && m.paused <= now {
		m.excused += m.paused - m.pauseFrom
		m.resumed = max(m.resumed, m.paused)
		m.paused = 0
	}
	if m.restFrom > now {
		m.restFrom = 0
	}
	if m.rated() {
		m.tank.look(now)
		m.rest.look(now)
	}
	for m.terms.PromoteAfter > 0 {
		var next *refWaiter
		var first int64
		for _, w := range m.all {
			at := w.came + int64(m.terms.PromoteAfter)*int64(w.e.Class-w.level+1)
			if w.level > queue.High && m.first(w) && at <= now && (next == nil || at < first) {
				next, first = w, at
			}
		}
		if next == nil {
			break
		}
		next.level--
		m.tidy()
	}
	// One that is cheaper could not leave while a dearer one was next, so the
	// tokens that gathered until now are there for it.
	next := m.next()
	if next != nil && m.head != nil && next.cost < m.head.cost {
		m.placeFrom = max(m.placeFrom, min(now, m.dueFor(m.head.cost, m.head.e.Class)))
	}
	m.head = next
}

// cost is what a request takes of the rate.
func (m *ref) cost(e shaping.Entrant) int64 {
	if !m.rated() {
		return 1
	}
	return max(1, e.Cost)
}

func (m *ref) full() bool { return m.terms.MaxInFlight > 0 && m.taken >= m.terms.MaxInFlight }

// due is the first nanosecond at which the next may leave.
func (m *ref) due(now int64) int64 {
	m.look(now)
	if w := m.next(); w != nil {
		return m.dueFor(w.cost, w.e.Class)
	}
	return m.dueFor(1, queue.High)
}

// ends is when the pause that counts has ended or will.
func (m *ref) pauseEnds() int64 {
	if m.paused != 0 && m.paused != shaping.Endless {
		return m.paused
	}
	return m.resumed
}

func (m *ref) dueFor(cost int64, c queue.Class) int64 {
	at := int64(math.MinInt64)
	switch {
	case m.full(), m.paused == shaping.Endless:
		return shaping.Endless
	case m.rated():
		at = ceil(m.from(m.pauseEnds(), cost))
	}
	if m.held(c) {
		at = max(at, m.clear(cost))
	}
	return max(at, m.paused)
}

// clock is the time that counts as waiting.
func (m *ref) clock(now int64) int64 {
	if m.paused != 0 {
		now = m.pauseFrom
	}
	return now - m.excused
}

func (m *ref) longest(e shaping.Entrant) int64 {
	if e.MaxWait > 0 && e.MaxWait < m.terms.MaxWait {
		return int64(e.MaxWait)
	}
	return int64(m.terms.MaxWait)
}

// enter is a request that comes.
func (m *ref) enter(now int64, e shaping.Entrant, id int) (v shaping.Verdict, out *refWaiter) {
	v = m.verdict(now, e)
	switch {
	case v.Reason != "":
		return v, nil
	case !v.Queued:
		if m.rated() {
			m.tank.pass(now, m.resumed, m.cost(e))
			if m.held(e.Class) {
				m.rest.pass(now, m.resumed, m.cost(e))
			}
		}
		m.left += m.cost(e)
		m.gone(e.Class, id)
		m.takePlace(e.Class)
		return v, nil
	}
	_, before := m.ahead(e)
	if len(m.all) >= m.terms.Queue {
		out = m.victim(e)
		m.remove(out)
	}
	longest := m.longest(e)
	if len(m.all) == 0 {
		m.least, m.dearest = m.cost(e), m.cost(e)
	}
	m.least, m.dearest = min(m.least, m.cost(e)), max(m.dearest, m.cost(e))
	m.all = append(m.all, &refWaiter{
		id: id, e: e, cost: m.cost(e), level: e.Class, came: now, excused: m.clock(now), ahead: v.Ahead, before: before, left: m.left,
		longest: longest, own: e.MaxWait > 0 && e.MaxWait <= m.terms.MaxWait,
	})
	m.changed(e.Flow)
	return v, out
}

// leave lets one out who is due.
func (m *ref) leave(now int64) *refWaiter {
	m.look(now)
	w := m.next()
	if w == nil || m.due(now) > now {
		return nil
	}
	m.take(w)
	m.head = nil
	m.left += w.cost
	m.gone(w.e.Class, w.id)
	m.takePlace(w.e.Class)
	if m.rated() {
		stalled := m.pays(now, w.cost, w.e.Class)
		m.excused += stalled
		if stalled > 0 {
			m.placeFrom = max(m.placeFrom, now-int64(shaping.Slack))
		}
	}
	return w
}

// ends is when w's patience does, by what is known at now.
func (m *ref) ends(now int64, w *refWaiter) int64 {
	switch {
	case w.own:
		return w.came + w.longest
	case m.paused == shaping.Endless:
		return shaping.Endless
	case m.paused != 0:
		return m.paused + w.longest - (m.clock(now) - w.excused)
	}
	return now + w.longest - (m.clock(now) - w.excused)
}

// expire takes out one who has waited for as long as it may.
func (m *ref) expire(now int64) (*refWaiter, limiter.Reason) {
	m.look(now)
	var w *refWaiter
	for _, o := range m.all { // those with a deadline of their own last, each kind by when it ends
		if m.ends(now, o) <= now && (w == nil || w.own && !o.own || w.own == o.own && m.ends(now, o) < m.ends(now, w)) {
			w = o
		}
	}
	if w == nil {
		return nil, ""
	}
	m.remove(w)
	switch {
	case m.slowed >= w.came, w.own && (m.paused != 0 || m.resumed > w.came):
		return w, limiter.ReasonPaused
	case m.held(w.e.Class) && m.restFull():
		if m.latest[1] > w.id { // of others that take such a place
			return w, limiter.ReasonQueueFull
		}
	case m.left-w.left+m.tank.needs(m.head.cost)-m.tank.needs(w.cost) > w.before, m.held(w.e.Class) && m.latest[0] > w.id:
		return w, limiter.ReasonQueueFull
	}
	return w, limiter.ReasonMaxWait
}

func (m *ref) wake(now int64) int64 {
	if len(m.all) == 0 {
		return shaping.Endless
	}
	at := m.due(now)
	for _, w := range m.all {
		at = min(at, m.ends(now, w))
		if m.terms.PromoteAfter > 0 && w.level > queue.High && m.first(w) && m.least < m.head.cost {
			// One that is cheaper may become the next by it.
			at = min(at, w.came+int64(m.terms.PromoteAfter)*int64(w.e.Class-w.level+1))
		}
	}
	return at
}
