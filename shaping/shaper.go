package shaping

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Policy describes one limit in queue form.
type Policy struct {
	Name string // appears in decisions

	Rate    limiter.Rate
	Burst   int64         // how many may go at once after a quiet time; at least 1
	Queue   int           // how many may wait, for one key; 1 to MaxQueue
	MaxWait time.Duration // who would have to wait longer is refused on arrival; 0 means DefaultMaxWait

	MaxKeys int  // keys remembered at once; 0 means limiter.DefaultMaxKeys
	Status  int  // HTTP status of a refusal; 0 means 429
	DryRun  bool // decide and count, delay nobody; the caller lets the request pass
}

// DefaultMaxWait bounds the wait under a policy that does not say.
const DefaultMaxWait = 30 * time.Second

// MaxQueue is the longest queue.
const MaxQueue = 1_000_000_000

// Validate says what is wrong with p, or returns nil.
func (p Policy) Validate() error {
	if err := limiter.ValidateBucket(p.Rate, p.Burst); err != nil {
		return err
	}
	if p.Queue < 1 || p.Queue > MaxQueue {
		return fmt.Errorf("queue must be between 1 and %d", MaxQueue)
	}
	if p.MaxWait < 0 {
		return errors.New("max_wait must be above zero")
	}
	if p.MaxWait > limiter.MaxPeriod {
		return errors.New("max_wait must be at most 36500d")
	}
	if p.MaxKeys < 0 {
		return errors.New("max_keys must be at least 1")
	}
	return nil
}

// rules are a valid policy with its defaults filled in. They do not change.
type rules struct {
	Policy
	window time.Duration // burst ÷ rate
}

func newRules(p Policy) (*rules, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.MaxWait == 0 {
		p.MaxWait = DefaultMaxWait
	}
	if p.MaxKeys == 0 {
		p.MaxKeys = limiter.DefaultMaxKeys
	}
	if p.Status == 0 {
		p.Status = http.StatusTooManyRequests
	}
	pace := NewPace(p.Rate, p.Burst)
	return &rules{Policy: p, window: time.Duration(pace.intervals(p.Burst).ceil())}, nil
}

// decision is the part of a decision that only the rules determine.
func (r *rules) decision(at time.Time) limiter.Decision {
	return limiter.Decision{
		Policy: r.Name, Status: r.Status, DryRun: r.DryRun,
		Limit: r.Burst + int64(r.Queue), Window: r.window, At: at,
	}
}

// A Shaper is one limit in queue form, with a queue for each key. See the
// package's comment for what it promises. It is safe for concurrent use.
type Shaper struct {
	clock clock
	// rules is written under the locks of all shards, so that a line made under
	// one of them has the rules of its time and is met by the next Adopt.
	rules atomic.Pointer[rules]
	// lines holds the key's buckets: while somebody waits, and until they are
	// as good as new. A bucket's lock is taken under its shard's and never the
	// other way.
	lines *keyed.Map[*bucket]
}

// New returns a Shaper for p.
func New(p Policy) (*Shaper, error) {
	r, err := newRules(p)
	if err != nil {
		return nil, err
	}
	s := &Shaper{
		clock: clock{base: time.Now()},
		lines: keyed.New(r.MaxKeys, func(b **bucket, now int64) int64 { return (*b).idle(now) }),
	}
	s.rules.Store(r)
	return s, nil
}

