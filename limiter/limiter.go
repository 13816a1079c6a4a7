package limiter

import (
	"context"
	"errors"
	"math"
	"time"
)

// A Limiter decides whether, and when, a request may go on.
//
// A Limiter is safe for concurrent use.
type Limiter interface {
	// Acquire answers at once in reject mode and may wait in queue mode.
	//
	// A refusal is a Permit whose Decision is not Allowed, never an error. The
	// error is context.Cause(ctx) when the client left while waiting; any
	// other error means that the limiter itself failed. With an error, the
	// Permit's All still tells what had been decided until then.
	Acquire(ctx context.Context, req Request) (Permit, error)
}

// A Request is what a Limiter is asked about: whose budgets a request uses.
type Request struct {
	// Keys holds one key for each limit that the Limiter asks, in the
	// Limiter's order.
	Keys []Key

	// Gone reports whether the client has left without that having ended the
	// request's context, as happens while a request's body is unread. It is
	// asked once, just before a waiting request is released, must not block,
	// and may be nil.
	Gone func() bool

	// Again: the request may need another turn, so its Permit is to have an
	// Again if there is a queue that it can go back to.
	Again bool
}

// A Key says whose budget of one limit a request uses.
type Key struct {
	// Value names the budget. Limiters keep a hash of it, and the text only of
	// the busiest.
	Value string
	// Skip: this limit does not ask about the request (an exempt client, or a
	// missing key under missing_key = "skip").
	Skip bool
	// Missing: the request lacks the key and is refused for that, with
	// ReasonMissingKey and status 400.
	Missing bool
	// Cost is what the request takes of a budget, or how many intervals of a
	// queue's rate, and one of its places all the same; 0 means 1.
	Cost int64
	// Free: it takes nothing. The limit is looked at, and lets it pass at once,
	// by the side of a queue.
	Free bool
	// Flow names whoever takes turns with others in one queue.
	Flow string
	// MaxWait is how long the request would wait in this limit's queue, if that
	// is less than the limit allows; 0: no less.
	MaxWait time.Duration
}

// Charge is what the request takes of a budget in reject mode.
func (k *Key) Charge() int64 {
	if k.Free {
		return 0
	}
	return max(1, k.Cost)
}

// A Reason says why a request was refused or did not get its turn. The words
// are the same in answers, logs and metrics.
type Reason string

// Reasons for a refusal.
const (
	ReasonNone       Reason = ""            // not refused
	ReasonLimit      Reason = "limit"       // a reject-mode limit has nothing left
	ReasonQueueFull  Reason = "queue_full"  // every place in the queue is taken
	ReasonMaxWait    Reason = "max_wait"    // it would have to wait longer than max_wait
	ReasonMissingKey Reason = "missing_key" // the request lacks the key it is counted by
	ReasonPaused     Reason = "paused"      // the pace was paused or lowered and the wait is now too long, or the upstream takes nothing for now
	ReasonShutdown   Reason = "shutdown"    // the proxy stopped before its turn came
	ReasonStoreDown  Reason = "store_down"  // what keeps the budget does not answer, and the limit is to refuse then
	ReasonClientGone Reason = "client_gone" // its client left while it waited
)

// Never is the RetryAfter of a request that no waiting will let through, such
// as one whose cost is above the limit.
const Never time.Duration = math.MaxInt64

// Causes for which a wait ends without a release.
var (
	// ErrClientGone is the error of Acquire when Request.Gone said so.
	ErrClientGone = errors.New("the client has left")
	// ErrShutdown, as the cause of a context's end, makes of a waiting request
	// a refusal with ReasonShutdown rather than a client that left.
	ErrShutdown = errors.New("shutting down")
)

