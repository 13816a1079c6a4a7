package shaping_test

import (
	"context"
	"errors"
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

// What Kubernetes' priority and fairness, HAProxy and Envoy test, as far as it
// is about waiting.

// K1: order, removal from the middle in any order, and twice.
func TestScenarioK1(t *testing.T) {
	for _, name := range []string{"in order of arrival", "at random"} {
		line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 100, MaxWait: time.Hour})
		_, waiting := fill(&line, epoch, 51)
		out := slices.Clone(waiting[10:30])
		if name == "at random" {
			rand.New(rand.NewPCG(1, 15)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		for i, w := range out {
			if !line.Cancel(w) || line.Cancel(w) || line.Waiting() != 49-i {
				t.Fatalf("%s: %d wait after %d left", name, line.Waiting(), i+1)
			}
		}
		now := epoch
		for _, want := range slices.Concat(waiting[:10], waiting[30:]) {
			if now = line.Due(now); line.Leave(now) != want {
				t.Fatalf("%s: out of order", name)
			}
		}
		if line.Cancel(out[0]) || line.Cancel(waiting[0]) {
			t.Fatalf("%s: left twice", name)
		}
	}
}

// K3: one that panics gives its place back.
func TestScenarioK3(t *testing.T) {
	play(t, shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 5, MaxWait: sec}, func(t *testing.T, s *scene) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			g, _ := s.Acquire(t.Context(), shaping.Request{})
			defer g.Release()
			panic("in the handler")
		}()
		s.hold(shaping.Request{}, 0).want(t, "the next", 0, "")
	})
}

// maxMin is the max-min fair share of capacity: nobody gets more than asked for,
// and nobody less than another who got more.
func maxMin(capacity float64, demand []float64) []float64 {
	share := make([]float64, len(demand))
	open := make([]int, len(demand))
	for i := range open {
		open[i] = i
	}
	for len(open) > 0 {
		even := capacity / float64(len(open))
		i := slices.IndexFunc(open, func(i int) bool { return demand[i] <= even })
		if i < 0 {
			for _, i := range open {
				share[i] = even
			}
			break
		}
		share[open[i]] = demand[open[i]]
		capacity -= demand[open[i]]
		open = slices.Delete(open, i, i+1)
	}
	return share
}

// K4: two and three flows, of equal and of unequal demand, share 10/s max-min
// fairly; one that comes in bursts starves nobody.
func TestScenarioK4(t *testing.T) {
	const seconds = 60
	for _, c := range []struct {
		demand []float64 // a second
		bursts int       // the last flow's come so many at once
	}{
		{[]float64{20, 20}, 1},
		{[]float64{2, 20}, 1},
		{[]float64{5, 40}, 40},
		{[]float64{20, 20, 20}, 1},
		{[]float64{1, 4, 20}, 1},
		{[]float64{2, 3, 60}, 120},
		{[]float64{4, 4, 20}, 20},
	} {
		play(t, q(t, "10/s", 60, 30*time.Second), func(t *testing.T, s *scene) {
			var mu sync.Mutex
			served := make([]int, len(c.demand))
			refused := make([]int, len(c.demand))
			for i, rate := range c.demand {
				n := 1
				if i == len(c.demand)-1 {
					n = c.bursts
				}
				period := time.Duration(float64(n) / rate * float64(time.Second))
				go func() {
					time.Sleep(time.Duration(i) * 7 * time.Millisecond)
					for s.since() < seconds*time.Second {
						for range n {
							go func() {
								g, _ := s.Acquire(t.Context(), shaping.Request{Flow: fmt.Sprint(i)})
								defer g.Release()
								mu.Lock()
								defer mu.Unlock()
								switch at := s.since(); {
								case !g.Allowed:
									refused[i]++
								case at >= 10*time.Second && at < seconds*time.Second:
									served[i]++
								}
							}()
							synctest.Wait()
						}
						time.Sleep(period)
					}
				}()
			}
			s.at(time.Hour)
			for i, share := range maxMin(10, c.demand) {
				want := share * (seconds - 10)
				if got := float64(served[i]); got < want-3 || got > want+3 {
					t.Errorf("demand %v: flow %d had %v turns, want %v", c.demand, i, got, want)
				}
				if share == c.demand[i] && refused[i] > 0 {
					t.Errorf("demand %v: flow %d asked for no more than its share and was refused %d times", c.demand, i, refused[i])
				}
			}
		})
	}
}

