package shaping

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A Request asks a Shaper for a turn.
type Request struct {
	Key string // whose queue

	// Gone reports whether the client has left although the context does not
	// know. It is called just before the request would be
	// released after waiting, under the line's lock: it must not block. Nil:
	// not asked.
	Gone func() bool

	// Cost is how many intervals of the rate the request takes, and one place all
	// the same; 0 means 1. Under a policy without a Rate every request is one.
	Cost int64
	// Free: it only looks. It passes at once, and takes neither an interval nor a
	// place.
	Free bool

	Class   queue.Class   // who goes first
	Flow    string        // who takes turns within a class
	MaxWait time.Duration // how long this request would wait, if less than the policy allows; 0: no less
	Gate    *Gate         // that it has to pass, except in a dry run; nil: none
	Paced   bool          // nothing holds it up between here and the Gate; see Entrant
	Ticket  *Ticket       // of its place, to have that again; nil: it does not come again
}

func (r *Request) entrant() Entrant {
	return Entrant{Cost: r.Cost, Class: r.Class, Flow: r.Flow, MaxWait: r.MaxWait, Gate: r.Gate, Paced: r.Paced, Ticket: r.Ticket}
}

// A Grant is a Shaper's answer to a Request.
type Grant struct {
	limiter.Decision
	bucket *bucket // whose place it holds; nil: none
	class  queue.Class
}

// Release gives back the place that a request held which was let go and has now
// ended. It must be called once for each Grant that is Allowed, and does nothing
// for others. In a dry run it must be called too.
func (g Grant) Release() {
	if g.bucket != nil {
		g.bucket.done(as(&g.Decision, g.class))
	}
}

