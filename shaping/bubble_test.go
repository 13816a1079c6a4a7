package shaping_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A bubble takes a Shaper and, for each key, the reference the same random way
// through virtual time: every request must end as the reference says, at that
// very instant.
type bubble struct {
	chance
	t       *testing.T
	s       *shaping.Shaper
	start   time.Time
	policy  shaping.Policy
	paused  int64
	keys    int
	refs    map[string]*ref
	ledgers map[string]*ledger
	visits  []*bubbleVisit
	counts  map[string]int

	mu sync.Mutex // what became of visits
}

// A bubbleVisit is one request: what the reference says of it, and what became
// of it.
type bubbleVisit struct {
	id     int
	key    string
	cost   int64
	class  queue.Class
	cancel context.CancelCauseFunc
	left   atomic.Bool // the client has, and only Gone knows

	ended    bool
	reason   limiter.Reason
	came, at int64
	ahead    int
	retry    time.Duration // 0: not compared
	released bool

	// Guarded by the bubble's mu.
	over   bool
	overAt int64
	grant  shaping.Grant
	err    error
}

func (b *bubble) now() int64 { return b.start.UnixNano() + int64(time.Since(b.start)) }

func (b *bubble) randomPolicy() shaping.Policy {
	t := b.terms(b.t, true)
	p := shaping.Policy{
		Rate: t.Rate, Burst: t.Burst, MaxInFlight: t.MaxInFlight, Queue: t.Queue,
		MaxWait: max(1, t.MaxWait), PromoteAfter: t.PromoteAfter, ReserveHigh: t.ReserveHigh,
	}
	if b.keys > 1 { // without places, a key may be forgotten while its request is unfinished
		p.MaxInFlight = max(2, p.MaxInFlight)
	}
	if p.Rate.Count > 0 {
		p.Queue++
	} else if p.MaxWait == 1 {
		p.MaxWait = time.Second
	}
	return p
}

func policyTerms(p shaping.Policy) shaping.Terms {
	return shaping.Terms{
		Rate: p.Rate, Burst: p.Burst, Queue: p.Queue, MaxWait: p.MaxWait, MaxInFlight: p.MaxInFlight, PromoteAfter: p.PromoteAfter,
		ReserveHigh: p.ReserveHigh,
	}
}

// end notes what the reference says.
func (b *bubble) end(id int, reason limiter.Reason) {
	v := b.visits[id]
	if err := b.ledgers[v.key].ends(id, string(reason)); err != nil {
		b.t.Fatal(err)
	}
	v.ended, v.reason, v.at = true, reason, b.now()
	if reason == limiter.ReasonNone {
		b.ledgers[v.key].left(b.refs[v.key].terms, v.cost, v.class)
	}
}

// serve has the reference do what is due.
func (b *bubble) serve() {
	now := b.now()
	for _, r := range b.refs {
		r.look(now)
		for w := r.next(); w != nil && r.due(now) <= now; w = r.next() {
			if b.visits[w.id].left.Load() {
				r.remove(w)
				b.end(w.id, limiter.ReasonClientGone)
				continue
			}
			r.leave(now)
			b.end(w.id, limiter.ReasonNone)
			if err := b.ledgers[b.visits[w.id].key].ordered(w.id, w.e); err != nil {
				b.t.Fatal(err)
			}
		}
		if w, why := r.expire(now); w != nil {
			b.end(w.id, why)
			b.counts["later "+string(why)]++
			b.serve() // a cheaper one may have become the head by it
			return
		}
	}
}

// compare checks that exactly those requests have ended that should have.
func (b *bubble) compare() {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	depth, inFlight := 0, 0
	for key, r := range b.refs {
		depth += len(r.all)
		inFlight += r.taken
		if len(r.all) > 0 && r.due(b.now()) <= b.now() {
			b.t.Fatalf("%q: somebody waits who could leave", key)
		}
	}
	if snap := b.s.Snapshot(); snap.Depth != depth || snap.InFlight != inFlight {
		b.t.Fatalf("%+v, want depth %d and %d in flight", snap, depth, inFlight)
	}
	for _, v := range b.visits {
		d := v.grant.Decision
		switch {
		case !v.ended && !v.over:
		case v.ended != v.over, v.at != v.overAt, v.reason != d.Reason, d.Allowed != (v.reason == ""),
			(v.err != nil) != (v.reason == limiter.ReasonClientGone), d.Allowed && d.Ahead != v.ahead,
			d.Queued && int64(d.Waited) != v.at-v.came, v.retry > 0 && v.retry != d.RetryAfter:
			b.t.Fatalf("under %+v: request %d came at %d: ended %v at %d, %q, ahead %d, retry %v; but over %v at %d: %+v, %v",
				b.policy, v.id, v.came, v.ended, v.at, v.reason, v.ahead, v.retry, v.over, v.overAt, d, v.err)
		}
	}
}