// K5: a full queue is told at once, with 429.
func TestScenarioK5(t *testing.T) {
	play(t, q(t, "1/s", 2, time.Minute), func(t *testing.T, s *scene) {
		s.crowd(3)
		d := s.ask("", nil)
		if d.want(t, "the fourth", 0, limiter.ReasonQueueFull); d.decision.Status != 429 {
			t.Errorf("%+v", d.decision)
		}
	})
}

// K6: a request with a deadline waits for no more than a part of it, as its
// caller says.
func TestScenarioK6(t *testing.T) {
	play(t, shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 10, MaxWait: time.Minute}, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, time.Hour)
		const deadline = 12 * time.Second
		s.hold(shaping.Request{MaxWait: deadline / 4}, 0)
		s.hold(shaping.Request{}, 0)
		s.at(10 * time.Minute)
		s.asked[1].want(t, "with a deadline", deadline/4, limiter.ReasonMaxWait)
		s.asked[2].want(t, "without", time.Minute, limiter.ReasonMaxWait)
	})
}

// K7: while the program shuts down the queue is served at its rate, and those
// who remain at its end are told so.
func TestScenarioK7(t *testing.T) {
	play(t, q(t, "10/s", 100, time.Minute), func(t *testing.T, s *scene) {
		chain := shaping.NewChain(limiter.NewMemory(), shaping.Link{Queue: s.Shaper})
		ctx, shut := context.WithCancelCause(t.Context())
		var mu sync.Mutex
		ended := map[limiter.Reason][]time.Duration{}
		for range 30 {
			go func() {
				p, err := chain.Acquire(ctx, limiter.Request{Keys: make([]limiter.Key, 1)})
				if err != nil || !p.Allowed && (p.Status != 503 || p.RetryAfter <= 0) {
					t.Errorf("%+v, %v", p.Decision, err)
				}
				mu.Lock()
				defer mu.Unlock()
				ended[p.Reason] = append(ended[p.Reason], s.since())
			}()
			synctest.Wait()
		}
		s.at(time.Second + 50*time.Millisecond)
		shut(limiter.ErrShutdown)
		synctest.Wait()
		if served, rest := ended[""], ended[limiter.ReasonShutdown]; len(served) != 11 || served[10] != time.Second || len(rest) != 19 || rest[18] != s.since() {
			t.Errorf("%v", ended)
		}
		if n := s.Snapshot().Depth; n != 0 {
			t.Errorf("depth %d", n)
		}
	})
}

// K8: Retry-After follows what the backlog will take.
func TestScenarioK8(t *testing.T) {
	play(t, q(t, "10/s", 20, time.Second), func(t *testing.T, s *scene) {
		s.crowd(11)
		retry := func() time.Duration { return s.ask("", nil).decision.RetryAfter }
		if got := retry(); got != 100*time.Millisecond {
			t.Errorf("%v", got)
		}
		adopt(t, s, q(t, "1/s", 20, time.Second))
		if got := retry(); got != 10*time.Second {
			t.Errorf("%v at a tenth of the rate", got)
		}
	})
	// A crowd that is told the same instant and comes back at it all together: as
	// many find a place as there are, whose turns are all used, and the others are
	// told as true a time again. It need not be steered up: the queue and not the
	// time told is what keeps them from the upstream, and a longer one would be
	// too long for whoever comes alone.
	play(t, q(t, "10/s", 20, time.Minute), func(t *testing.T, s *scene) {
		s.crowd(21)
		for range 30 {
			in := 0
			for _, a := range s.crowd(50) {
				switch d := a.decision; {
				case !a.over:
					in++
				case d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 100*time.Millisecond:
					t.Fatalf("at %v: %+v", s.since(), d)
				}
			}
			if want := int(min(1, s.since()/(100*time.Millisecond))); in != want {
				t.Fatalf("%d have found a place at %v, want %d", in, s.since(), want)
			}
			s.at(s.since() + 100*time.Millisecond)
		}
		if alone := s.ask("", nil); alone.over {
			t.Errorf("who comes alone is told %+v", alone.decision)
		}
	})
}

