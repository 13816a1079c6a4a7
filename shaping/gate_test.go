package shaping_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

const throttled = "throttled"

func (s *scene) close(d time.Duration) {
	s.gate.Close(throttled, time.Now().Add(d))
	synctest.Wait()
}

func TestGateHoldsBackInOrderAndLetsOutNoBunch(t *testing.T) {
	for _, p := range []shaping.Policy{q(t, "1/s", 10, time.Minute), tb(t, "1/s", 5, 10, time.Minute)} {
		play(t, p, func(t *testing.T, s *scene) {
			s.gate = shaping.NewGate()
			s.close(10 * time.Second)
			all := s.crowd(4)
			s.at(9 * time.Second)
			if snap := s.Snapshot(); snap.Depth != 4 {
				t.Fatalf("%d wait at a closed gate, want 4", snap.Depth)
			}
			s.at(20 * time.Second)
			wantReleased(t, all, 10*time.Second, 11*time.Second, 12*time.Second, 13*time.Second)
			for i, a := range all {
				if a.decision.Ahead != i {
					t.Errorf("request %d: ahead %d", i, a.decision.Ahead)
				}
			}
		})
	}
}

// Unlike an operator's pause, the upstream's counts as waiting.
func TestGateTellsThoseWhoAreTooLateAtOnce(t *testing.T) {
	play(t, q(t, "1/s", 10, 6*time.Second), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		all := s.crowd(7) // at 0, 1, 2, 3, 4, 5 and 6 s
		wantReleased(t, all, 0)
		s.at(500 * time.Millisecond)
		s.close(3500 * time.Millisecond) // to 4 s: then the turns are at 4, 5, 6, 7, 8 and 9 s
		for i, a := range all {
			if late := i > 3; a.over != (late || i == 0) {
				t.Fatalf("request %d: over is %v", i, a.over)
			} else if !late {
				continue
			}
			if d := a.decision; d.Reason != limiter.ReasonPaused || d.Waited != 500*time.Millisecond || a.ended != s.since() {
				t.Errorf("request %d at %v: %+v", i, a.ended, d)
			}
		}
		// The fourth was told when three stood before it: who comes then and would
		// leave at 7 s, may come 6 s before. The last was told with the same.
		for _, a := range all[4:] {
			if a.decision.RetryAfter != 500*time.Millisecond {
				t.Errorf("retry after %v", a.decision.RetryAfter)
			}
		}
		early := s.ask("", nil)
		if !early.over || early.decision.Reason != limiter.ReasonPaused || early.decision.RetryAfter != 500*time.Millisecond {
			t.Errorf("who comes too early is told %+v", early.decision)
		}
		s.at(time.Second)
		intime := s.ask("", nil)
		s.at(30 * time.Second)
		wantReleased(t, append(all[1:4:4], intime), 4*time.Second, 5*time.Second, 6*time.Second, 7*time.Second)
	})
}

func TestGateClosedForLongerAndOpenedSooner(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.close(10 * time.Second)
		all := s.crowd(3)
		s.at(5 * time.Second)
		s.close(10 * time.Second)
		if s.gate.Close(throttled, time.Now().Add(time.Second)) {
			t.Error("a sooner end of the same cause counts")
		}
		s.at(12 * time.Second)
		wantReleased(t, all)
		s.gate.Close("breaker", time.Time{})
		if why, until, ok := s.gate.Closed(); !ok || why != "breaker" || !until.IsZero() {
			t.Errorf("closed for %q until %v", why, until)
		}
		s.at(20 * time.Second)
		if len(released(all)) != 0 {
			t.Error("somebody passed at the end of one cause of two")
		}
		s.gate.Open("breaker")
		synctest.Wait()
		wantReleased(t, all, 20*time.Second)
		s.at(21500 * time.Millisecond)
		s.close(30 * time.Second)
		s.gate.Open(throttled)
		s.at(30 * time.Second)
		wantReleased(t, all, 20*time.Second, 21*time.Second, 22*time.Second)
	})
}

