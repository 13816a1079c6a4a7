package shaping

import (
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// Terms are the numbers of a Line.
type Terms struct {
	Rate        limiter.Rate  // zero: as fast as places become free
	Burst       int64         // how many may go at once after a quiet time; at least 1 with a Rate
	Queue       int           // how many may wait
	MaxWait     time.Duration // who would have to wait longer is refused; above zero
	MaxInFlight int           // how many that left may be unfinished; 0: any number
	// PromoteAfter is the time for which a waiter counts one class better; 0:
	// never.
	PromoteAfter time.Duration

	// ShedAbove is the wait from which on lower classes are refused; 0: never.
	ShedAbove time.Duration

	// ReserveHigh is the share of rate, burst and places that only class High may
	// use, in thousandths from 0.001 to 0.999; 0: none.
	ReserveHigh float64

	// Set, the rate in force is searched for, from MinRate up to Rate; see
	// AutoRate.
	MinRate limiter.Rate
	// Set, the places are searched for, from so many up to MaxInFlight; see
	// AutoPlaces.
	MinInFlight int
}

// An Entrant is what matters of a request for its place.
type Entrant struct {
	// Cost is how many intervals of the rate it takes, and one place all the
	// same; 0 means 1. Without a rate every request is one.
	Cost  int64
	Class queue.Class
	Flow  string // whoever takes turns; one for all is plain first come, first out
	// MaxWait is how long this request would wait, if that is no more than what
	// the line allows; 0: no less. It includes the time of a pause.
	MaxWait time.Duration
	Gate    *Gate // that it has to pass; nil: none
	// Paced: nothing holds it up between this line and the gate, so that the gate
	// may hold it here to the pace of its quota.
	Paced bool
	// Ticket, unless it is nil, notes the place that is given, or has it had again.
	Ticket *Ticket
}