// H2: one at the upstream, one waiting, the third refused; then in turn.
func TestScenarioH2(t *testing.T) {
	play(t, shaping.Policy{Name: "c", MaxInFlight: 1, Queue: 1, MaxWait: time.Minute}, func(t *testing.T, s *scene) {
		first, second, third := s.hold(shaping.Request{}, sec), s.hold(shaping.Request{}, sec), s.hold(shaping.Request{}, sec)
		s.at(500 * time.Millisecond)
		fourth := s.hold(shaping.Request{}, sec)
		s.at(sec)
		fifth := s.hold(shaping.Request{}, sec)
		s.at(time.Minute)
		first.want(t, "the first", 0, "")
		second.want(t, "the second", sec, "")
		third.want(t, "the third", 0, limiter.ReasonQueueFull)
		fourth.want(t, "the fourth", 500*time.Millisecond, limiter.ReasonQueueFull)
		fifth.want(t, "the fifth", 2*sec, "")
	})
}

// E3: a refill that races with many takes; never more than the burst and what
// came in. E4: two takes race for one token, and one gets it at once.
func TestScenarioE3E4(t *testing.T) {
	race := func(t *testing.T, s *scene, n int) (at map[time.Duration]int) {
		at = map[time.Duration]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				g, _ := s.Acquire(t.Context(), shaping.Request{})
				defer g.Release()
				mu.Lock()
				defer mu.Unlock()
				at[s.since()]++
			})
		}
		all.Wait()
		return at
	}
	play(t, tb(t, "10/s", 4, 100, time.Minute), func(t *testing.T, s *scene) {
		race(t, s, 4)
		s.at(100 * time.Millisecond) // the very instant of a refill
		for at, n := range race(t, s, 40) {
			if n != 1 {
				t.Errorf("%d at %v", n, at)
			}
		}
	})
	for range 50 {
		play(t, q(t, "1/s", 1, time.Minute), func(t *testing.T, s *scene) {
			if at := race(t, s, 2); at[0] != 1 || at[time.Second] != 1 {
				t.Errorf("%v", at)
			}
		})
	}
}

// TestCase20 with places: N pass, whatever else, and N are not N+1 or N-1.
func TestCase20Places(t *testing.T) {
	for n := range 4 {
		n++
		play(t, shaping.Policy{Name: "c", MaxInFlight: n}, func(t *testing.T, s *scene) {
			for i := range 10 {
				why := limiter.ReasonNone
				if i >= n {
					why = limiter.ReasonLimit
				}
				s.hold(shaping.Request{}, sec).want(t, fmt.Sprintf("request %d of %d", i+1, n), 0, why)
			}
		})
	}
}

