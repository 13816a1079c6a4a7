package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// A shed turns requests of lower classes away for as long as others wait too
// long, as Stripe's worker utilization load shedder does ("Scaling your API with
// rate limiters", 2017): when the oldest wait has stayed above a bound for as
// long as the bound is, Low is refused, and after as long again Normal too. High
// never is. When it has stayed below for as long, a quarter of the class that was
// last refused is let in again, then the next: all at once, they would be back
// above it.
//
// What need not wait is never refused. It reads no clock and draws no lots: of
// a class of which half is refused, it is every other. A nil shed refuses nobody.
type shed struct {
	above time.Duration

	over  bool  // the oldest wait is above it
	since int64 // from when on that counts
	seen  int64 // when it was told last
	level int   // how many quarters are refused: first of Low, then of Normal
	turns [2]int
}

const (
	quarters = 4
	sheddest = 2 * quarters // both classes
)

func newShed(above time.Duration) *shed {
	if above == 0 {
		return nil
	}
	return &shed{above: above}
}

// adopt is the shed under another bound. What is refused comes back from there.
func (s *shed) adopt(above time.Duration) *shed {
	next := newShed(above)
	if s != nil && next != nil {
		*next = *s
		next.above = above
	}
	return next
}

// see notes when the one came who has waited longest, which is negative if
// nobody waits. It is told before and after whatever changes that, so it knows
// when the wait passed the bound: of one who comes back, and was longer away than
// that, not before it stood here again.
func (s *shed) see(now, oldest int64) {
	if s == nil {
		return
	}
	passed := now // below
	over := oldest >= 0 && now-oldest > int64(s.above)
	if over {
		passed = max(oldest+int64(s.above), s.seen)
	}
	if over != s.over {
		s.pass(max(s.since, passed))
		s.over, s.since = over, max(s.since, passed)
	}
	s.pass(now)
	s.seen = now
}

// pass lets the time pass until now.
func (s *shed) pass(now int64) {
	steps := (now - s.since) / int64(s.above)
	if steps <= 0 {
		return // the clock may have been set back
	}
	s.since += steps * int64(s.above)
	if s.over {
		s.level = int(min(sheddest, (int64(s.level/quarters)+steps)*quarters))
	} else {
		s.level = int(max(0, int64(s.level)-steps))
	}
}

// refused is how many quarters of a class are.
func (s *shed) refused(c queue.Class) int {
	switch {
	case s == nil || c == queue.High:
		return 0
	case c == queue.Low:
		return min(s.level, quarters)
	default:
		return max(0, s.level-quarters)
	}
}

// refuses reports whether the next of that class that would have to wait is.
func (s *shed) refuses(c queue.Class) bool {
	n := s.refused(c)
	return n > 0 && s.turns[c-queue.Normal]*n%quarters+n >= quarters
}

// came notes that one of that class came which has to wait.
func (s *shed) came(c queue.Class) {
	if s != nil && c != queue.High {
		s.turns[c-queue.Normal]++
		s.turns[c-queue.Normal] %= quarters
	}
}

// settled is the time until nobody is refused any more, if nobody waits.
func (s *shed) settled(now int64) time.Duration {
	if s == nil || s.level == 0 {
		return 0
	}
	return time.Duration(max(0, s.since+int64(s.level)*int64(s.above)-now))
}

// Sheds is the best class of which some are refused because others wait too
// long; not ok if none is.
func (l *Line[T]) Sheds(now int64) (c queue.Class, ok bool) {
	if l.shed == nil {
		return 0, false
	}
	s := *l.shed
	s.see(now, l.Oldest())
	switch {
	case s.refused(queue.Normal) > 0:
		return queue.Normal, true
	case s.refused(queue.Low) > 0:
		return queue.Low, true
	}
	return 0, false
}

// sheds reports whether a request of that class is turned away that comes at now
// and has to wait.
func (l *Line[T]) sheds(now int64, c queue.Class) bool {
	if l.shed == nil {
		return false
	}
	s := *l.shed
	s.see(now, l.Oldest())
	return s.refuses(c)
}
