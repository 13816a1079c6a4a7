package limiter

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
)

// A Memory keeps the budgets of limits in this process. It is where several
// limits are asked about one request, all or nothing.
//
// Its time is the monotonic clock, begun at the wall clock's time when it was
// made: setting the wall clock moves no budget. Windows stay where they were
// then, so that after such a step, or after the machine has slept, they begin
// off the wall clock's hours until the program starts anew.
//
// A Memory is safe for concurrent use.
type Memory struct {
	base  time.Time
	unix  int64            // base in nanoseconds
	clock func() time.Time // nil: the monotonic clock from base on
	seed  *keyed.Seed      // of limits that can be saved; nil: they cannot
}

// NewMemory returns a Memory whose clock begins now.
func NewMemory() *Memory {
	base := time.Now()
	return &Memory{base: base, unix: base.UnixNano()}
}

// NewMemoryOn returns a Memory whose time is what clock says, such as the
// instants of a log that is replayed. The clock must not run backwards, and is
// called with locks held, possibly from several goroutines at once.
func NewMemoryOn(clock func() time.Time) *Memory {
	base := clock()
	return &Memory{base: base, unix: base.UnixNano(), clock: clock}
}

// now is the one place where a clock is read.
func (m *Memory) now() int64 {
	if m.clock != nil {
		return m.clock().UnixNano()
	}
	return m.unix + int64(time.Since(m.base))
}

func (m *Memory) timeOf(now int64) time.Time { return m.base.Add(time.Duration(now - m.unix)) }

func (m *Memory) instant(at time.Time) int64 { return max(0, m.unix+int64(at.Sub(m.base))) }

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
	if len(charges) == 1 {
		into = append(into, Decision{})
		c := &charges[0]
		c.Limit.take(c.Key, c.Cost, &into[len(into)-1])
		return into
	}
	var fewSpots [8]spot
	var fewLatches [8]*keyed.Latch
	spots, latches := fewSpots[:0], fewLatches[:0]
	for _, c := range charges {
		var latch *keyed.Latch
		latch, spots = find(spots, c)
		latches = insert(latches, latch)
	}
	for _, latch := range latches {
		latch.Lock()
	}
	// Read under the locks, so that no key sees time run backwards.
	now := m.now()

	first, refused := len(into), false
	for i, c := range charges {
		h := spots[i].hash
		c.Limit.budgets.notice(h, c.Key, now)
		c.Limit.budgets.settle(h, now)
		wait := c.Limit.budgets.wait(h, now, spots[i].total)
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
	at := m.timeOf(now)
	for i, c := range charges {
		q := c.Limit.budgets.state(spots[i].hash, now)
		c.Limit.describe(&into[first+i], &q, at)
	}
	for _, latch := range latches {
		latch.Unlock()
	}
	return into
}

// Peek says what Take of one charge would decide. It changes nothing, and
// makes no key; Remaining and ResetAfter are those before the charge.
func (m *Memory) Peek(l *Limit, key string, cost int64) Decision {
	latch, h := l.budgets.locate(key)
	latch.Lock()
	now := m.now()
	d := Decision{RetryAfter: time.Duration(l.budgets.wait(h, now, max(0, cost))), Peeked: true}
	q := l.budgets.state(h, now)
	l.describe(&d, &q, m.timeOf(now))
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
		now := m.now()
		c.Limit.budgets.giveBack(h, m.instant(at), now, c.Cost)
		latch.Unlock()
	}
}

// A spot is where a charge finds its state.
type spot struct {
	limit *Limit
	hash  uint64
	cost  int64
	total int64 // of this charge and those before it on the same state; 0 when cost is
}

// find appends the spot of c.
func find(spots []spot, c Charge) (*keyed.Latch, []spot) {
	latch, hash := c.Limit.budgets.locate(c.Key)
	s := spot{limit: c.Limit, hash: hash, cost: max(0, c.Cost)}
	if s.total = s.cost; s.cost > 0 {
		for _, o := range spots {
			if o.limit == s.limit && o.hash == hash {
				s.total = addCost(s.total, o.cost)
			}
		}
	}
	return latch, append(spots, s)
}

// insert puts a latch into its place in an ascending list, once: all requests
// lock in this order, as another may name the same limits the other way round.
func insert(latches []*keyed.Latch, l *keyed.Latch) []*keyed.Latch {
	i, found := slices.BinarySearchFunc(latches, l, func(a, b *keyed.Latch) int {
		return cmp.Compare(a.Order, b.Order)
	})
	if found {
		return latches
	}
	return slices.Insert(latches, i, l)
}

// addCost stops at the greatest cost, which no limit lets through but one that
// has everything left.
func addCost(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
