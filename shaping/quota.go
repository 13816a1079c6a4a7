package shaping

import (
	"slices"
	"time"
)

// A quota is what an upstream has said is left of its own limit, as a pace of its
// gate: what remains lasts until the reset. The limits before the gate each go
// on at their own pace; whichever is slower counts.
//
// It is the generic cell rate algorithm, as a schedule is, with a tolerance that
// shrinks: what leaves may be ahead of an even spread by a tenth of the time
// that is left. So a tenth of what remains may go at once after a quiet time,
// and few requests do not wait for a spread that many would need. As each is
// paid for all the same, no more leave until the reset than remain.
type quota struct {
	said  int64         // what was left by the last answer
	every time.Duration // until the reset ÷ what is left
	reset time.Time     // when it is as good as new: from then on it binds nobody
	tat   time.Time     // when everything that has left is paid for
	heard time.Time     // when all that was last said

	// turns are the lines whose head is ready to leave but for the quota, in the
	// order in which they leave.
	turns []*bucket
}

const (
	ahead = 10 // what leaves may be ahead by this part of the time that is left

	// soon is when a line looks again that is not the first of those who could
	// leave at once. It is told before, when that has left or cannot; to look
	// without a pause would keep a core busy until then.
	soon = time.Millisecond
)

// at is when the nth from now may leave, which is the next with 0. Nobody waits
// for longer than to the reset.
func (q *quota) at(n int) time.Time {
	left := q.reset.Sub(q.tat)
	if int64(n) > int64(left/q.every) {
		return q.reset
	}
	left -= time.Duration(n) * q.every
	// tat + n × every − t = (reset − t) ÷ ahead, solved for t.
	return q.reset.Add(-left - left/(ahead-1))
}

// pass pays for one that leaves at now.
func (q *quota) pass(now time.Time) {
	if q.tat.Before(now) {
		q.tat = now
	}
	if q.tat = q.tat.Add(q.every); q.tat.After(q.reset) {
		q.tat = q.reset
	}
}

// Sent counts a request that is sent through the gate, and returns its number
// for Heard.
func (g *Gate) Sent() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent++
	return g.sent
}

// LastSent is the number of the last request that was sent.
func (g *Gate) LastSent() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent
}

// Heard takes note of what was left, in the answer to the request of that number,
// until the quota is as good as new at reset. What was sent after that request
// has been used too. The pace that follows lets one through in slowest at least;
// of nothing left none follows, and the gate is better closed. It reports whether
// that is news: what is said later of an earlier request is not.
func (g *Gate) Heard(number uint64, remaining int64, reset time.Time, slowest time.Duration) bool {
	now := time.Now()
	g.mu.Lock()
	if number < g.heard || !reset.After(now) {
		g.mu.Unlock()
		return false
	}
	g.heard = number
	q := &g.quota
	if remaining > 0 {
		q.hear(now, remaining, int64(g.sent-number), reset, slowest)
		g.slow.Store(true)
	}
	first := q.first()
	g.mu.Unlock()
	first.kick()
	return true
}

// hear makes a pace of what was left, of which so many have been sent since.
func (q *quota) hear(now time.Time, remaining, since int64, reset time.Time, slowest time.Duration) {
	fresh := !q.reset.After(now)
	if !fresh && remaining <= q.said && q.reset.Before(reset) {
		reset = q.reset // it is the same window: seconds are rounded up anew each time
	}
	q.said, q.reset, q.heard = remaining, reset, now
	// One, even if more have been sent: they may have been counted in what is left.
	q.every = reset.Sub(now) / time.Duration(max(1, remaining-since))
	q.every = max(1, min(q.every, slowest))
	if fresh || q.tat.Before(now) {
		q.tat = now
	}
	if q.tat.After(reset) {
		q.tat = reset
	}
}

// Pace is how many requests the quota lets through in a second, in the long run;
// it is not ok if none binds.
func (g *Gate) Pace() (perSecond float64, ok bool) {
	if g == nil || !g.slow.Load() {
		return 0, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.slowLocked(time.Now()) {
		return 0, false
	}
	return float64(time.Second) / float64(g.quota.every), true
}

// slowLocked reports whether the quota binds.
func (g *Gate) slowLocked(now time.Time) bool {
	if !g.slow.Load() {
		return false
	}
	if g.quota.reset.After(now) {
		return true
	}
	reset := g.quota.reset
	g.freed.Store(&reset)
	g.slow.Store(false)
	g.quota.turns = nil // each goes on by itself
	return false
}

// slot is when, of the waiters of b, the nth from now may leave as far as the
// quota is concerned; zero if that is now. The lines take turns.
func (g *Gate) slot(b *bucket, now time.Time, n int) (at time.Time) {
	if g == nil || !g.slow.Load() {
		return at
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.slowLocked(now) {
		return at
	}
	place := slices.Index(g.quota.turns, b)
	if place < 0 {
		place = len(g.quota.turns)
	}
	if at = g.quota.at(place + n*max(1, len(g.quota.turns))); !at.After(now) {
		if place == 0 {
			return time.Time{}
		}
		return now.Add(soon)
	}
	return at
}

// turn is when the next may leave, as far as the quota is concerned; now, if b stands
// in turn for that already.
func (g *Gate) turn(b *bucket, now time.Time) time.Time {
	if !g.slow.Load() {
		return now
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.slowLocked(now) || slices.Contains(g.quota.turns, b) {
		return now
	}
	return g.quota.at(0)
}

// take lets one of b leave at now, and reports whether the quota allows it.
func (g *Gate) take(b *bucket, now time.Time) bool {
	if g == nil || !g.slow.Load() {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.slowLocked(now) {
		return true
	}
	q := &g.quota
	if q.at(0).After(now) || q.first() != nil && q.first() != b {
		return false
	}
	q.pass(now)
	if len(q.turns) > 0 {
		q.turns = q.turns[1:]
		if next := q.first(); next != b && !q.at(0).After(now) {
			next.kick()
		}
	}
	return true
}

// since is the instant from which on the quota allows the next to leave, or the
// last one ended; zero if there was none.
func (g *Gate) since(now time.Time) (at time.Time) {
	if g == nil {
		return at
	}
	if g.slow.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.slowLocked(now) {
			if at = g.quota.at(0); at.Before(g.quota.heard) {
				at = g.quota.heard
			}
			return at
		}
	}
	if freed := g.freed.Load(); freed != nil {
		at = *freed
	}
	return at
}

// pass counts one that leaves without having asked.
func (g *Gate) pass() {
	if g == nil || !g.slow.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); g.slowLocked(now) {
		g.quota.pass(now)
	}
}

// queue says whether b is ready to leave but for the quota. If it is not, those
// behind it move up.
func (g *Gate) queue(b *bucket, now time.Time, ready bool) {
	if b == nil || !g.slow.Load() {
		return
	}
	var first *bucket
	g.mu.Lock()
	if g.slowLocked(now) {
		i := slices.Index(g.quota.turns, b)
		switch {
		case ready && i < 0:
			g.quota.turns = append(g.quota.turns, b)
		case !ready && i >= 0:
			g.quota.turns = slices.Delete(g.quota.turns, i, i+1)
			if i == 0 {
				first = g.quota.first()
			}
		}
	}
	g.mu.Unlock()
	first.kick()
}

// first is the line whose turn it is; nil if none is ready.
func (q *quota) first() *bucket {
	if len(q.turns) == 0 {
		return nil
	}
	return q.turns[0]
}

// kick has b look again at what is due. It does not wait for b's lock, as the
// caller may hold that of another line.
func (b *bucket) kick() {
	if b != nil {
		go b.wake()
	}
}
