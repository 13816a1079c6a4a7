package shaping_test

import (
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A ref is a whole line in its slow and obvious form: a list of everybody, a
// bucket that is a fraction of tokens at an instant, and for each class that
// somebody counts as, the flows in the order of their turns.
type ref struct {
	terms shaping.Terms

	// How many tokens the bucket held at an instant. It holds one more each
	// interval, up to the burst.
	tokens, at *big.Rat

	taken     int   // places
	placeFrom int64 // since when a place was free that had not been
	pauseFrom int64
	paused    int64 // until when; 0: not
	resumed   int64 // when the last pause ended
	excused   int64 // the time that counts as nobody's waiting, in all
	slowed    int64

	last    int64      // what the last departure cost
	dearest int64      // the highest cost since nobody waited
	least   int64      // and the lowest
	head    *refWaiter // who was next at the last look

	all   []*refWaiter
	turns [3][]string      // flows by level
	since map[string]int64 // when, in numbers of changes, a flow came to hold what it holds
	moves int64
	left  int64 // what those cost who left
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
	return &ref{terms: t, tokens: rat(t.Burst), at: rat(0), slowed: math.MinInt64, since: map[string]int64{}}
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

func (m *ref) interval() *big.Rat {
	return big.NewRat(int64(m.terms.Rate.Per), m.terms.Rate.Count)
}

// level is how many tokens there are at an instant.
func (m *ref) level(at *big.Rat) *big.Rat {
	grown := new(big.Rat).Quo(sub(at, m.at), m.interval())
	return lesser(rat(m.terms.Burst), add(m.tokens, grown))
}

// whole is the instant at which there are n tokens, or were last fewer.
func (m *ref) whole(n int64) *big.Rat {
	return add(m.at, mul(sub(rat(n), m.tokens), m.interval()))
}

// look takes note of the time: a pause that has ended, a clock set back by so
// much that the bucket would owe, and who has come to count better.
func (m *ref) look(now int64) {
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
	if least := rat(min(0, m.terms.Burst-m.last)); m.rated() && m.level(rat(now)).Cmp(least) < 0 {
		m.tokens, m.at = least, rat(now)
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
		m.placeFrom = max(m.placeFrom, min(now, m.dueFor(m.head.cost)))
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

// needs is how many tokens one must find that costs so much: all of them, or a
// full bucket.
func (m *ref) needs(cost int64) int64 { return min(cost, m.terms.Burst) }

func (m *ref) full() bool { return m.terms.MaxInFlight > 0 && m.taken >= m.terms.MaxInFlight }

// due is the first nanosecond at which the next may leave.
func (m *ref) due(now int64) int64 {
	m.look(now)
	if w := m.next(); w != nil {
		return m.dueFor(w.cost)
	}
	return m.dueFor(1)
}

func (m *ref) dueFor(cost int64) int64 {
	switch {
	case m.full():
		return shaping.Endless
	case m.paused != 0:
		if m.rated() {
			trial := *m
			trial.resumed = m.paused
			return max(m.paused, ceil(trial.from(m.needs(cost))))
		}
		return m.paused
	case m.rated():
		return ceil(m.from(m.needs(cost)))
	}
	return math.MinInt64
}

// kept is the bucket as it is for those who wait: at the end of a pause it holds
// no more than one token.
func (m *ref) kept() (tokens, at *big.Rat) {
	if r := rat(m.resumed); m.resumed != 0 && m.whole(1).Cmp(r) < 0 {
		return rat(1), r
	}
	return m.tokens, m.at
}

// from is the instant at which there are n tokens for those who wait.
func (m *ref) from(n int64) *big.Rat {
	trial := ref{terms: m.terms}
	trial.tokens, trial.at = m.kept()
	return trial.whole(n)
}

// serve is the bucket as it is for one who waited and leaves at now: at which
// instant it counts as leaving, which is at most Slack ago, and how many tokens
// there were then. What it could not use for lack of a place is still there;
// what came together before a pause ended, but for one token, or while the
// machine stood still beyond Slack, is not.
func (m *ref) serve(now, cost int64) (tokens, at *big.Rat, stalled int64) {
	tokens, at = m.kept()
	from := m.from(m.needs(cost))
	from = later(from, rat(m.placeFrom))
	trial := &ref{terms: m.terms, tokens: tokens, at: at}
	tokens = trial.level(from)
	if oldest := rat(now - int64(shaping.Slack)); from.Cmp(oldest) < 0 {
		return tokens, oldest, now - int64(shaping.Slack) - floor(from)
	}
	return tokens, from, 0
}

// wait is how long one would wait with so much ahead.
func (m *ref) wait(now, ahead, cost int64) time.Duration {
	m.look(now)
	head := cost
	if w := m.next(); ahead > 0 && w != nil {
		head = w.cost
	}
	trial, begin := *m, now
	if m.paused != 0 {
		if m.paused != shaping.Endless {
			begin = m.paused
		}
		trial.resumed = begin
	}
	if m.full() {
		trial.placeFrom = begin
	}
	if !m.rated() {
		return time.Duration(begin - now)
	}
	trial.tokens, trial.at, _ = trial.serve(begin, head)
	return time.Duration(max(begin, ceil(trial.whole(ahead+m.needs(cost)))) - now)
}

// room is how long it takes until the queue is not full: until the head has left,
// or if there are over more, so many. Of these no more is known than that none is
// dearer than the dearest.
func (m *ref) room(now int64, over int) time.Duration {
	if over <= 0 {
		return m.wait(now, 0, m.next().cost)
	}
	var all int64
	for _, w := range m.all {
		all += w.cost
	}
	return m.wait(now, min(all, int64(over)*m.dearest), m.dearest)
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

// verdict is what a newcomer is told.
func (m *ref) verdict(now int64, e shaping.Entrant) shaping.Verdict {
	m.look(now)
	cost := m.cost(e)
	if len(m.all) == 0 && m.paused == 0 {
		m.resumed = 0 // nobody waited for it
	}
	if len(m.all) == 0 && m.dueFor(cost) <= now {
		return shaping.Verdict{}
	}
	ahead, before := m.ahead(e)
	v := shaping.Verdict{Queued: true, Ahead: ahead, Wait: m.wait(now, before, cost)}
	most := time.Duration(m.longest(e))
	if over := len(m.all) - m.terms.Queue; over >= 0 && m.victim(e) == nil {
		v.Reason = limiter.ReasonQueueFull
		if v.RetryAfter = m.wait(now, 0, cost); len(m.all) > 0 {
			v.RetryAfter = m.room(now, over)
		}
	}
	if v.Wait > most {
		if v.Reason == "" {
			v.Reason = limiter.ReasonMaxWait
			if m.paused != 0 && m.paused != shaping.Endless && v.Wait-time.Duration(m.paused-now) <= most {
				v.Reason = limiter.ReasonPaused
			}
		}
		// By then all who count as much are in time, whoever of them goes first;
		// and if others come to count as much by then, all who wait.
		// By then those of a worse class may have left who need fewer tokens.
		count := e.Class
		if m.needs(cost) > 1 {
			count = queue.Low
		}
		v.RetryAfter = max(v.RetryAfter, m.wait(now, m.upTo(count), cost)-most)
		joined := m.joined(now+int64(v.RetryAfter), e.Class)
		if joined {
			v.RetryAfter = max(v.RetryAfter, m.wait(now, m.upTo(queue.Low), cost)-most)
		}
		// By then there may be nobody who would have to go for it, but of a worse
		// class.
		worse := slices.ContainsFunc(m.all, func(o *refWaiter) bool { return o.level > e.Class })
		if over := len(m.all) - m.terms.Queue; over >= 0 && len(m.all) > 0 && (joined || !worse) {
			v.RetryAfter = max(v.RetryAfter, m.room(now, over))
		}
	}
	if v.Reason != "" {
		v.Queued, v.Wait, v.RetryAfter = false, 0, max(1, v.RetryAfter)
	}
	return v
}

// enter is a request that comes.
func (m *ref) enter(now int64, e shaping.Entrant, id int) (v shaping.Verdict, out *refWaiter) {
	v = m.verdict(now, e)
	switch {
	case v.Reason != "":
		return v, nil
	case !v.Queued:
		if m.rated() {
			m.tokens, m.at = sub(m.level(rat(now)), rat(m.cost(e))), rat(now)
			m.last = m.cost(e)
		}
		m.taken++
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
	m.taken++
	if m.rated() {
		tokens, at, stalled := m.serve(now, w.cost)
		m.tokens, m.at, m.last = sub(tokens, rat(w.cost)), at, w.cost
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
	case m.left-w.left+m.needs(m.head.cost)-m.needs(w.cost) > w.before:
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
