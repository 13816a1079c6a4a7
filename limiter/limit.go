package limiter

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// A Limit is one Policy and the budgets of its keys. It is safe for concurrent
// use.
type Limit struct {
	memory  *Memory
	budgets budgets
	policy  atomic.Pointer[Policy] // replaced with all of budgets locked
}

// NewLimit returns a limit that follows p, or says what is wrong with p. All
// keys start unused.
func (m *Memory) NewLimit(p Policy) (*Limit, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l := &Limit{memory: m, budgets: newBudgets(p)}
	if m.seed != nil {
		l.budgets.Reseed(*m.seed)
	}
	l.policy.Store(&p)
	return l, nil
}

// New returns a limit in a Memory of its own, for a program that asks one limit
// at a time. Limits that must agree about a request belong to one Memory.
func New(p Policy) (*Limit, error) { return NewMemory().NewLimit(p) }

// Take charges cost to key if it fits, as Memory.Take does.
func (l *Limit) Take(key string, cost int64) (d Decision) {
	l.take(key, cost, &d)
	return d
}

func (l *Limit) take(key string, cost int64, d *Decision) {
	now, wait, q := l.budgets.decide(l.memory, key, cost, true)
	d.RetryAfter = time.Duration(wait)
	l.describe(d, &q, l.memory.timeOf(now))
}

// Peek says what Take would decide and changes nothing, as Memory.Peek does.
func (l *Limit) Peek(key string, cost int64) Decision { return l.memory.Peek(l, key, cost) }

// Policy returns what the limit follows now.
func (l *Limit) Policy() Policy { return *l.policy.Load() }

// Adopt makes the limit follow p from this instant on, with what the keys have
// used: a key that has used n requests goes on with n used, or exhausted if p
// does not allow so many. The algorithm must be the same. With an error,
// nothing has changed. All keys change at one instant, so that the limit's
// decisions wait meanwhile: some milliseconds for 100 000 keys.
func (l *Limit) Adopt(p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if was := l.Policy().Algorithm; p.Algorithm != was {
		return fmt.Errorf("a %s cannot go on as a %s; start a new limit", was, p.Algorithm)
	}
	l.budgets.Lock()
	defer l.budgets.Unlock()
	now := l.memory.now()
	l.budgets.adopt(p, now)
	l.policy.Store(&p)
	return nil
}

// Keys returns how many keys are remembered; never more than the policy's
// MaxKeys.
func (l *Limit) Keys() int { return l.budgets.Len() }

// Evicted returns how many keys have been forgotten, because MaxKeys were
// remembered, while that still made a difference.
func (l *Limit) Evicted() uint64 { return l.budgets.Evicted() }

// A Busy is one of the keys that are asked for most.
type Busy struct {
	// Key is its name, or the first 128 bytes of it if Clipped. It is what clients
	// sent, which may be any bytes, and a secret of theirs.
	Key     string
	Clipped bool
	// Count is about how many decisions were about it, of which those that are a
	// minute old count half, and so on. It is too high by at most Error; above
	// some 100 000 decisions a second it is estimated from a sample.
	Count, Error uint64
}

// Busiest returns at most n of the keys that are asked for most, the busiest
// first. The names of no more than 128 are kept, whatever clients send.
func (l *Limit) Busiest(n int) []Busy {
	top := l.budgets.Busiest(n, l.memory.now())
	all := make([]Busy, len(top))
	for i, b := range top {
		all[i] = Busy(b)
	}
	return all
}

// State is what the limit keeps of key, as of the instant at, for who draws how an
// algorithm works: nil for a key that is not known, or else the numbers of a
// [Meter], but that a LeakyBucket keeps the level in whole requests, the part of
// one more in 1 ÷ Rate.Per, and the instant, which is at, of both.
func (l *Limit) State(key string) (state []int64, at time.Time) {
	latch, h := l.budgets.locate(key)
	latch.Lock()
	now := l.memory.now()
	state = l.budgets.words(h, now)
	latch.Unlock()
	return state, l.memory.timeOf(now)
}

// Forget makes key as good as new.
func (l *Limit) Forget(key string) {
	latch, h := l.budgets.locate(key)
	latch.Lock()
	l.budgets.forget(h)
	latch.Unlock()
}

// describe completes a decision of which RetryAfter is known.
func (l *Limit) describe(d *Decision, q *quota, at time.Time) {
	l.policy.Load().describe(d, q, at)
}

func (p *Policy) describe(d *Decision, q *quota, at time.Time) {
	d.Policy, d.DryRun = p.Name, p.DryRun
	if d.Status = p.Status; d.Status == 0 {
		d.Status = http.StatusTooManyRequests
	}
	if d.Allowed = d.RetryAfter == 0; !d.Allowed {
		d.Reason = ReasonLimit
	}
	d.Limit, d.Window = q.limit, time.Duration(q.window)
	d.Remaining, d.ResetAfter = q.remaining, time.Duration(q.reset)
	d.At = at
}