// Acquire asks for a turn under key and waits for it, if need be and worth it.
//
// A request that is released or refused has a nil error; see
// [limiter.Decision]. One that leaves while it waits has a Decision that is
// not Allowed, with limiter.ReasonClientGone, and the error context.Cause(ctx),
// or limiter.ErrClientGone if it was gone that noticed. A context that is done already
// uses nothing.
//
// gone may be nil. It is called at most once, just before the request would be
// released after waiting, under the line's lock: it must not block.
//
// In a dry run Acquire never waits: Queued and Waited say what would have been.
func (s *Shaper) Acquire(ctx context.Context, key string, gone func() bool) (limiter.Decision, error) {
	if ctx.Err() != nil {
		d := s.rules.Load().decision(s.clock.at(s.clock.now()))
		d.Reason = limiter.ReasonClientGone
		return d, context.Cause(ctx)
	}
	b := s.lock(key)
	if b == nil {
		return s.full(), nil
	}
	d, w := b.arriveLocked(s.clock.now(), gone)
	b.mu.Unlock()
	if w == nil {
		return d, nil
	}
	return b.wait(ctx, w)
}

// lock returns the key's bucket, locked, and makes it if there is none; nil if
// there is no room for it.
//
// The bucket is locked before its shard is unlocked: in between it might be
// forgotten, and the key would have two queues.
func (s *Shaper) lock(key string) *bucket {
	shard, h := s.lines.Shard(key)
	shard.Lock()
	defer shard.Unlock()
	p := shard.Get(h)
	if p == nil {
		var ok bool
		if p, ok = shard.Put(h, s.clock.now()); !ok {
			return nil
		}
		r := s.rules.Load()
		*p = &bucket{clock: &s.clock, rules: r, line: NewLine[turn](r.Rate, r.Burst, r.Queue, r.MaxWait)}
	}
	b := *p
	b.mu.Lock()
	return b
}

// full refuses a new key while somebody waits in every line there may be.
func (s *Shaper) full() limiter.Decision {
	r := s.rules.Load()
	d := r.decision(s.clock.at(s.clock.now()))
	d.Reason = limiter.ReasonQueueFull
	// By then whoever waits now has left, and his line may go.
	d.RetryAfter, d.ResetAfter = r.MaxWait, r.MaxWait
	return d
}

// Peek says what the limit's state is for key, without asking for a turn: it
// writes nothing, and a key that is not known stays so.
func (s *Shaper) Peek(key string) limiter.Decision {
	shard, h := s.lines.Shard(key)
	shard.Lock()
	defer shard.Unlock()
	if p := shard.Get(h); p != nil {
		return (*p).peek()
	}
	d := s.rules.Load().decision(s.clock.at(s.clock.now()))
	d.Allowed, d.Remaining, d.Peeked = true, d.Limit, true
	return d
}

// Adopt goes on under another policy: all lines at one instant, nobody who
// waits is refused for it, and no change fills a bucket or lets out a bunch.
// What p says wrong is the error, and then nothing has changed.
func (s *Shaper) Adopt(p Policy) error {
	r, err := newRules(p)
	if err != nil {
		return err
	}
	s.lines.Lock()
	defer s.lines.Unlock()
	s.rules.Store(r)
	s.lines.EachLocked(func(b **bucket) bool {
		(*b).adopt(r)
		return true
	})
	s.lines.ResizeLocked(r.MaxKeys, s.clock.now())
	return nil
}

// Policy is the policy in force, with its defaults filled in.
func (s *Shaper) Policy() Policy { return s.rules.Load().Policy }

// A Snapshot is the state of a Shaper for gauges.
type Snapshot struct {
	Depth      int           // how many wait, over all keys; in a dry run, how many would
	Capacity   int           // how many may wait for one key
	OldestWait time.Duration // for how long the one has waited who waits longest; a dry run's wait is none
	Keys       int           // keys remembered
	Evicted    uint64        // keys forgotten, for want of room, before they were as good as new
}

// Snapshot looks at each key once, under its lock, so the numbers may be of
// slightly different instants.
func (s *Shaper) Snapshot() Snapshot {
	snap := Snapshot{Capacity: s.Policy().Queue, Keys: s.lines.Len(), Evicted: s.lines.Evicted()}
	s.lines.Each(func(b **bucket) bool {
		n, oldest := (*b).depth()
		snap.Depth += n
		snap.OldestWait = max(snap.OldestWait, oldest)
		return true
	})
	return snap
}
