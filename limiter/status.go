package limiter

import "time"

// A Status is one limit as it stands at the instant it was asked for: its
// definition, in the words of the configuration, and the state that has a
// place on a dashboard. Metrics and the live page read it; nothing decides by
// it.
type Status struct {
	Name      string
	Algorithm Algorithm

	Rate    Rate          // token and leaky bucket
	Burst   int64         // token and leaky bucket
	Queue   int           // places of one key's queue; 0 in reject mode
	MaxWait time.Duration // the longest that a request may wait; meaningless without a queue

	// MinRate and MinInFlight are from where the rate and the places are searched
	// for, up to Rate and MaxInFlight; zero: they are known.
	MinRate     Rate
	MinInFlight int

	MaxInFlight int // how many that were let go may be unfinished; 0: any number

	Limit  int64         // windows
	Window time.Duration // windows; with a Calendar, about

	Calendar Calendar // fixed windows that a calendar gives
	TimeZone string   // whose clocks the Calendar goes by

	Key    string // what is counted separately: "global", "client-ip", "host, header:X-Tenant"
	DryRun bool

	Store     string // memory, redis
	StoreDown string // open, closed, local; empty in memory

	// What is told of the definition as it is written, and nothing more.
	FairBy         string        // as Key; "global": nobody takes turns
	PromoteAfter   time.Duration // 0: there is nothing to rise to
	ShedAbove      time.Duration // 0: nobody is refused for the waits of others
	ReserveHigh    float64       // share of rate, burst and places that only class high may use; 0: none
	DeadlineHeader string        // empty: none
	Cost           int64         // what a request takes
	CostHeader     string        // the header that says otherwise; empty: none
	MissingKey     string        // shared, skip, reject
	Exempt         string        // addresses and CIDRs, separated as in Key
	MaxKeys        int
	RefusedWith    int // the HTTP status of a refusal

	Routes []string // the match of each route that names the limit, in the file's order

	// Paused says why nothing leaves the queue: PausedByOperator, or what the
	// upstream behind it said; empty if it is not paused.
	Paused  string
	Resumes time.Duration // until it goes on by itself; 0: it does not, or is not paused
	// EffectivePerSecond is how many may leave now in a second, by what its upstream
	// says too; meaningless without a Rate.
	EffectivePerSecond float64
	// EffectiveInFlight is how many may be unfinished now; meaningless without
	// MaxInFlight. With keys it is of the one for which it is highest.
	EffectiveInFlight int

	// Sheds is the best priority of which some are refused now for the waits of
	// others: low, normal; empty: none.
	Sheds string

	Depth      int           // requests waiting, over all keys
	FleetDepth int           // the same with those in other proxies, of a queue that is shared, as each said so last
	OldestWait time.Duration // how long the one has waited that waits longest, over all keys
	InFlight   int           // requests of a queue or of concurrency that were let go and have not ended
	Keys       int           // keys remembered
	Evicted    uint64        // keys forgotten for want of room, ever
}

// PausedByOperator is why a queue stands that somebody has paused by hand.
const PausedByOperator = "operator"

// An Outcome is what became of a request at one limit, in the words of the
// counters.
type Outcome string

// The outcomes.
const (
	OutcomeAdmitted Outcome = "admitted" // let go at once
	OutcomeQueued   Outcome = "queued"   // let go after waiting
	OutcomeRejected Outcome = "rejected" // refused
	OutcomeGone     Outcome = "gone"     // left by its client while it waited
)

// Outcome says as what d counts. With DryRun it is what would have become of
// the request. A decision that is only Peeked is not to be counted at all.
func (d Decision) Outcome() Outcome {
	switch {
	case d.Allowed && d.Queued:
		return OutcomeQueued
	case d.Allowed:
		return OutcomeAdmitted
	case d.Reason == ReasonClientGone:
		return OutcomeGone
	}
	return OutcomeRejected
}
