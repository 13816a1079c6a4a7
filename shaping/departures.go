package shaping

import (
	"errors"
	"net/http"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A SharedPace is the rate of a Shaper's lines, shared with those of the same keys
// in other processes. Each line keeps its own queue; what they share is a schedule
// of departures, of which each asks for the next few. It is safe for concurrent
// use.
type SharedPace interface {
	// Ask returns the next departures of a key's schedule, which are this line's
	// alone. It always answers, within a time that it bounds itself: a store that
	// cannot be reached has its own way of deciding.
	Ask(key string, a Ask) Departures
}

// An Ask is what a line asks for.
type Ask struct {
	N      int64         // how many departures; at least 1
	More   bool          // it will want more than that
	Waited time.Duration // for how long its first has waited, who may use a departure since then
	After  time.Duration // from now until the one after the last it was granted; no schedule that was lost begins sooner
}

// Departures are the answer.
type Departures struct {
	// Reason is not limiter.ReasonNone where everybody is to be refused: those
	// who wait, too.
	Reason limiter.Reason

	// Alone, if it is not 0, is for how long the line goes by a schedule of its own,
	// of that Rate and Burst, until it asks again.
	Alone time.Duration
	Rate  limiter.Rate
	Burst int64

	// Otherwise N departures were granted, each an interval of Rate after the one
	// before. The first is at First and Frac ÷ Rate.Count ns, but one that
	// lies before NotBefore is then.
	N         int64
	First     time.Time
	Frac      int64
	NotBefore time.Time
	Rivals    int64 // other lines of the key that want more than they have
	Ahead     int64 // how many to hold in advance, as it takes time to ask
	// Return gives the last n back that were not given back yet. It is not ok if
	// others have been granted since; they are kept then. Calls do not overlap.
	Return func(n int64) (ok bool)
}

// WithPace has the lines of a Shaper go by a pace that others share. Its policies
// must have a rate, and be no dry runs: nobody would stand there who could leave.
func WithPace(p SharedPace) Option { return func(s *Shaper) { s.shared = p } }

// shareable says what of p a Shaper with a shared pace cannot keep.
func (s *Shaper) shareable(p Policy) error {
	if s.leases != nil {
		if err := p.leasable(); err != nil {
			return err
		}
	}
	switch {
	case s.shared == nil:
	case p.Rate.Count == 0:
		return errors.New("a pace that is shared needs a rate")
	case p.searches():
		return errors.New("a pace that is shared cannot be searched for")
	case p.ReserveHigh != 0:
		return errors.New("a pace that is shared has no share that is reserved")
	case p.DryRun:
		return errors.New("a queue whose pace is shared has no dry run")
	}
	return nil
}

// wants is how many departures the line has to ask for, whether it will want more,
// and for how long its head has waited.
func (l *Line[T]) wants(now int64) (a Ask) {
	g := l.pace.grants
	if !g.bind(now) || l.pace.Paused(now) != 0 || l.pace.full(now) && !l.pace.hopeful(now) {
		return a
	}
	head := l.Head(now)
	if head == nil {
		return a
	}
	cost := head.place.Cost
	l.pace.lapse(now, l.pace.needs(cost))
	held, all := g.held(), l.wanted(now)
	if held >= cost && (held > g.ahead/2 || held >= all) {
		return a
	}
	free, _ := l.pace.freeGranted(now)
	if scarce := l.pace.leases; scarce.bind(now) && scarce.short {
		if held >= cost {
			return a
		}
		// A place may come too late for more; but if it takes long to ask, the first
		// are too late then.
		ahead := int64(0)
		if scarce.lead > l.pace.usable() {
			ahead = g.ahead
		}
		all = min(all, max(cost, ahead))
	}
	a.N = max(cost, min(all, max(g.ahead, free))) - held
	a.More = all > held+a.N
	a.Waited = time.Duration(now - head.Came)
	a.After = time.Duration(g.last + l.pace.intervals(1).ceil() - now)
	return a
}

// wanted is how many departures those take who wait and may pass their gates.
func (l *Line[T]) wanted(now int64) int64 {
	all := l.queue.Cost()
	if l.gates != nil {
		_, theirs, _ := l.barred(now)
		all -= theirs
	}
	return all
}

// surplus takes out departures that nobody is there to use, of the lease that was
// granted last, so that they can be given back.
func (l *Line[T]) surplus(now int64) *lease {
	g := l.pace.grants
	if g == nil || len(g.leases) == 0 {
		return nil
	}
	last := g.leases[len(g.leases)-1]
	n := min(last.n, g.held()-l.wanted(now))
	if n <= 0 || last.kept || last.at(last.n-1) <= now {
		return nil
	}
	back := *last
	back.drop(last.n - n)
	last.n -= n
	g.tidy()
	return &back
}

// grant takes note of an answer other than a refusal.
func (l *Line[T]) grant(now int64, t Terms, a Departures) {
	g, c := l.pace.grants, l.clock()
	if a.Alone > 0 {
		g.leases, g.alone = nil, addTime(now, int64(a.Alone))
		l.pace.schedule.adopt(now, a.Rate, a.Burst)
		return
	}
	l.pace.schedule.adopt(now, t.Rate, t.Burst)
	g.alone, g.rivals, g.ahead = 0, a.Rivals, max(aheadAtFirst, a.Ahead)
	s := &schedule{rate: a.Rate}
	one := &lease{rate: a.Rate, first: span{c.of(a.First), a.Frac}, from: c.of(a.NotBefore), n: a.N, answered: now, back: a.Return}
	g.next = s.plus(one.first, s.intervals(a.N)).ceil()
	g.add(one)
}

// everybody takes all out who wait.
func (l *Line[T]) everybody(now int64) (all []*Waiter[T]) {
	for p := range l.queue.All(now) {
		all = append(all, p.Value)
	}
	for _, w := range all {
		l.Cancel(w)
	}
	return all
}

// askLocked asks for departures and places if the line wants some, or gives back
// what it does not: one call of each at a time.
func (b *bucket) askLocked(now int64) {
	b.leaseLocked(now)
	g := b.line.pace.grants
	if g == nil || g.asking {
		return
	}
	if back := b.line.surplus(now); back != nil {
		g.asking = true
		go b.giveBack(back)
	} else if a := b.line.wants(now); a.N > 0 {
		g.asking = true
		go b.ask(a)
	}
}

func (b *bucket) ask(a Ask) {
	answer := b.shaper.shared.Ask(b.line.pace.grants.key, a)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.line.pace.grants.asking = false
	if answer.Reason != limiter.ReasonNone {
		b.refuseAllLocked(now, answer.Reason)
	} else {
		b.line.grant(now, b.rules.Terms(), answer)
	}
	b.serveLocked(now)
	b.armLocked(now)
}

// RefuseAll refuses everybody who waits in a line of such a key, with 503: the pace that
// the line shares is lost, and nobody may leave without it, by departures granted before
// neither. Who comes later asks it first.
func (s *Shaper) RefuseAll(why limiter.Reason, of func(key string) bool) {
	s.lines.Each(func(b **bucket) bool {
		(*b).mu.Lock()
		defer (*b).mu.Unlock()
		key := ""
		if g := (*b).line.pace.grants; g != nil {
			key = g.key
		} else if l := (*b).line.pace.leases; l != nil {
			key = l.key
		}
		if !of(key) {
			return true
		}
		now := (*b).now()
		(*b).refuseAllLocked(now, why)
		(*b).armLocked(now)
		return true
	})
}

func (b *bucket) refuseAllLocked(now int64, why limiter.Reason) {
	if g := b.line.pace.grants; g != nil {
		g.leases = nil
	}
	for _, w := range b.line.everybody(now) {
		b.endLocked(w, now, why)
		d := w.Value.decision
		d.Status, d.Remaining = http.StatusServiceUnavailable, 0
		d.RetryAfter, d.ResetAfter = time.Second, time.Second
		close(w.Value.done)
	}
}

func (b *bucket) giveBack(l *lease) {
	ok := l.back(l.n)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	g := b.line.pace.grants
	g.asking = false
	if ok {
		g.next, g.last = min(g.next, l.at(0)), min(g.last, l.at(0))
	} else {
		l.kept = true
		g.add(l)
	}
	b.serveLocked(now)
	b.armLocked(now)
}
