package shaping_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestFleetOfTwo: two lines that have too much each get half of the rate, and
// together all of it, exactly.
func TestFleetOfTwo(t *testing.T) {
	for _, trip := range []time.Duration{0, time.Millisecond, 9 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(10*time.Millisecond, 1)
				f.trip = trip
				a, b := f.join(t, 100, time.Minute), f.join(t, 100, time.Minute)
				var d departed
				until := time.Now().Add(20 * time.Second)
				d.overload(t, a, 50, until)
				d.overload(t, b, 20, until)
				rest(21 * time.Second)
				if n := len(d.at); n < 1998 || n > 2001 {
					t.Errorf("%d left in 20 s at 100/s", n)
				}
				if x, y := d.n[a], d.n[b]; x-y > 4 || y-x > 4 {
					t.Errorf("%d of one, %d of the other", x, y)
				}
				never(t, d.all(), f.interval, trip, 1) // the first waited for its answer
				never(t, f.grants(), f.interval, 0, 1)
				if a.Depth()+b.Depth() != 0 {
					t.Error("somebody waits still")
				}
			})
		})
	}
}

// TestFleetOfOneLosesNothing: the way to the schedule takes longer than an
// interval, and costs no departure.
func TestFleetOfOneLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(time.Millisecond, 1)
		f.trip, f.ahead = 4*time.Millisecond, 16
		s := f.join(t, 200, time.Minute)
		var d departed
		d.overload(t, s, 100, time.Now().Add(2*time.Second))
		rest(3 * time.Second)
		if n := len(d.at); n < 1990 {
			t.Errorf("%d left in 2 s at 1000/s", n)
		}
		never(t, d.all(), f.interval, f.trip, 1)
		if f.asks > 300 {
			t.Errorf("asked %d times", f.asks)
		}
	})
}

// TestFleetBurst: a burst passes at once, which takes no places of the queue, and
// counts as not having waited.
func TestFleetBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(time.Second, 10)
		s := f.join(t, 2, time.Minute)
		var mu sync.Mutex
		atOnce, waited, refused := 0, 0, 0
		for range 15 {
			go func() {
				g, err := s.Acquire(t.Context(), shaping.Request{})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case !g.Allowed:
					if refused++; g.Reason != limiter.ReasonQueueFull || g.RetryAfter > time.Second {
						t.Errorf("%+v", g.Decision)
					}
				case g.Queued:
					waited++
				default:
					atOnce++
				}
			}()
		}
		rest(5 * time.Millisecond)
		if atOnce != 10 || refused != 3 || s.Depth() != 2 {
			t.Errorf("%d at once, %d refused, %d wait", atOnce, refused, s.Depth())
		}
		rest(3 * time.Second)
		if waited != 2 {
			t.Errorf("%d waited", waited)
		}
		if d := s.Peek(""); d.Remaining != 1+2 {
			t.Errorf("%d remain after 3 s of a burst of 10 with a queue of 2", d.Remaining)
		}
	})
}

// TestFleetGivesBack: what waiters that leave were granted is another line's.
func TestFleetGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(time.Second, 1)
		a, b := f.join(t, 9, time.Minute), f.join(t, 9, time.Minute)
		g, _ := a.Acquire(t.Context(), shaping.Request{}) // the next may leave in a second
		if !g.Allowed || g.Queued {
			t.Fatalf("%+v", g.Decision)
		}
		ctx, leave := context.WithCancel(t.Context())
		for range 2 {
			go a.Acquire(ctx, shaping.Request{})
		}
		rest(100 * time.Millisecond)
		leave()
		rest(100 * time.Millisecond)
		g, err := b.Acquire(t.Context(), shaping.Request{})
		if err != nil || !g.Allowed || !g.Queued || g.Waited < 790*time.Millisecond || g.Waited > 810*time.Millisecond {
			t.Errorf("%v %+v", err, g.Decision)
		}
	})
}

// TestFleetKeepsWhatCannotBeGivenBack: others have been granted what comes after it;
// then the next who comes in time uses it.
func TestFleetKeepsWhatCannotBeGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(time.Second, 1)
		a, b := f.join(t, 9, time.Minute), f.join(t, 9, time.Minute)
		a.Acquire(t.Context(), shaping.Request{})
		ctx, leave := context.WithCancel(t.Context())
		go a.Acquire(ctx, shaping.Request{}) // at 1 s
		rest(10 * time.Millisecond)
		var other shaping.Grant
		go func() { other, _ = b.Acquire(t.Context(), shaping.Request{}) }() // at 2 s
		rest(10 * time.Millisecond)
		leave()
		rest(10 * time.Millisecond)
		g, err := a.Acquire(t.Context(), shaping.Request{})
		if err != nil || !g.Allowed || g.Waited > time.Second {
			t.Errorf("%v %+v", err, g.Decision)
		}
		rest(1100 * time.Millisecond)
		if !other.Allowed {
			t.Errorf("%+v", other.Decision)
		}
		never(t, f.grants(), f.interval, 0, 1)
	})
}

