package shaping_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Gates before several lines of several limits, with everything else that a live
// queue knows: bursts, costs, places, pauses, reloads, deadlines, clients that
// leave. Above the rate nothing leaves, through a closed gate nothing does,
// nobody waits in vain, and each request ends once.
func TestGatesOfManyLinesWalk(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { walkManyGates(t, rand.New(rand.NewPCG(seed, 8))) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A gated is one request of the walk.
type gated struct {
	line    *gatedLine
	gate    *shaping.Gate
	class   queue.Class
	own     time.Duration // its own deadline, if that is shorter; 0: none
	came    time.Duration
	over    bool
	leave   context.CancelFunc
	release func() // nil: it holds no place
}

// A gatedLine is a key of a limit.
type gatedLine struct {
	limit  *gatedLimit
	key    string
	ledger *ledger
	until  time.Duration // time has passed in the ledger until then
	stirs  time.Duration // when something last left, or something changed
	taken  int
	below  int // of these, of classes below High
}

// free reports whether there is a place for one of that class.
func (l *gatedLine) free(c queue.Class) bool {
	p := l.limit.policy
	return l.taken < p.MaxInFlight && (c == queue.High || l.below < int(float64(p.MaxInFlight)*(1-p.ReserveHigh)+1e-9))
}

type gatedLimit struct {
	*shaping.Shaper
	policy shaping.Policy
	paused time.Duration // until then
	since  time.Duration // when that was said; who was due then leaves first
}

func walkManyGates(t *testing.T, rng *rand.Rand) {
	const dearest = 3
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	ms := func(n int) time.Duration { return time.Duration(rng.IntN(n)) * time.Millisecond }
	policy := func() shaping.Policy {
		rate := []string{"2/s", "7/s", "20/m"}[rng.IntN(3)]
		p := tb(t, rate, int64(1+rng.IntN(4)), 1+rng.IntN(20), time.Second+ms(30000))
		p.MaxInFlight = 3 * (1 + rng.IntN(3))
		p.PromoteAfter = 2 * time.Second * time.Duration(rng.IntN(2))
		p.ReserveHigh = []float64{0, 0.2, 0.5}[rng.IntN(3)]
		return p
	}
	var limits []*gatedLimit
	var lines []*gatedLine
	for range 1 + rng.IntN(2) {
		l := &gatedLimit{policy: policy()}
		var err error
		if l.Shaper, err = shaping.New(l.policy); err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
		for k := range 1 + rng.IntN(2) {
			lines = append(lines, &gatedLine{limit: l, key: fmt.Sprint(k), ledger: newLedger()})
		}
	}
	gates := []*shaping.Gate{nil, shaping.NewGate(), shaping.NewGate()}
	shut := make(map[*shaping.Gate]time.Duration) // when it last was seen closed, or held to a quota

	var mu sync.Mutex // of what requests write as they end
	var all []*gated
	terms := func(l *gatedLine) shaping.Terms {
		return shaping.Terms{Rate: l.limit.policy.Rate, Burst: l.limit.policy.Burst, ReserveHigh: l.limit.policy.ReserveHigh}
	}
	passes := func(l *gatedLine) {
		l.ledger.passes(int64(now()-l.until), terms(l))
		l.until = now()
	}
	stir := func(of *gatedLimit) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range lines {
			if of == nil || l.limit == of {
				l.stirs = now()
			}
		}
	}
	ask := func() {
		l := lines[rng.IntN(len(lines))]
		ctx, leave := context.WithCancel(t.Context())
		r := &gated{line: l, gate: gates[rng.IntN(len(gates))], came: now(), leave: leave}
		req := shaping.Request{
			Key: l.key, Class: queue.Class(rng.IntN(3)), Flow: fmt.Sprint(rng.IntN(3)), Gate: r.gate, Paced: rng.IntN(4) > 0, Cost: int64(1 + rng.IntN(dearest)),
		}
		if rng.IntN(4) == 0 {
			req.MaxWait = 1 + ms(20000)
			if req.MaxWait <= l.limit.policy.MaxWait {
				r.own = req.MaxWait
			}
		}
		r.class = req.Class
		id := len(all)
		mu.Lock()
		all = append(all, r)
		l.ledger.came[id] = ""
		mu.Unlock()
		go func() {
			g, err := l.limit.Acquire(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			r.over = true
			if e := l.ledger.ends(id, string(g.Reason)); e != nil {
				t.Error(e)
			}
			switch {
			case g.Allowed:
				if _, _, closed := r.gate.Closed(); closed || l.limit.paused > now() && l.limit.since < now() {
					t.Errorf("request %d left at %v through a closed gate, %v, or in a pause", id, now(), closed)
				}
				passes(l)
				l.ledger.left(terms(l), req.Cost, req.Class)
				if !l.free(req.Class) {
					t.Errorf("request %d is the %dth under way, and %d of these below high, of %+v", id, l.taken+1, l.below, l.limit.policy)
				}
				l.stirs, r.release = now(), g.Release
				l.taken++
				l.below += min(1, int(req.Class))
			case err == nil && r.own > 0 && g.Waited > r.own:
				t.Errorf("request %d had %v, and was refused after %v", id, r.own, g.Waited)
			case err == nil && g.RetryAfter <= 0:
				t.Errorf("request %d is to come again after %v", id, g.RetryAfter)
			}
		}()
	}
	// one picks one of those, or nil.
	one := func(of func(*gated) bool) *gated {
		mu.Lock()
		defer mu.Unlock()
		var some []*gated
		for _, r := range all {
			if of(r) {
				some = append(some, r)
			}
		}
		if len(some) == 0 {
			return nil
		}
		return some[rng.IntN(len(some))]
	}
	release := func() bool {
		r := one(func(r *gated) bool { return r.release != nil })
		if r == nil {
			return false
		}
		mu.Lock()
		release := r.release
		r.release = nil
		r.line.taken--
		r.line.below -= min(1, int(r.class))
		r.line.stirs = now()
		mu.Unlock()
		release()
		return true
	}
	open := func() {
		for _, g := range gates[1:] {
			for why := range 2 {
				g.Open(fmt.Sprint(why))
			}
		}
	}
	for range 400 {
		gate, limit := gates[1+rng.IntN(len(gates)-1)], limits[rng.IntN(len(limits))]
		switch n := rng.IntN(40); {
		case n < 16:
			ask()
		case n < 18:
			var until time.Time
			if rng.IntN(5) > 0 {
				until = time.Now().Add(ms(9000))
			}
			gate.Close(fmt.Sprint(rng.IntN(2)), until)
		case n < 19:
			open()
		case n < 20:
			gate.Heard(gate.Sent(), int64(1+rng.IntN(20)), time.Now().Add(ms(20000)), time.Minute)
		case n < 21:
			d := ms(8000) * time.Duration(rng.IntN(2))
			mu.Lock()
			if limit.paused, limit.since = now()+d, now(); d == 0 {
				limit.paused = 1 << 62
			}
			mu.Unlock()
			limit.Pause(d)
		case n < 23:
			mu.Lock()
			limit.paused = 0
			mu.Unlock()
			limit.Resume()
			stir(limit)
		case n < 24:
			p := policy()
			// Of these it would matter who leaves at this very instant before the change.
			p.Burst, p.MaxInFlight, p.ReserveHigh = limit.policy.Burst, limit.policy.MaxInFlight, limit.policy.ReserveHigh
			mu.Lock()
			for _, l := range lines {
				passes(l)
			}
			limit.policy = p
			mu.Unlock()
			if err := limit.Adopt(p); err != nil {
				t.Fatal(err)
			}
			stir(limit)
		case n < 32:
			release()
		case n < 33:
			if r := one(func(r *gated) bool { return !r.over }); r != nil {
				r.leave()
			}
		default:
			time.Sleep(ms(1500))
		}
		synctest.Wait()
		for _, g := range gates {
			_, _, closed := g.Closed()
			if _, slow := g.Pace(); closed || slow {
				shut[g] = now()
			}
		}
		for _, l := range limits {
			if l.paused > now() {
				stir(l)
			}
		}
		mu.Lock()
		for i, r := range all {
			l := r.line
			since := max(r.came, l.stirs, shut[r.gate]+1500*time.Millisecond)
			if p := l.limit.policy; !r.over && l.limit.paused <= now() && l.free(r.class) && now() > since+time.Duration(float64((2*dearest+1)*p.Rate.Interval())/(1-p.ReserveHigh))+1500*time.Millisecond {
				t.Errorf("request %d waits in vain at %v since %v under %+v, gate shut at %v", i, now(), since, p, shut[r.gate])
				r.over = true
			}
		}
		mu.Unlock()
		if t.Failed() {
			break
		}
	}
	open()
	for _, l := range limits {
		mu.Lock()
		l.paused = 0
		mu.Unlock()
		l.Resume()
	}
	for range 10000 {
		if synctest.Wait(); !release() {
			time.Sleep(time.Second)
		}
	}
	for _, l := range lines {
		if err := l.ledger.balance(); err != nil {
			t.Error(err)
		}
	}
	for _, l := range limits {
		if snap := l.Snapshot(); snap.Depth != 0 || snap.InFlight != 0 {
			t.Errorf("at the end: %+v", snap)
		}
	}
	for _, r := range all {
		r.leave()
	}
}