// TestCase23 (haproxy/haproxy #2221): each way not to be served has a name of
// its own.
func TestCase23Reasons(t *testing.T) {
	p := q(t, "1/s", 3, 2*sec)
	play(t, p, func(t *testing.T, s *scene) {
		s.hold(shaping.Request{}, 0)
		low := s.hold(shaping.Request{Class: queue.Low}, 0)
		s.hold(shaping.Request{Class: queue.High}, 0)
		s.hold(shaping.Request{Class: queue.Low}, 0).want(t, "would wait too long", 0, limiter.ReasonMaxWait)
		s.hold(shaping.Request{Class: queue.High}, 0)
		s.at(500 * time.Millisecond)
		s.hold(shaping.Request{Class: queue.High, MaxWait: time.Minute}, 0).want(t, "would have to put out, and wait too long", 500*time.Millisecond, limiter.ReasonMaxWait)
		s.at(2 * sec)
		low.want(t, "overtaken", 2*sec, limiter.ReasonQueueFull)
		gone := s.hold(shaping.Request{}, 0)
		gone.cancel(errors.New("left"))
		synctest.Wait()
		gone.want(t, "left", 2*sec, limiter.ReasonClientGone)
		s.Pause(time.Hour)
		s.hold(shaping.Request{}, 0).want(t, "during a pause", 2*sec, limiter.ReasonPaused)
		s.Resume()
	})
}

// TestCase29 (BerriAI/litellm #20256, apache/apisix #11868): whatever a request
// comes to, its places come back.
func TestCase29PlacesComeBack(t *testing.T) {
	type link = shaping.Link
	synctest.Test(t, func(t *testing.T) {
		places := mustShaper(t, shaping.Policy{Name: "places", MaxInFlight: 5})
		behind := mustShaper(t, shaping.Policy{Name: "behind", MaxInFlight: 3, Queue: 2, MaxWait: sec})
		slow := mustShaper(t, q(t, "100/s", 2, 15*time.Millisecond))
		chain := shaping.NewChain(limiter.NewMemory(), link{Queue: places}, link{Queue: slow}, link{Queue: behind})
		var mu sync.Mutex
		reasons := map[limiter.Reason]int{}
		rnd := rand.New(rand.NewPCG(1, 16))
		var all sync.WaitGroup
		for i := range 2000 {
			ctx, cancel := context.WithCancelCause(t.Context())
			hold, leaves, found := time.Duration(rnd.IntN(60))*time.Millisecond, time.Duration(rnd.IntN(120))*time.Millisecond, rnd.IntN(8) == 0
			if i%2 == 0 {
				time.AfterFunc(leaves, func() { cancel(errors.New("left")) })
			} else if i%31 == 0 {
				time.AfterFunc(leaves, func() { cancel(limiter.ErrShutdown) })
			}
			all.Go(func() {
				defer cancel(nil)
				defer func() { _ = recover() }()
				p, _ := chain.Acquire(ctx, limiter.Request{Keys: make([]limiter.Key, 3), Gone: func() bool { return found }})
				mu.Lock()
				reasons[p.Reason]++
				mu.Unlock()
				defer p.Release()
				if !p.Allowed {
					return
				}
				time.Sleep(hold)
				if i%7 == 0 {
					panic("in the handler")
				}
			})
			if i%5 == 0 {
				time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
			}
			synctest.Wait()
		}
		all.Wait()
		for _, s := range []*shaping.Shaper{places, behind, slow} {
			if snap := s.Snapshot(); snap.InFlight != 0 || snap.Depth != 0 {
				t.Errorf("%s: %+v", s.Policy().Name, snap)
			}
		}
		for _, why := range []limiter.Reason{"", limiter.ReasonLimit, limiter.ReasonMaxWait, limiter.ReasonQueueFull, limiter.ReasonClientGone, limiter.ReasonShutdown} {
			if reasons[why] == 0 {
				t.Errorf("none ended with %q: %v", why, reasons)
			}
		}
		for i := range 6 {
			if g, err := places.Acquire(t.Context(), shaping.Request{}); err != nil || g.Allowed != (i < 5) {
				t.Errorf("afterwards, request %d: %+v", i, g.Decision)
			}
		}
	})
}

func mustShaper(t testing.TB, p shaping.Policy) *shaping.Shaper {
	t.Helper()
	s, err := shaping.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
