package shaping_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// rated is a policy at the fleet's rate.
func (f *fleet) rated(queue int) shaping.Policy {
	return shaping.Policy{Rate: f.rate(), Burst: f.burst, Queue: queue, MaxWait: time.Minute}
}

// TestLeasesAndRate: both bounds hold, whichever of them binds. Where it is the rate,
// places cost no departure; where it is the places, the departures cost them what it
// takes to ask.
func TestLeasesAndRate(t *testing.T) {
	for _, c := range []struct {
		most     int
		interval time.Duration
		burst    int64
		took     time.Duration
		least    float64 // how many leave in a second, of the most that could
	}{
		{20, 10 * time.Millisecond, 1, 50 * time.Millisecond, 0.995}, // the rate
		{20, 10 * time.Millisecond, 8, 50 * time.Millisecond, 0.995},
		{10, 2 * time.Millisecond, 1, 5 * time.Millisecond, 0.99},
		{4, 5 * time.Millisecond, 1, 100 * time.Millisecond, 0.8}, // the places
		{4, 5 * time.Millisecond, 8, 100 * time.Millisecond, 0.8},
		{10, 10 * time.Millisecond, 1, 100 * time.Millisecond, 0.9}, // either
	} {
		for _, trip := range []time.Duration{200 * time.Microsecond, time.Millisecond, 4 * time.Millisecond} {
			t.Run(fmt.Sprint(c.most, c.interval, c.burst, c.took, trip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, h := newFleet(c.interval, c.burst), newHall(c.most, trip)
					f.trip, f.ahead = trip, 2+2*int64(2*trip/c.interval)
					var lines []*shaping.Shaper
					var w workshop
					const span = 10 * time.Second
					until := time.Now().Add(span)
					for range 2 {
						s := h.join(t, f.rated(100), shaping.WithPace(&member{fleet: f}))
						lines = append(lines, s)
						w.crowd(t, s, 40, always(c.took), until)
					}
					rest(span)
					x, y := w.of(lines[0]), w.of(lines[1])
					could := min(span.Seconds()/c.interval.Seconds(), float64(c.most)*span.Seconds()/c.took.Seconds())
					if float64(x+y) < c.least*could || float64(x+y) > could+float64(c.most)+float64(c.burst) {
						t.Errorf("%d left, of %.0f", x+y, could)
					}
					if 10*x > 11*y || 10*y > 11*x {
						t.Errorf("%d of one, %d of the other", x, y)
					}
					peak := w.peak()
					if peak > c.most {
						t.Errorf("%d of %d at once", peak, c.most)
					}
					rest(time.Second)
					t.Logf("%d and %d, %.3f of what could, %d and %d calls", x, y, float64(x+y)/could, f.asks, h.calls())
					never(t, f.grants(), f.interval, 0, f.burst)
					never(t, w.all(), f.interval, f.trip+max(2*f.interval, 2*shaping.Slack), f.burst)
					if h.hold() != 0 {
						t.Error("a place is held at the end")
					}
				})
			})
		}
	}
}

// TestLeasesAndRateAtOnce: a burst passes at once if there are places for it.
func TestLeasesAndRateAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newFleet(time.Second, 10), newHall(6, time.Millisecond)
		s := h.join(t, f.rated(3), shaping.WithPace(&member{fleet: f}))
		var mu sync.Mutex
		atOnce, refused := 0, 0
		for range 12 {
			go func() {
				g, _ := s.Acquire(t.Context(), shaping.Request{})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case g.Allowed && !g.Queued:
					atOnce++
				case g.Reason == limiter.ReasonQueueFull:
					refused++
				}
			}()
		}
		rest(10 * time.Millisecond)
		if atOnce != 6 || refused != 3 || s.Depth() != 3 {
			t.Errorf("%d at once, %d refused, %d wait", atOnce, refused, s.Depth())
		}
		rest(time.Minute + time.Second) // max_wait
	})
}

// TestLeasesAndRateFull: while no place is free no departures are used up, and when
// many become free together, what leaves is no more than the rate allows.
func TestLeasesAndRateFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newFleet(10*time.Millisecond, 1), newHall(5, time.Millisecond)
		s, other := h.join(t, f.rated(100), shaping.WithPace(&member{fleet: f})), h.join(t, f.rated(100), shaping.WithPace(&member{fleet: f}))
		var held []shaping.Grant
		for range 5 {
			g, _ := s.Acquire(t.Context(), shaping.Request{})
			held = append(held, g)
		}
		var w workshop
		until := time.Now().Add(4 * time.Second)
		w.crowd(t, s, 20, always(time.Millisecond), until)
		w.crowd(t, other, 20, always(time.Millisecond), until)
		rest(time.Second)
		before := len(f.grants())
		rest(time.Second)
		if n := len(f.grants()) - before; n != 0 {
			t.Errorf("%d departures used up while no place was free", n)
		}
		for _, g := range held {
			g.Release()
		}
		rest(time.Second)
		if n := w.count(); n < 95 {
			t.Errorf("%d left in a second", n)
		}
		never(t, w.all(), f.interval, f.trip+2*f.interval, 1)
		rest(2 * time.Minute)
	})
}

// TestLeasesFromThenOn: a queue whose rate is shared may be given a bound on what is
// unfinished, and have it taken away, while it is in use.
func TestLeasesFromThenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newFleet(5*time.Millisecond, 1), newHall(0, time.Millisecond)
		f.trip = time.Millisecond
		var lines []*shaping.Shaper
		var w workshop
		until := time.Now().Add(5 * time.Second)
		for range 2 {
			s := h.join(t, f.rated(100), shaping.WithPace(&member{fleet: f}))
			lines = append(lines, s)
			w.crowd(t, s, 40, always(100*time.Millisecond), until)
		}
		for _, most := range []int{0, 6, 0} {
			h.set(func() { h.most = most })
			for _, s := range lines {
				p := s.Policy()
				if p.MaxInFlight = most; s.Adopt(p) != nil {
					t.Fatal(most)
				}
			}
			rest(500 * time.Millisecond)
			w.used(time.Second)
			w.peak()
			rest(time.Second)
			used := w.used(time.Second)
			peak := w.peak()
			if most == 0 && (used < 19.5 || h.hold() != 0) || most == 6 && (used < 5 || peak > 6) {
				t.Errorf("%.2f of %d used, %d at once, %d held", used, most, peak, h.hold())
			}
		}
		rest(time.Minute)
		for _, s := range lines {
			if n := s.Snapshot(); n.Depth != 0 || n.InFlight != 0 {
				t.Errorf("%+v", n)
			}
		}
	})
}