// Report says how the upstream took the request, as limiter.Permit.Report does.
func (g Grant) Report(a limiter.Answer) {
	if g.bucket != nil {
		g.bucket.learn(g.At, a)
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
	lines   *keyed.Map[*bucket]
	alarms  *Alarms      // nil: a timer of the runtime's for each line
	shared  SharedPace   // nil: each line has a pace of its own
	leases  SharedLeases // nil: and places of its own
	polling atomic.Int64 // lines that ask for places again and again
}

// An Option is a choice of New.
type Option func(*Shaper)

// WithAlarms has the alarms of all lines be kept by a, which may serve any
// number of Shapers and must outlive them.
func WithAlarms(a *Alarms) Option { return func(s *Shaper) { s.alarms = a } }

// New returns a Shaper for p.
func New(p Policy, options ...Option) (*Shaper, error) {
	r, err := newRules(p)
	if err != nil {
		return nil, err
	}
	s := &Shaper{
		clock: clock{base: time.Now()},
		lines: keyed.New(r.MaxKeys, func(b **bucket, now int64) int64 { return (*b).idle(now) }),
	}
	s.rules.Store(r)
	for _, o := range options {
		o(s)
	}
	return s, s.shareable(p)
}

// Acquire asks for a turn and waits for it, if need be and worth it.
//
// A request that is released or refused has a nil error; see
// [limiter.Decision]. One that leaves while it waits has a Decision that is
// not Allowed, with limiter.ReasonClientGone, and the error context.Cause(ctx),
// or limiter.ErrClientGone if it was Gone that noticed. A context that is done
// already uses nothing.
//
// In a dry run Acquire never waits: Queued and Waited say what would have been.
func (s *Shaper) Acquire(ctx context.Context, req Request) (g Grant, err error) {
	g.class = req.Class
	g.bucket, err = s.acquire(ctx, &req, &g.Decision)
	return g, err
}

// as is the class as which one is unfinished that is of c: in a dry run all are High.
func as(d *limiter.Decision, c queue.Class) queue.Class {
	if d.DryRun {
		return queue.High
	}
	return c
}

// acquire writes the decision to d, and returns the bucket whose place the
// request holds. Pointers rather than values, here and in what it calls: the
// frames up to the wait stand on the stack of everybody who waits.
func (s *Shaper) acquire(ctx context.Context, req *Request, d *limiter.Decision) (holds *bucket, err error) {
	if ctx.Err() != nil {
		*d = s.rules.Load().decision(s.clock.at(s.clock.now()), req.Class)
		d.Reason = limiter.ReasonClientGone
		return nil, context.Cause(ctx)
	}
	if req.Free {
		*d = s.peek(req.Key, req.Class)
		d.Allowed, d.Reason, d.RetryAfter, d.Ahead, d.Peeked = true, limiter.ReasonNone, 0, 0, false
		return nil, nil
	}
	b, w := s.arrive(req, d)
	if w != nil {
		err = b.wait(ctx, w, d)
	} else if d.DryRun && d.Queued {
		return nil, nil // it takes no place; see Line.Rehearse
	}
	if !d.Allowed {
		b = nil
	}
	return b, err
}

// arrive puts a request to its line. With a Waiter, wait tells the decision.
func (s *Shaper) arrive(req *Request, d *limiter.Decision) (*bucket, *Waiter[turn]) {
	b := s.lock(req.Key)
	if b == nil {
		*d = s.full(req.Class)
		return nil, nil
	}
	defer b.mu.Unlock()
	var w *Waiter[turn]
	*d, w = b.arriveLocked(b.now(), req)
	return b, w
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
	now := s.clock.now()
	shard.Notice(h, key, now)
	p := shard.Get(h)
	if p == nil {
		var ok bool
		if p, ok = shard.Put(h, now); !ok {
			return nil
		}
		*p = s.newBucket(key)
	}
	b := *p
	b.mu.Lock()
	return b
}

// newBucket is the bucket of a key that is not known.
func (s *Shaper) newBucket(key string) *bucket {
	r := s.rules.Load()
	b := &bucket{shaper: s, rules: r, line: NewLine[turn](r.Terms())}
	b.line.owner = b
	if s.shared != nil {
		b.line.pace.grants = &grants{key: key, ahead: aheadAtFirst}
	}
	if s.leases != nil {
		b.line.pace.leases = &leases{key: key, free: r.MaxInFlight}
	}
	if r.pausedUntil != 0 {
		b.line.Pause(s.clock.now(), r.pausedUntil)
	}
	return b
}

// full refuses a new key while somebody waits in every line there may be.
func (s *Shaper) full(c queue.Class) limiter.Decision {
	r := s.rules.Load()
	d := r.decision(s.clock.at(s.clock.now()), c)
	d.Reason = limiter.ReasonQueueFull
	// By then whoever waits now has left, and his line may go.
	d.RetryAfter, d.ResetAfter = r.MaxWait, r.MaxWait
	return d
}

// Busiest returns at most n of the keys that are asked for most, the busiest
// first, as limiter.Limit.Busiest does.
func (s *Shaper) Busiest(n int) []limiter.Busy {
	top := s.lines.Busiest(n, s.clock.now())
	all := make([]limiter.Busy, len(top))
	for i, b := range top {
		all[i] = limiter.Busy(b)
	}
	return all
}

// Forget makes the rate of key as good as new: what has left is forgiven, and the
// whole burst may go at once, as if nobody had come before. So in an interval
// with a Forget in it a burst more may leave than the package promises. Who waits
// keeps its place, those who are unfinished keep theirs, and a pause lasts.
func (s *Shaper) Forget(key string) {
	shard, h := s.lines.Shard(key)
	shard.Lock()
	defer shard.Unlock()
	if p := shard.Get(h); p != nil {
		(*p).forget()
	}
}

// Peek says what the limit's state is for key and class High, without asking for a
// turn: it writes nothing, and a key that is not known stays so.
func (s *Shaper) Peek(key string) limiter.Decision { return s.peek(key, queue.High) }

func (s *Shaper) peek(key string, c queue.Class) limiter.Decision {
	shard, h := s.lines.Shard(key)
	shard.Lock()
	defer shard.Unlock()
	if p := shard.Get(h); p != nil {
		return (*p).peek(c)
	}
	return s.newBucket(key).peek(c)
}

// Foresee is how long req would wait if it came now, as far as that is known: a
// wait for places is not. It is not ok if the request would be refused. In a dry
// run nobody waits.
func (s *Shaper) Foresee(req Request) (wait time.Duration, ok bool) {
	shard, h := s.lines.Shard(req.Key)
	shard.Lock()
	defer shard.Unlock()
	if req.Free || s.rules.Load().DryRun {
		return 0, true
	}
	var b *bucket
	if p := shard.Get(h); p != nil {
		b = *p
	} else {
		b = s.newBucket(req.Key)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.line.LookFor(b.now(), req.entrant())
	return v.Wait, v.Reason == limiter.ReasonNone
}

// Adopt goes on under another policy: all lines at one instant, nobody who
// waits is refused for it, and no change fills a bucket or lets out a bunch.
// What p says wrong is the error, and then nothing has changed.
func (s *Shaper) Adopt(p Policy) error {
	r, err := newRules(p)
	if err == nil {
		err = s.shareable(p)
	}
	if err != nil {
		return err
	}
	s.lines.Lock()
	defer s.lines.Unlock()
	r.pausedUntil = s.rules.Load().pausedUntil
	s.adoptLocked(r)
	s.lines.ResizeLocked(r.MaxKeys, s.clock.now())
	return nil
}

// adopt makes r the rules, with all shards locked.
func (s *Shaper) adoptLocked(r *rules) {
	s.rules.Store(r)
	s.lines.EachLocked(func(b **bucket) bool {
		(*b).adopt(r)
		return true
	})
}

// Pause stops the departures of all lines, for d or, with 0, until Resume. Who
// waits stays, in order, and the time does not count as waiting; who comes
// waits too, unless its wait would be too long. Adopt leaves a pause as it is.
func (s *Shaper) Pause(d time.Duration) {
	until := Endless
	if d > 0 {
		until = addTime(s.clock.now(), int64(d))
	}
	s.pause(until)
}

// Resume ends a pause: departures go on at the pace, with no bunch.
func (s *Shaper) Resume() { s.pause(0) }

func (s *Shaper) pause(until int64) {
	s.lines.Lock()
	defer s.lines.Unlock()
	r := *s.rules.Load()
	r.pausedUntil = until
	s.adoptLocked(&r)
}

// Policy is the policy in force, with its defaults filled in.
func (s *Shaper) Policy() Policy { return s.rules.Load().Policy }

// A Snapshot is the state of a Shaper for gauges.
type Snapshot struct {
	Depth      int           // how many wait, over all keys; in a dry run, how many would
	Capacity   int           // how many may wait for one key
	OldestWait time.Duration // for how long the one has waited who waits longest; a dry run's wait is none
	InFlight   int           // how many that were let go have not ended, over all keys
	Paused     bool
	Resumes    time.Duration // until a pause ends by itself; 0: it does not, or there is none
	Keys       int           // keys remembered
	// Sheds is the best class of which some are refused because others wait too
	// long, of the key for which that is the best; empty: of none.
	Sheds string
	// Rate and Places are those in force, of the key for which they are highest.
	Rate    limiter.Rate
	Places  int
	Evicted uint64 // keys forgotten, for want of room, before they were as good as new
}

// Depth is how many wait, over all keys, as of Snapshot.
func (s *Shaper) Depth() (n int) {
	s.lines.Each(func(b **bucket) bool {
		depth, _, _, _ := (*b).depth()
		n += depth
		return true
	})
	return n
}

// Snapshot looks at each key once, under its lock, so the numbers may be of
// slightly different instants.
func (s *Shaper) Snapshot() Snapshot {
	r, now := s.rules.Load(), s.clock.now()
	snap := Snapshot{Capacity: r.Queue, Keys: s.lines.Len(), Evicted: s.lines.Evicted()}
	if r.pausedUntil > now {
		snap.Paused = true
		if r.pausedUntil != Endless {
			snap.Resumes = time.Duration(r.pausedUntil - now)
		}
	}
	snap.Rate, snap.Places = newSearch(r.Terms()).found(r.Terms())
	s.lines.Each(func(b **bucket) bool {
		n, oldest, inFlight, sheds := (*b).depth()
		if snap.Sheds != queue.Normal.String() && sheds != "" {
			snap.Sheds = sheds
		}
		if r.searches() {
			rate, places := (*b).found()
			if slower(snap.Rate, rate) {
				snap.Rate = rate
			}
			snap.Places = max(snap.Places, places)
		}
		snap.Depth += n
		snap.OldestWait = max(snap.OldestWait, oldest)
		snap.InFlight += inFlight
		return true
	})
	return snap
}
