package limiter

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
)

// A Memory keeps the budgets of limits in this process. It is where several
// limits are asked about one request, all or nothing.
//
// Its time is the monotonic clock, begun at the wall clock's time when it was
// made: setting the wall clock moves no budget, and the windows of a limit
// stay where they were.
//
// A Memory is safe for concurrent use.
type Memory struct{ base time.Time }

// NewMemory returns a Memory whose clock begins now.
func NewMemory() *Memory { return &Memory{time.Now()} }

// now is the one place where a clock is read.
func (m *Memory) now() (instant int64, at time.Time) {
	since := time.Since(m.base)
	return m.base.UnixNano() + int64(since), m.base.Add(since)
}

func (m *Memory) instant(at time.Time) int64 {
	return max(0, m.base.UnixNano()+int64(at.Sub(m.base)))
}

// A Charge asks Cost of the budget of Key at Limit. A Cost of zero or less
// only looks and is always allowed; one above the limit is refused with Never.
type Charge struct {
	Limit *Limit
	Key   string
	Cost  int64
}

// Take decides the charges at one instant and takes all of them, or none if
// one does not fit. It appends a Decision for each to into, in their order,
// and returns it; those that would have fitted are Allowed also when another
// was refused, and their state is then unchanged.
//
// The limits must be of this Memory. A limit may be named in several charges,
// also with the same key. Limits in dry run are like any other here: leave
// them out of a Take that shall not depend on them. Nothing is allocated for
// up to eight charges on known keys when into has room.
func (m *Memory) Take(into []Decision, charges []Charge) []Decision {
	var few [8]spot
	spots := lock(few[:0], charges)
	// Read under the locks, so that no key sees time run backwards.
	now, at := m.now()

	first, refused := len(into), false
	for i, c := range charges {
		h := spots[i].hash
		c.Limit.budgets.settle(h, now)
		wait := c.Limit.budgets.wait(h, now, spots[i].cost)
		refused = refused || wait > 0
		into = append(into, Decision{RetryAfter: time.Duration(wait)})
	}
	if !refused {
		for i, c := range charges {
			if c.Cost > 0 {
				c.Limit.budgets.take(spots[i].hash, now, c.Cost)
			}
		}
	}
	for i, c := range charges {
		c.Limit.describe(&into[first+i], c.Limit.budgets.state(spots[i].hash, now), at)
	}
	unlock(spots)
	return into
}

// Peek says what Take of one charge would decide. It changes nothing, and
// makes no key; Remaining and ResetAfter are those before the charge.
func (m *Memory) Peek(l *Limit, key string, cost int64) Decision {
	latch, h := l.budgets.locate(key)
	latch.Lock()
	now, at := m.now()
	d := Decision{RetryAfter: time.Duration(l.budgets.wait(h, now, max(0, cost))), Peeked: true}
	l.describe(&d, l.budgets.state(h, now), at)
	latch.Unlock()
	return d
}

// Return gives back what a Take took whose Decisions bear the instant at,
// because the request was refused after all. What a bucket has refilled since
// is not given twice: a Return lets through no request more than if the Take
// had not been.
func (m *Memory) Return(charges []Charge, at time.Time) {
	for _, c := range charges {
		if c.Cost <= 0 {
			continue
		}
		latch, h := c.Limit.budgets.locate(c.Key)
		latch.Lock()
		now, _ := m.now()
		c.Limit.budgets.giveBack(h, m.instant(at), now, c.Cost)
		latch.Unlock()
	}
}

// A spot is where a charge finds its state.
type spot struct {
	latch *keyed.Latch
	hash  uint64
	cost  int64 // of this charge and those before it on the same state
	held  *keyed.Latch
}

// lock finds the charges' states and locks them, each shard once and in the
// one order that all follow: another request may name the same limits in
// another order.
func lock(spots []spot, charges []Charge) []spot {
	for i, c := range charges {
		latch, hash := c.Limit.budgets.locate(c.Key)
		s := spot{latch: latch, hash: hash, cost: max(0, c.Cost)}
		fresh := true
		for j, o := range spots {
			if o.latch != latch {
				continue
			}
			fresh = false
			if o.hash == hash && c.Cost > 0 {
				s.cost = addCost(s.cost, max(0, charges[j].Cost))
			}
		}
		spots = append(spots, s)
		if !fresh {
			continue
		}
		// Insert into the order kept in held, beside the spots.
		for j := i; ; j-- {
			if j > 0 && (spots[j-1].held == nil || spots[j-1].held.Order > latch.Order) {
				spots[j].held = spots[j-1].held
				continue
			}
			spots[j].held = latch
			break
		}
	}
	for _, s := range spots {
		if s.held != nil {
			s.held.Lock()
		}
	}
	return spots
}

func unlock(spots []spot) {
	for _, s := range spots {
		if s.held != nil {
			s.held.Unlock()
		}
	}
}

// addCost stops at the greatest cost, which no limit lets through but one that
// has everything left.
func addCost(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