// One limit before two upstreams: who waits for the open one passes, and the
// pace is that of both together.
func TestGateLetsOthersPass(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		a, b := shaping.NewGate(), shaping.NewGate()
		s.ask("", nil) // leaves at 0
		s.gate = a
		s.close(5500 * time.Millisecond)
		as := s.crowd(2)
		s.gate = b
		bs := s.crowd(2)
		if w := bs[1]; w.over {
			t.Fatal("it does not wait")
		}
		s.gate = a
		as = append(as, s.ask("", nil))
		s.gate = nil
		s.at(4200 * time.Millisecond)
		free := s.ask("", nil) // the pace is due, and nobody who may pass waits
		s.gate = b
		s.at(5400 * time.Millisecond)
		bs = append(bs, s.ask("", nil))
		s.at(time.Minute)
		wantReleased(t, bs, time.Second, 2*time.Second, 5400*time.Millisecond)
		wantReleased(t, []*asked{free}, 4200*time.Millisecond)
		wantReleased(t, as, 6400*time.Millisecond, 7400*time.Millisecond, 8400*time.Millisecond)
		if bs[0].decision.Ahead != 0 || bs[1].decision.Ahead != 1 {
			t.Errorf("ahead %d and %d", bs[0].decision.Ahead, bs[1].decision.Ahead)
		}
	})
}

// One gate for several lines: each goes on at its own pace.
func TestGateOfSeveralLines(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.close(3 * time.Second)
		var x, y []*asked
		for range 2 {
			x, y = append(x, s.ask("x", nil)), append(y, s.ask("y", nil))
		}
		s.at(10 * time.Second)
		for _, all := range [][]*asked{x, y} {
			wantReleased(t, all, 3*time.Second, 4*time.Second)
		}
	})
}

func TestGateWithoutAQueueRefuses(t *testing.T) {
	p := shaping.Policy{Name: "places", MaxInFlight: 2}
	play(t, p, func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.close(4 * time.Second)
		a := s.ask("", nil)
		if !a.over || a.decision.Reason != limiter.ReasonPaused || a.decision.RetryAfter != 4*time.Second {
			t.Errorf("%+v", a.decision)
		}
		s.at(4 * time.Second)
		if a := s.ask("", nil); !a.decision.Allowed {
			t.Errorf("after the pause: %+v", a.decision)
		}
	})
}

// Whatever gates do, nothing leaves through a closed one or above the rate,
// nobody waits who may go, order holds, and each request ends once.
func TestGatesWalk(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { walkGates(t, seed) })
	}
}

