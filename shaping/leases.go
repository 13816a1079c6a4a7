package shaping

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// SharedLeases are the places of a Shaper's lines, shared with those of the same
// keys in other processes. Each line keeps its own queue; what they share is how
// many are unfinished, of which each line holds some. It is safe for concurrent use.
type SharedLeases interface {
	// Ask says how many places the line of a key holds, and returns how many more
	// are its from now on. It always answers, within a time that it bounds itself: a
	// store that cannot be reached has its own way of deciding. There is one call at
	// a time for a key.
	Ask(key string, a LeaseAsk) Leases
}

// A LeaseAsk is what a line says and asks for.
type LeaseAsk struct {
	Held  int           // how many it holds; others that it was granted are given back
	More  int           // how many it wants besides
	Known bool          // it has said before that it holds some
	Every time.Duration // if it wants more, it asks again within that time
}

// Leases are the answer.
type Leases struct {
	// Reason is not limiter.ReasonNone where everybody is to be refused: those
	// who wait, too.
	Reason limiter.Reason

	// Alone, if it is not 0, is for how long the line has so many Places by itself,
	// until it asks again.
	Alone  time.Duration
	Places int

	Granted int // of those it wants
	Free    int // are left, which nobody else wants
	// Keep: while the line holds no more than that, a place that becomes free there
	// would be granted to it again, so that it may go to the next who waits there.
	Keep int
	Near bool          // one that others hold, or are about to, is this line's as soon as it is free
	Trip time.Duration // for how long an answer takes
}

// WithLeases has the lines of a Shaper take the places of MaxInFlight from those that
// others share. Its policies must be no dry runs.
func WithLeases(p SharedLeases) Option { return func(s *Shaper) { s.leases = p } }

const (
	// A line that wants more places than it has asks again each longestPoll, and
	// sooner if one is near: after an eighth of the time for which it has waited.
	// All lines of a Shaper together ask no more often than once in pollSpacing.
	longestPoll  = 20 * time.Millisecond
	shortestPoll = time.Millisecond
	pollSpacing  = time.Millisecond
	waitedShare  = 8
	// answerWithin is how long an answer may take, at least.
	answerWithin = time.Second
	// believed is for how long a store may believe what it was told last.
	believed = 5 * time.Second
	// mostWanted bounds how many places are asked for at once.
	mostWanted = 64
)

// leases are a Pace's part in places that lines of several processes share. Who
// leaves takes one that the line holds. One that becomes free goes to the next who
// waits here, if it would be granted to this line again, or else back.
type leases struct {
	key    string
	held   int   // places of this line: of those who are unfinished, and spare ones
	told   int   // how many the store knows of
	wanted int   // how many more the store knows that it wants
	free   int   // how many nobody wanted, by the last answer
	keep   int   // see Leases.Keep
	kept   int64 // until when that is believed
	short  bool  // by the last answer, there are fewer than the line wants
	since  int64 // since when it is short, or was last granted one
	denied int64 // when it was last told so
	next   int64 // when to ask again for what it wants
	lead   int64 // for how long before it is used a place is asked for
	alone  int64 // until then the line has places of its own,
	share  int   // so many
	heard  int64 // the last answer
	doubt  int64 // until then the store may believe what was said before a call that failed
	asking bool  // a call is under way
	polls  bool  // it is counted among the lines that ask again and again
}

// bind reports whether the line takes places that it holds, at now.
func (g *leases) bind(now int64) bool { return g != nil && now >= g.alone }

// leasable says what of p a Shaper with shared places cannot keep.
func (p Policy) leasable() error {
	switch {
	case p.searches():
		return errors.New("places that are shared cannot be searched for")
	case p.ReserveHigh != 0:
		return errors.New("of places that are shared none can be reserved")
	case p.DryRun:
		return errors.New("a queue whose places are shared has no dry run")
	}
	return nil
}

// bound is how many may be unfinished at now; it is not ok if there is no bound.
func (p *Pace) bound(now int64) (n int, ok bool) {
	switch g := p.leases; {
	case g == nil || p.places == 0:
		return p.places, p.places > 0
	case g.bind(now):
		return g.held, true
	default:
		return g.share, true
	}
}

// occupy notes that one of that class has left.
func (p *Pace) occupy(now int64, c queue.Class) {
	p.taken++
	p.below += below(c)
	if g := p.leases; g != nil {
		g.held = max(g.held, p.taken)
		p.deny(now)
	}
}

// deny notes that those who wait now are waiting for a place, if they are.
func (p *Pace) deny(now int64) {
	if g := p.leases; g.short && p.full(now) {
		g.denied = now
	}
}

