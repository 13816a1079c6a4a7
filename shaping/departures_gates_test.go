package shaping_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestFleetBehindGates: who waits for a gate that opens by itself is let go then,
// and those for others are not granted what they cannot use.
func TestFleetBehindGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(100*time.Millisecond, 1)
		s := f.join(t, 100, time.Minute)
		shut, open := shaping.NewGate(), shaping.NewGate()
		shut.Close("test", time.Now().Add(2*time.Second))
		var d departed
		start := time.Now()
		ask := func(g *shaping.Gate, paced bool) {
			go func() {
				if got, _ := s.Acquire(t.Context(), shaping.Request{Gate: g, Paced: paced}); got.Allowed {
					d.note(s)
				}
			}()
			synctest.Wait()
		}
		for range 5 {
			ask(shut, false)
		}
		for range 3 {
			ask(open, false)
		}
		rest(time.Second)
		if n := d.count(); n != 3 {
			t.Errorf("%d passed the gate that is open", n)
		}
		f.mu.Lock()
		if n := len(f.granted); n != 3 {
			t.Errorf("%d departures granted for 3", n)
		}
		f.mu.Unlock()
		rest(2 * time.Second)
		all := d.all()
		if len(all) != 8 {
			t.Fatalf("%d left", len(all))
		}
		if all[3].Sub(start) < 2*time.Second || all[7].Sub(start) > 2410*time.Millisecond {
			t.Errorf("left from %v to %v", all[3].Sub(start), all[7].Sub(start))
		}
		never(t, all, f.interval, f.trip+shaping.Slack, 1)

		// A quota that is slower than the departures: the line takes its turn at it,
		// although what it was granted has lapsed by then.
		slow := shaping.NewGate()
		slow.Heard(slow.Sent(), 9, time.Now().Add(9*time.Second), time.Minute)
		other, err := shaping.New(shaping.Policy{Name: "other", Rate: mustRate(t, "100/s"), Burst: 1, Queue: 100, MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		theirs := 0
		for range 40 {
			go func() {
				if g, _ := other.Acquire(t.Context(), shaping.Request{Gate: slow, Paced: true}); g.Allowed {
					d.mu.Lock()
					defer d.mu.Unlock()
					theirs++
				}
			}()
		}
		before := d.count()
		for range 20 {
			ask(slow, true)
		}
		rest(8 * time.Second)
		d.mu.Lock()
		ours := len(d.at) - before
		if ours < 3 || theirs < 3 || ours+theirs > 9 {
			t.Errorf("%d of the fleet's line, %d of the other passed, of 9", ours, theirs)
		}
		d.mu.Unlock()
		rest(time.Minute)
	})
}