func walkGates(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 6))
	const interval = 500 * time.Millisecond
	p := q(t, "2/s", 1+rng.IntN(30), time.Duration(1+rng.IntN(40))*time.Second)
	p.PromoteAfter = 2 * time.Second * time.Duration(rng.IntN(2))
	s, err := shaping.New(p)
	if err != nil {
		t.Fatal(err)
	}
	gates := []*shaping.Gate{nil, shaping.NewGate(), shaping.NewGate(), shaping.NewGate()}
	gates = gates[rng.IntN(2) : 2+rng.IntN(3)]
	closed := func(g *shaping.Gate) bool { _, _, ok := g.Closed(); return ok }
	slowed := func(g *shaping.Gate) bool { _, ok := g.Pace(); return ok }

	start := time.Now()
	type visit struct {
		req   shaping.Request
		came  time.Duration
		over  bool
		where *shaping.Gate
	}
	var mu sync.Mutex // held by those who end, of whom there may be many at an instant
	var visits []*visit
	ledger := newLedger()
	terms := shaping.Terms{Rate: p.Rate, Burst: 1}
	last, lastNow := -time.Hour, time.Duration(0)
	fail := func(err error) {
		if err != nil {
			t.Errorf("seed %d at %v: %v", seed, time.Since(start), err)
		}
	}
	ask := func() {
		id := len(visits)
		v := &visit{came: time.Since(start), where: gates[rng.IntN(len(gates))]}
		v.req = shaping.Request{Class: queue.Class(rng.IntN(3)), Flow: fmt.Sprint(rng.IntN(3)), Gate: v.where, Paced: true}
		v.req.Cost = int64(1 + rng.IntN(4)*int(seed%2))
		mu.Lock()
		visits = append(visits, v)
		ledger.came[id] = ""
		mu.Unlock()
		ctx, leave := context.WithCancel(t.Context())
		if rng.IntN(8) == 0 {
			time.AfterFunc(time.Duration(rng.IntN(8000))*time.Millisecond, leave)
		}
		go func() {
			defer leave()
			g, err := s.Acquire(ctx, v.req)
			mu.Lock()
			defer mu.Unlock()
			v.over = true
			switch now := time.Since(start); {
			case g.Allowed:
				if closed(v.where) {
					t.Errorf("seed %d: request %d left through a closed gate at %v", seed, id, now)
				}
				ledger.passes(int64(now-lastNow), terms)
				last, lastNow = now+interval*time.Duration(v.req.Cost-1), now
				ledger.left(terms, v.req.Cost, v.req.Class)
				if g.Queued {
					fail(ledger.ordered(id, shaping.Entrant{Class: v.req.Class, Flow: fmt.Sprintf("%s %p", v.req.Flow, v.where)}))
				}
			case err == nil && g.Waited > p.MaxWait:
				t.Errorf("seed %d: request %d was refused after %v", seed, id, g.Waited)
			case err == nil && g.RetryAfter <= 0:
				t.Errorf("seed %d: request %d is to come again after %v", seed, id, g.RetryAfter)
			}
			fail(ledger.ends(id, string(g.Reason)))
			g.Release()
		}()
		synctest.Wait()
	}
	for range 300 {
		g := gates[rng.IntN(len(gates))]
		switch n := rng.IntN(12); {
		case n < 6:
			ask()
		case n < 7 && g != nil:
			g.Close(throttled, time.Now().Add(time.Duration(rng.IntN(9000))*time.Millisecond))
		case n < 8 && g != nil:
			g.Open(throttled)
		case n < 9 && g != nil:
			g.Heard(g.Sent(), int64(1+rng.IntN(20)), time.Now().Add(time.Duration(rng.IntN(20000))*time.Millisecond), time.Minute)
		default:
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		}
		synctest.Wait()
		now := time.Since(start)
		mu.Lock()
		i, left := slices.IndexFunc(visits, func(v *visit) bool { return !v.over && !closed(v.where) && !slowed(v.where) }), last
		mu.Unlock()
		if i >= 0 && now >= left+interval {
			t.Fatalf("seed %d at %v: request %d waits in vain; the last left at %v", seed, now, i, left)
		}
	}
	time.Sleep(time.Hour)
	mu.Lock()
	defer mu.Unlock()
	fail(ledger.balance())
}

// Who is told when to come again is let in then, if nobody else comes.
func TestGateRetryAfterIsTrue(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := q(t, "1/s", 1+rng.IntN(5), time.Duration(1+rng.IntN(6))*time.Second)
		play(t, p, func(t *testing.T, s *scene) {
			s.gate = shaping.NewGate()
			s.crowd(rng.IntN(4))
			s.close(time.Duration(1+rng.IntN(15000)) * time.Millisecond)
			for range 8 {
				a := s.ask("", nil)
				if !a.over || a.decision.Allowed {
					continue
				}
				for _, early := range []time.Duration{1, 0} {
					s.at(a.ended + a.decision.RetryAfter - early)
					again := s.ask("", nil)
					if refused := again.over && !again.decision.Allowed; refused != (early > 0) {
						t.Fatalf("seed %d: told at %v to come after %v; %v before that it is %+v", seed, a.ended, a.decision.RetryAfter, early, again.decision)
					}
				}
				return
			}
		})
	}
}