// vacate gives a place back.
func (p *Pace) vacate(now int64, c queue.Class) {
	p.taken--
	p.below -= below(c)
	switch g := p.leases; {
	case g == nil:
	case p.places == 0:
		g.held = p.taken
	case !g.bind(now):
		g.held, g.told = p.taken, p.taken // what it holds is told when it asks again
	case now >= g.kept || g.held > g.keep:
		g.held = max(p.taken, g.held-1)
	}
}

// hopeful reports whether a place may be there as soon as it is asked for.
func (p *Pace) hopeful(now int64) bool { return p.leases.bind(now) && !p.leases.short }

// freeLeased is how many more could be taken, as far as is known.
func (p *Pace) freeLeased(now int64) int {
	n, _ := p.bound(now)
	if n -= p.taken; p.leases.bind(now) {
		n += p.leases.free
	}
	return max(0, n)
}

// renew has the line ask anew, as other terms are in force.
func (g *leases) renew() {
	if g != nil {
		g.alone, g.kept, g.next, g.short = 0, 0, 0, false
	}
}

// pinned reports whether the line holds places, or the store believes so.
func (g *leases) pinned() bool { return g != nil && (g.told > 0 || g.asking) }

// settled is the time until the store believes nothing that is not so.
func (g *leases) settled(now int64) time.Duration {
	if g == nil {
		return 0
	}
	return time.Duration(max(0, g.doubt-now))
}

// wanting is how many places those need who could leave now but for that, or within
// that time; and if that is nobody, when to look again.
func (l *Line[T]) wanting(now, within int64) (n int, next int64) {
	p := &l.pace
	if l.queue.Len() == 0 || p.places == 0 {
		return 0, Endless
	}
	barred, opens := 0, Endless
	if l.gates != nil {
		barred, _, opens = l.barred(now)
	}
	paused, head := p.Paused(now), l.Head(now)
	turn := Endless
	if head == nil && paused == 0 {
		turn = l.turn(now)
	}
	switch {
	case turn <= now+within:
		return 1, 0 // with a place it takes its turn there
	case turn != Endless:
		return 0, min(opens, turn-within)
	case head == nil:
		return 0, max(opens, paused)
	}
	due := p.dueByRate(now, l.opened(now, head), head.place.Cost, head.entrant.Class)
	if due == Endless && paused != Endless && p.grants.bind(now) {
		due = max(paused, p.grants.next) // no departure is held; by then one may be
	}
	switch {
	case due == Endless:
		return 0, Endless
	case due > now+within:
		return 0, due - within
	}
	n = l.queue.Len() - barred
	if p.rated() {
		free := int64(0)
		if p.grants.bind(now) {
			free, _ = p.freeGranted(now + within)
		} else {
			free, _ = p.free(now + within)
		}
		n = int(min(int64(n), max(1, free)))
	}
	return min(n, mostWanted, p.places), 0
}

// lease is what the line has to say or to ask for; it is not ok if that is nothing.
// Places that nobody is there to use are given back.
func (l *Line[T]) lease(now int64) (a LeaseAsk, ok bool) {
	g := l.pace.leases
	if !g.bind(now) || g.asking {
		return a, false
	}
	n, _ := l.wanting(now, g.lead)
	spare := g.held - l.pace.taken
	if spare > n { // to have one again takes as long
		soon, _ := l.wanting(now, int64(longestPoll))
		g.held -= max(0, spare-soon)
	}
	if a.Known = g.told > 0; l.pace.places == 0 { // there is no bound, and nothing to hold
		return a, a.Known || g.wanted > 0
	}
	a.Held, a.More = g.held, max(0, n-spare)
	switch {
	case a.Held != g.told || (a.More > 0) != (g.wanted > 0):
	case a.More > 0 && (!g.short || now >= g.next):
	default:
		return a, false
	}
	return a, true
}

// leased takes note of an answer other than a refusal. pause is for how long at
// least the line has to wait before it asks again.
func (l *Line[T]) leased(now int64, a LeaseAsk, got Leases, pause time.Duration) {
	p, g := &l.pace, l.pace.leases
	g.heard = now
	if got.Alone > 0 {
		g.alone, g.share, g.denied = addTime(now, int64(got.Alone)), got.Places, now
		l.unlease(now)
		g.keep, g.kept = g.share, addTime(g.alone, int64(answerWithin)) // what it holds then, until there is an answer
		return
	}
	if got.Granted > 0 && p.full(now) {
		p.ready = max(p.ready, now)
	}
	g.alone, g.doubt = 0, 0
	g.held = max(p.taken, g.held+got.Granted)
	g.told, g.wanted = a.Held+got.Granted, a.More-got.Granted
	g.free, g.keep, g.lead = got.Free, got.Keep, int64(min(max(2*got.Trip, shortestPoll), longestPoll))
	if !g.short || got.Granted > 0 {
		g.since = now
	}
	g.short = g.wanted > 0
	again := a.Every
	if got.Near {
		again = min(again, max(pause, time.Duration(max(g.lead, (now-g.since)/waitedShare))))
	}
	g.next = now + int64(again)
	g.kept = now + int64(a.Every) + g.lead
}

