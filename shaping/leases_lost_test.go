package shaping_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// lost are the ways in which a call ends that failed.
var lost = map[string]shaping.Leases{
	"refused": {Reason: limiter.ReasonStoreDown},
	"alone":   {Alone: 250 * time.Millisecond, Places: 1},
}

// TestLeasesLostReturn: a place whose return was lost is given back with the next
// renewal, although nobody waits at that line any more.
func TestLeasesLostReturn(t *testing.T) {
	for name, answer := range lost {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHall(1, time.Millisecond)
				a, b := h.join(t, line(9)), h.join(t, line(9))
				g, _ := a.Acquire(t.Context(), shaping.Request{})
				rest(time.Second)
				h.set(func() { h.down = func() shaping.Leases { return answer } })
				g.Release()
				rest(100 * time.Millisecond)
				h.set(func() { h.down = nil })
				rest(time.Second)
				if h.hold() != 1 {
					t.Fatal("the return was not lost")
				}
				began := time.Now()
				done := make(chan shaping.Grant)
				go func() {
					g, _ := b.Acquire(t.Context(), shaping.Request{})
					done <- g
				}()
				rest(100 * time.Millisecond)
				a.RenewLeases(time.Second/2, 8)
				g = <-done
				if took := time.Since(began); !g.Allowed || took > 200*time.Millisecond {
					t.Errorf("%v %+v", took, g.Decision)
				}
				g.Release()
				rest(time.Second)
				calls := h.calls()
				if a.RenewLeases(time.Second/2, 8); h.calls() != calls || h.hold() != 0 {
					t.Errorf("%d calls more, %d held", h.calls()-calls, h.hold())
				}
			})
		})
	}
}

// TestLeasesBoundRemoved: a line whose bound is removed while the store is lost does
// not call it again and again.
func TestLeasesBoundRemoved(t *testing.T) {
	for name, answer := range lost {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, f := newHall(4, time.Millisecond), newFleet(time.Millisecond, 1)
				p := line(9)
				p.Rate, p.Burst = f.rate(), 1
				s := h.join(t, p, shaping.WithPace(&member{fleet: f}))
				g, _ := s.Acquire(t.Context(), shaping.Request{})
				rest(time.Second)
				h.set(func() { h.down = func() shaping.Leases { return answer } })
				p = s.Policy()
				p.MaxInFlight = 0
				if err := s.Adopt(p); err != nil {
					t.Fatal(err)
				}
				calls := h.calls()
				rest(time.Second)
				if n := h.calls() - calls; n > 4 {
					t.Errorf("%d calls in a second", n)
				}
				h.set(func() { h.down = nil })
				s.RenewLeases(time.Second/2, 8)
				if h.hold() != 0 {
					t.Errorf("%d held where there is no bound", h.hold())
				}
				g.Release()
				rest(time.Second)
			})
		})
	}
}

// TestLeasesOfShortRequests: a line that stands back knows that its turn is near, and
// does not let the place lie idle that comes back meanwhile.
func TestLeasesOfShortRequests(t *testing.T) {
	for _, most := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			h := newHall(most, 200*time.Microsecond)
			a, b := h.join(t, line(100)), h.join(t, line(100))
			var w workshop
			until := time.Now().Add(5 * time.Second)
			w.crowd(t, a, 40, always(5*time.Millisecond), until)
			w.crowd(t, b, 40, always(5*time.Millisecond), until)
			rest(5 * time.Second)
			used, peak := w.used(5*time.Second), w.peak()
			if used < 0.8*float64(most) || peak != most {
				t.Errorf("%.2f of %d used, %d at once", used, most, peak)
			}
			if x, y := w.of(a), w.of(b); 10*x > 11*y || 10*y > 11*x {
				t.Errorf("%d of one, %d of the other", x, y)
			}
			rest(time.Second)
		})
	}
}

// TestLeasesBeforeAQuota: who waits for the quota of an upstream keeps no place from
// those who do not, and has one when its turn comes.
func TestLeasesBeforeAQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(1, time.Millisecond)
		a, b := h.join(t, line(9)), h.join(t, line(9))
		gate := shaping.NewGate()
		gate.Heard(gate.Sent(), 2, time.Now().Add(time.Minute), time.Hour)
		began := time.Now()
		var left departed
		for range 3 {
			go func() {
				g, _ := a.Acquire(t.Context(), shaping.Request{Gate: gate, Paced: true})
				left.note(a)
				g.Release()
			}()
			synctest.Wait()
		}
		rest(time.Second)
		if left.count() != 1 || a.Depth() != 2 || h.hold() != 0 {
			t.Errorf("%d left, %d wait, %d places held", left.count(), a.Depth(), h.hold())
		}
		for range 3 {
			if g, err := b.Acquire(t.Context(), shaping.Request{}); err != nil || !g.Allowed || g.Waited > 2*time.Millisecond {
				t.Errorf("%v %+v", err, g.Decision)
			} else {
				g.Release()
			}
			rest(time.Second)
		}
		rest(2 * time.Minute)

		all := left.all()
		if len(all) != 3 {
			t.Fatalf("%d left", len(all))
		}
		for i, want := range []time.Duration{time.Millisecond, 26667 * time.Millisecond, time.Minute} {
			if got := all[i].Sub(began); got < want-time.Millisecond || got > want+time.Millisecond {
				t.Errorf("request %d left at %v, want %v", i, got, want)
			}
		}
	})
}