// until lets time pass until then, from one instant at which something is due to
// the next.
func (b *bubble) until(to int64) {
	for {
		at := to
		for _, r := range b.refs {
			at = min(at, r.wake(b.now()))
		}
		d := max(0, at-b.now())
		for _, l := range b.ledgers {
			l.passes(d, policyTerms(b.policy))
		}
		time.Sleep(time.Duration(d))
		b.serve()
		b.compare()
		if at == to {
			return
		}
	}
}

func (b *bubble) arrive(key string, classes, flows int) {
	now, id := b.now(), len(b.visits)
	r := b.refs[key]
	if r == nil {
		r = newRef(policyTerms(b.policy))
		b.refs[key], b.ledgers[key] = r, newLedger()
		if b.paused > now {
			r.pause(now, b.paused)
		}
	}
	e := b.entrant(classes, flows, b.policy.MaxWait)
	ctx, cancel := context.WithCancelCause(b.t.Context())
	v := &bubbleVisit{id: id, key: key, cost: r.cost(e), class: e.Class, cancel: cancel, came: now}
	b.visits = append(b.visits, v)
	b.ledgers[key].came[id] = ""
	verdict, out := r.enter(now, e, id)
	v.ahead = verdict.Ahead
	if out != nil {
		b.end(out.id, limiter.ReasonQueueFull)
		b.visits[out.id].retry = max(1, r.verdict(now, out.e).RetryAfter)
		b.counts["put out"]++
	}
	if !verdict.Queued {
		reason := verdict.Reason
		if reason == limiter.ReasonQueueFull && b.policy.Queue == 0 {
			reason = limiter.ReasonLimit
		}
		b.end(id, reason)
		v.retry = verdict.RetryAfter
		b.counts["at once "+string(reason)]++
	} else if len(r.all) > b.policy.Queue && out == nil {
		b.t.Fatalf("%d wait", len(r.all))
	}
	b.serve()
	go func() {
		grant, err := b.s.Acquire(ctx, shaping.Request{
			Key: key, Cost: e.Cost, Class: e.Class, Flow: e.Flow, MaxWait: e.MaxWait, Gone: func() bool { return v.left.Load() },
		})
		b.mu.Lock()
		defer b.mu.Unlock()
		v.grant, v.err, v.overAt, v.over = grant, err, b.now(), true
	}()
}

// holding is who has been let go and holds a place.
func (b *bubble) holding() (all []*bubbleVisit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.visits {
		if v.over && v.grant.Allowed && !v.released {
			all = append(all, v)
		}
	}
	return all
}

func (b *bubble) waiting() (all []*bubbleVisit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.visits {
		if !v.over && !v.left.Load() {
			all = append(all, v)
		}
	}
	return all
}

func (b *bubble) release(v *bubbleVisit) {
	v.released = true
	b.refs[v.key].done(b.now(), v.class)
	b.serve()
	v.grant.Release()
}

func (b *bubble) pause(d time.Duration) {
	until := shaping.Endless
	if d > 0 {
		until = b.now() + int64(d)
	}
	for _, r := range b.refs {
		if until != b.paused { // to be paused already makes nobody slower
			r.pause(b.now(), until)
		}
	}
	b.paused = until
	b.s.Pause(d)
}

func (b *bubble) resume() {
	b.paused = 0
	for _, r := range b.refs {
		r.resume(b.now())
	}
	b.serve()
	b.s.Resume()
}