// TestFleetCosts: one that costs more takes as many departures.
func TestFleetCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100*time.Millisecond, 1)
		s := f.join(t, 9, time.Minute)
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		for _, cost := range []int64{1, 5, 1, 3, 1} {
			go func() {
				if g, _ := s.Acquire(t.Context(), shaping.Request{Cost: cost}); g.Allowed {
					mu.Lock()
					defer mu.Unlock()
					at = append(at, time.Since(start).Round(5*time.Millisecond))
				}
			}()
			synctest.Wait()
		}
		rest(3 * time.Second)
		want := []time.Duration{0, 100 * time.Millisecond, 600 * time.Millisecond, 700 * time.Millisecond, 1000 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("left at %v, want %v", at, want)
		}
	})
}

// TestFleetPredicts: the wait is known by what others want too, and who would have
// to wait longer is refused at once.
func TestFleetPredicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100*time.Millisecond, 1)
		a, b := f.join(t, 100, 5*time.Second), f.join(t, 100, time.Minute)
		for range 90 {
			go b.Acquire(t.Context(), shaping.Request{})
		}
		rest(500 * time.Millisecond)
		for range 20 {
			go a.Acquire(t.Context(), shaping.Request{})
		}
		rest(500 * time.Millisecond)
		wait, ok := a.Foresee(shaping.Request{})
		if !ok || wait < 3*time.Second || wait > 4500*time.Millisecond {
			t.Errorf("%v, %t; the 19th or so of one of two lines at 10/s waits 4 s", wait, ok)
		}
		for range 9 {
			go a.Acquire(t.Context(), shaping.Request{})
		}
		synctest.Wait()
		g, _ := a.Acquire(t.Context(), shaping.Request{})
		if g.Reason != limiter.ReasonMaxWait || g.RetryAfter <= 0 {
			t.Errorf("%+v", g.Decision)
		}
		rest(time.Minute)
	})
}

// TestFleetDown: while the schedule cannot be asked for, lines go by their own, as
// they are told; or everybody is told that it is so.
func TestFleetDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(10*time.Millisecond, 1)
		half := shaping.Departures{Alone: 250 * time.Millisecond, Rate: mustRate(t, "50/s"), Burst: 1}
		lines := []*shaping.Shaper{f.join(t, 100, time.Minute), f.join(t, 100, time.Minute)}
		var d departed
		start := time.Now()
		for _, s := range lines {
			d.overload(t, s, 20, start.Add(6*time.Second))
		}
		set := func(down func() shaping.Departures) {
			f.mu.Lock()
			f.down = down
			f.mu.Unlock()
		}
		rest(2*time.Second + time.Microsecond)
		set(func() shaping.Departures { return half })
		rest(2 * time.Second)
		n := d.count()
		if n < 395 || n > 404 {
			t.Errorf("%d left in 2 s with the schedule and 2 s without", n)
		}
		set(nil)
		rest(1500 * time.Millisecond)
		n = d.count() - n
		if n < 130 || n > 153 {
			t.Errorf("%d left in 1.5 s after its return", n)
		}
		// A line's own schedule and the fleet's may each let one go.
		never(t, d.all(), f.interval, shaping.Slack+f.trip, 1+int64(len(lines)))
		rest(time.Second)

		set(func() shaping.Departures { return shaping.Departures{Reason: limiter.ReasonStoreDown} })
		g, err := lines[0].Acquire(t.Context(), shaping.Request{})
		if err != nil || g.Allowed || g.Reason != limiter.ReasonStoreDown || g.Status != http.StatusServiceUnavailable || g.RetryAfter != time.Second {
			t.Errorf("%v %+v", err, g.Decision)
		}
		if s := lines[0].Snapshot(); s.Depth != 0 {
			t.Errorf("%d wait", s.Depth)
		}
		rest(time.Second)
	})
}

// TestCase63_AdoptInAFleet (caddyserver/caddy #4762): who waits at two lines is
// served in order, and no gap is broken, while both adopt again and again; and another
// rate counts from the next that is granted.
func TestCase63_AdoptInAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(200*time.Millisecond, 1)
		lines := []*shaping.Shaper{f.join(t, 100, time.Minute), f.join(t, 100, time.Minute)}
		var d departed
		order := map[*shaping.Shaper][]int{}
		for i := range 20 {
			s := lines[i%2]
			go func() {
				if g, err := s.Acquire(t.Context(), shaping.Request{}); err == nil && g.Allowed {
					d.note(s)
					d.mu.Lock()
					order[s] = append(order[s], i)
					d.mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		for i := range 300 {
			rest(10 * time.Millisecond)
			p := lines[i%2].Policy()
			p.MaxKeys = 100 + i
			if err := lines[i%2].Adopt(p); err != nil {
				t.Fatal(err)
			}
		}
		rest(2 * time.Second)
		if len(d.at) != 20 || d.at[19].Sub(d.at[0]) > 19*f.interval+2*f.trip || !slices.IsSorted(order[lines[0]]) || !slices.IsSorted(order[lines[1]]) {
			t.Errorf("%d left, in %v, in order %v", len(d.at), d.at[len(d.at)-1].Sub(d.at[0]), order)
		}
		never(t, d.all(), f.interval, 2*f.trip, 1)
		p := lines[0].Policy()
		p.DryRun = true
		if lines[0].Adopt(p) == nil {
			t.Error("a dry run was adopted")
		}
	})
}

