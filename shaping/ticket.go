package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
)

// A Ticket lets a request have its place in a Line again. The zero Ticket is
// good for a request that has not come yet; it is filled in when that is let go
// or has to wait.
//
// Whoever comes with a Ticket that is filled in has used its turn to no avail.
// It stands where it stood: before all who came later, and what takes turns has
// the next. No queue is too full for it, and nobody is put out for it; its
// patience has run since it came first. It pays for a turn as everybody does.
type Ticket struct {
	given bool
	line  *bucket
	place queue.Ticket
	until int64 // as of Waiter
	own   bool
}

func (t *Ticket) back() bool { return t != nil && t.given }

// note fills in the ticket of e, which comes at now.
func (l *Line[T]) note(now int64, e Entrant, place queue.Ticket) {
	if e.Ticket != nil {
		*e.Ticket = Ticket{given: true, line: l.owner, place: place}
		e.Ticket.until, e.Ticket.own = l.until(now, e)
	}
}

// stood is where t did. If that line was forgotten meanwhile, all who wait came
// later.
func (l *Line[T]) stood(t *Ticket) queue.Ticket {
	if t.line != l.owner {
		return t.place.Elsewhere()
	}
	return t.place
}

// before is how many stand before e, which comes back, what those cost, and how
// long it still waits; negative if not at all.
func (l *Line[T]) before(now int64, e Entrant) (ahead int, before int64, patience time.Duration) {
	ahead, before = l.queue.Before(e.Class, e.Flow, l.stood(e.Ticket), now)
	until := e.Ticket.until
	if !e.Ticket.own {
		until = l.pace.Runs(now, until)
	}
	return ahead, before, time.Duration(until - now)
}