func (b *bubble) adopt(p shaping.Policy) {
	for _, l := range b.ledgers {
		l.changes(policyTerms(b.policy), policyTerms(p))
	}
	b.policy = p
	for _, r := range b.refs {
		r.adopt(b.now(), policyTerms(p))
	}
	b.serve()
	if err := b.s.Adopt(p); err != nil {
		b.t.Fatal(err)
	}
}

func walkBubble(t *testing.T, steps int, pick source, counts map[string]int) {
	b := &bubble{
		chance: chance{pick: pick}, t: t, start: time.Now(),
		refs: map[string]*ref{}, ledgers: map[string]*ledger{}, counts: counts,
	}
	classes, flows := 1+pick(3), 1+pick(4)
	b.keys, b.cost = 1+pick(2), []int{0, 3, 9}[pick(3)]
	b.policy = b.randomPolicy()
	var err error
	if b.s, err = shaping.New(b.policy); err != nil {
		t.Fatal(err)
	}
	defer func() { // whatever failed: nobody waits for ever
		b.s.Resume()
		for _, v := range b.visits {
			v.cancel(context.Canceled)
		}
	}()
	step := func() int64 {
		if b.policy.Rate.Count == 0 {
			return 100 * ms
		}
		return int64(b.policy.Rate.Interval())
	}
	for range steps {
		switch op := pick(20); {
		case op < 8:
			b.arrive(fmt.Sprint(pick(b.keys)), classes, flows)
		case op < 9:
			if all := b.waiting(); len(all) > 0 {
				v := all[pick(len(all))]
				r := b.refs[v.key]
				r.look(b.now())
				r.remove(r.all[slices.IndexFunc(r.all, func(w *refWaiter) bool { return w.id == v.id })])
				b.end(v.id, limiter.ReasonClientGone)
				b.serve()
				v.cancel(errors.New("left"))
			}
		case op < 10:
			if all := b.waiting(); len(all) > 0 {
				all[pick(len(all))].left.Store(true)
			}
		case op < 13:
			if all := b.holding(); len(all) > 0 {
				b.release(all[pick(len(all))])
			}
		case op < 17:
			b.until(b.now() + int64(pick(200))*step()/100)
		case op < 18:
			if d := time.Duration(int64(pick(400))*step()/100) * time.Duration(pick(3)); d >= 0 && b.in(2) {
				b.pause(d)
			} else {
				b.resume()
			}
		case op < 19:
			b.adopt(b.randomPolicy())
		}
		b.compare()
	}
	b.resume()
	b.compare()
	for len(b.waiting()) > 0 || len(b.holding()) > 0 {
		for _, v := range b.holding() {
			b.release(v)
			b.compare()
		}
		b.until(b.now() + step())
	}
	b.until(b.now() + int64(24*time.Hour))
	for key, l := range b.ledgers {
		if err := l.balance(); err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		if d, fresh := b.s.Peek(key), b.s.Peek("unknown"); d != fresh || !d.Allowed || d.ResetAfter != 0 {
			t.Fatalf("%q is not as good as new: %+v, want %+v", key, d, fresh)
		}
	}
	if snap := b.s.Snapshot(); snap.Depth != 0 || snap.InFlight != 0 || snap.OldestWait != 0 || snap.Paused {
		t.Fatalf("at the end: %+v", snap)
	}
}

// The live queue gives every request the fate that the reference gives it, at
// the same nanosecond: with classes, flows, deadlines, clients that leave and
// tell or do not, places held, reloads, and pauses.
func TestLedgerOfShaper(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(150) {
		rnd := rand.New(rand.NewPCG(seed, 14))
		synctest.Test(t, func(t *testing.T) { walkBubble(t, 200, rnd.IntN, counts) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, what := range []string{
		"put out", "at once ", "at once queue_full", "at once max_wait", "at once paused", "at once limit",
		"later queue_full", "later max_wait", "later paused",
	} {
		if counts[what] < 10 {
			t.Errorf("%q: only %d", what, counts[what])
		}
	}
	t.Log(counts)
}

func FuzzLedgerOfShaper(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(7), uint64(1<<40))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		rnd := rand.New(rand.NewPCG(a, b))
		synctest.Test(t, func(t *testing.T) { walkBubble(t, 300, rnd.IntN, map[string]int{}) })
	})
}