// TestFleetPaused: a pause is one line's, and what it had been granted is not kept
// for its end.
func TestFleetPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(10*time.Millisecond, 1)
		a, b := f.join(t, 100, time.Minute), f.join(t, 100, time.Minute)
		var d departed
		until := time.Now().Add(4 * time.Second)
		d.overload(t, a, 20, until)
		d.overload(t, b, 20, until)
		rest(time.Second)
		a.Pause(0)
		n, of := d.count(), d.of(a)
		rest(time.Second)
		if d.of(a) != of || d.count()-n < 96 {
			t.Errorf("%d left of the line that is paused, and %d of the other in a second", d.of(a)-of, d.count()-n)
		}
		a.Resume()
		rest(time.Second)
		if more := d.of(a) - of; more < 45 || more > 55 {
			t.Errorf("%d left after it went on", more)
		}
		never(t, d.all(), f.interval, f.trip, 1)
		rest(3 * time.Second)
	})
}

// TestFleetWalk: whatever comes, costs, gives up and is asked late, in no interval
// more leaves than the schedule of all grants, and all ends.
func TestFleetWalk(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			f := newFleet(time.Duration(1+r.IntN(40))*time.Millisecond, 1+int64(r.IntN(3)*r.IntN(8)))
			f.trip, f.ahead = time.Duration(r.IntN(20_000))*time.Microsecond, 2+int64(r.IntN(20))
			var lines []*shaping.Shaper
			for range 1 + r.IntN(4) {
				lines = append(lines, f.join(t, 1+r.IntN(50), time.Duration(1+r.IntN(3000))*time.Millisecond))
			}
			var mu sync.Mutex
			var left []time.Time
			var all sync.WaitGroup
			for range 400 {
				rest(time.Duration(r.ExpFloat64() * float64(f.interval) * 0.8))
				s, req := lines[r.IntN(len(lines))], shaping.Request{Cost: 1, Class: []queue.Class{queue.Low, queue.Normal, queue.High}[r.IntN(3)], Flow: string(rune('a' + r.IntN(3)))}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(2000))*time.Millisecond)
				all.Go(func() {
					defer cancel()
					g, err := s.Acquire(ctx, req)
					mu.Lock()
					defer mu.Unlock()
					if err == nil && g.Allowed {
						left = append(left, time.Now())
					} else if err == nil && g.RetryAfter <= 0 {
						t.Errorf("seed %d: %+v", seed, g.Decision)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			never(t, f.grants(), f.interval, shaping.Slack, f.burst)
			// An answer is late by its way back, and a departure may be used for two
			// intervals more.
			never(t, left, f.interval, f.trip+max(2*f.interval, 2*shaping.Slack), f.burst)
			if len(left) == 0 {
				t.Errorf("seed %d: nobody left", seed)
			}
			for _, s := range lines {
				if s.Depth() != 0 {
					t.Errorf("seed %d: %d wait", seed, s.Depth())
				}
			}
			rest(time.Minute)
		})
	}
}

// TestFleetNearAndFar: a line that is far from the schedule needs more departures in
// advance, and has no more of them for that.
func TestFleetNearAndFar(t *testing.T) {
	for _, way := range []time.Duration{9 * time.Millisecond, 19 * time.Millisecond, 49 * time.Millisecond} {
		t.Run(way.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(10*time.Millisecond, 1)
				lines := make([]*shaping.Shaper, 2)
				for i, m := range []*member{{fleet: f}, {fleet: f, way: way, needs: 2 * int64(2*way/f.interval+1)}} {
					s, err := shaping.New(shaping.Policy{Name: "test", Rate: f.rate(), Burst: 1, Queue: 100, MaxWait: time.Minute}, shaping.WithPace(m))
					if err != nil {
						t.Fatal(err)
					}
					lines[i] = s
				}
				var d departed
				until := time.Now().Add(20 * time.Second)
				d.overload(t, lines[0], 50, until)
				d.overload(t, lines[1], 50, until)
				rest(21 * time.Second)
				if x, y := d.n[lines[0]], d.n[lines[1]]; 10*x > 11*y || 10*y > 11*x || x+y < 1990 {
					t.Errorf("%d near, %d far", x, y)
				}
				never(t, f.grants(), f.interval, 0, 1)
			})
		})
	}
}