// unlease notes that the store knows nothing of this line's places for now, as far
// as is known. What it believes all the same it is told with the next renewal.
func (l *Line[T]) unlease(now int64) {
	g := l.pace.leases
	g.held = l.pace.taken
	if g.told, g.wanted, g.short = g.held, 0, false; l.pace.places == 0 {
		g.told = 0 // else it would be told so again at once
	}
	g.doubt = addTime(now, int64(believed))
}

// leaseWake is when the line has to ask, or those who wait can go on.
func (l *Line[T]) leaseWake(now int64) int64 {
	g := l.pace.leases
	switch n, next := l.wanting(now, g.lead); {
	case !g.bind(now):
		return g.alone
	case g.asking:
		return Endless
	case n == 0:
		return next
	case n > g.held-l.pace.taken:
		return g.next
	}
	return Endless
}

// leaseLocked asks for places, or says what is held: one call at a time.
func (b *bucket) leaseLocked(now int64) {
	g := b.line.pace.leases
	if g == nil {
		return
	}
	if a, ok := b.line.lease(now); ok {
		g.asking = true
		a.Every = max(longestPoll, b.shaper.pollPause())
		go b.lease(a)
	}
	if polls := g.wanted > 0 && g.bind(now); polls != g.polls {
		g.polls = polls
		if polls {
			b.shaper.polling.Add(1)
		} else {
			b.shaper.polling.Add(-1)
		}
	}
}

// pollPause is how long a line has to wait before it asks again, so that all of them
// together do not ask too often.
func (s *Shaper) pollPause() time.Duration {
	return time.Duration(min(s.polling.Load(), math.MaxInt32)) * pollSpacing
}

func (b *bucket) lease(a LeaseAsk) {
	got := b.shaper.leases.Ask(b.line.pace.leases.key, a)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	g := b.line.pace.leases
	g.asking = false
	if got.Reason != limiter.ReasonNone {
		b.line.unlease(now)
		b.refuseAllLocked(now, got.Reason)
	} else {
		b.line.leased(now, a, got, b.shaper.pollPause())
	}
	b.serveLocked(now)
	b.line.pace.deny(now)
	b.armLocked(now)
}

// RenewLeases says again how many places the lines hold, of which nothing was said
// for that long, with so many calls at once; of those whose last call failed also that
// they hold none.
func (s *Shaper) RenewLeases(quiet time.Duration, atOnce int) {
	var all []*bucket
	s.lines.Each(func(b **bucket) bool {
		if (*b).renewable(quiet) {
			all = append(all, *b)
		}
		return true
	})
	var calls sync.WaitGroup
	defer calls.Wait()
	free := make(chan struct{}, atOnce)
	for _, b := range all {
		free <- struct{}{}
		calls.Go(func() {
			b.renew(quiet)
			<-free
		})
	}
}

func (b *bucket) renewable(quiet time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.renewableLocked(quiet)
}

func (b *bucket) renewableLocked(quiet time.Duration) bool {
	g, now := b.line.pace.leases, b.now()
	holds := g.held > 0 && b.line.pace.places > 0
	return g.bind(now) && !g.asking && (holds || now < g.doubt) && now-g.heard >= int64(quiet)
}

func (b *bucket) renew(quiet time.Duration) {
	b.mu.Lock()
	g := b.line.pace.leases
	if !b.renewableLocked(quiet) {
		b.mu.Unlock()
		return
	}
	a, _ := b.line.lease(b.now())
	g.asking = true
	a.Every = max(longestPoll, b.shaper.pollPause())
	b.mu.Unlock()
	b.lease(a)
}

// prompt reports whether w, who may leave now, had to wait for nothing but the
// answers.
func (l *Line[T]) prompt(now int64, w *Waiter[T]) bool {
	g := l.pace.leases
	return l.pace.prompt(now, w.place.Cost) && (g == nil || g.bind(now) && g.denied < w.Came)
}