// A Decision is what one limit said about one request, and the state of the
// request's budget right after it.
type Decision struct {
	// Policy is the limit's name in the configuration.
	Policy string
	// Allowed: the request may go on as far as this limit is concerned.
	Allowed bool
	// Reason is why the request was refused, or why it did not get its turn;
	// empty when Allowed.
	Reason Reason
	// Status is the HTTP status that the limit's owner chose for a refusal.
	Status int

	// Limit is the quota: burst of a token or leaky bucket, limit of a window,
	// burst + queue of a queue.
	Limit int64
	// Window is the time in which Limit becomes available: the window's
	// length, or burst ÷ rate. It is not rounded.
	Window time.Duration
	// Remaining is how many more requests could be taken at this instant; in
	// queue form the free places, and the burst when nobody waits.
	Remaining int64
	// ResetAfter is the time until more becomes available than Remaining: the
	// window's end, a bucket's next unit, the log's next entry to leave, the
	// queue's next departure. Zero when nothing is used.
	ResetAfter time.Duration
	// RetryAfter is, on a refusal, the time after which a client that is alone
	// is let through (in queue form: may enter the queue); Never if none is
	// long enough. Zero when Allowed.
	RetryAfter time.Duration

	// At is the instant of the decision; for a request that waited, the
	// instant of its release.
	At time.Time
	// Queued: the limit made the request wait, or would have (DryRun).
	Queued bool
	// Waited is how long the request waited in this limit's queue; with
	// DryRun, how long it would have.
	Waited time.Duration
	// Ahead is how many requests waited before this one when it came.
	Ahead int

	// OwnDeadline: it was not for the limit's MaxWait that the wait was too long
	// (ReasonMaxWait), but for that of the request itself.
	OwnDeadline bool
	// DryRun: the decision is counted and logged, and does not bind.
	DryRun bool
	// Peeked: the limit was only looked at, so that headers can name it; it
	// was not asked, and the decision is not counted.
	Peeked bool
}

// A Permit is a Limiter's answer for one request.
type Permit struct {
	// Decision is the one that counts: of the limit that refused, or else of
	// the limit nearest to exhaustion (smallest Remaining ÷ Limit). It is
	// Allowed and has an empty Policy when no limit was asked.
	Decision
	// All holds the decisions of every limit in the order in which the route
	// names them, skipped ones left out.
	All []Decision

	// Done, unless it is nil, gives back what the request holds while it is
	// unfinished. See Release.
	Done func()
	// Learn, unless it is nil, is told of the upstream's answer. See Report.
	Learn func(Answer)

	// Again, unless it is nil, asks for another turn for a request whose turn has
	// come to nothing, once it is Released: as Acquire does, with another Gone,
	// and with the place in the queue that the request had. Limits in reject mode
	// count what clients ask for, and are not charged again. The Permit that
	// comes of it has an Again too.
	Again func(ctx context.Context, gone func() bool) (Permit, error)
}

// An Answer is how an upstream took a request that was let go.
type Answer struct {
	Latency   time.Duration // from when it was sent to the head of the answer, or until none was waited for any more
	Throttled bool          // it was refused for there being too many
	Late      bool          // there was no answer in time
}

// Report tells limits that learn what the upstream made of the request, as soon
// as that is known, and at most once. Of a request that was not sent, whose client left, or
// that failed otherwise, there is nothing to report: it says nothing of how much
// the upstream can take.
func (p Permit) Report(a Answer) {
	if p.Learn != nil {
		p.Learn(a)
	}
}

// Release says that a request that was let go has ended, however it did. It
// must be called once for each Permit that is Allowed.
func (p Permit) Release() {
	if p.Done != nil {
		p.Done()
	}
}

// TotalWait is the time spent in all queues together.
func (p Permit) TotalWait() time.Duration {
	var d time.Duration
	for _, one := range p.All {
		if !one.DryRun {
			d += one.Waited
		}
	}
	return d
}

// Departed is the instant at which the last limit let the request go; zero
// when no limit was asked.
func (p Permit) Departed() time.Time {
	var last time.Time
	for _, one := range p.All {
		if !one.DryRun && !one.Peeked && one.At.After(last) {
			last = one.At
		}
	}
	return last
}
