package shaping_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func line(queue int) shaping.Policy { return shaping.Policy{Queue: queue, MaxWait: time.Minute} }

// TestLeasesOfTwo: two lines that have too much share the places: never more are
// taken than there are, each gets half of what is let go, and few are idle.
func TestLeasesOfTwo(t *testing.T) {
	for _, most := range []int{1, 2, 3, 7, 10} {
		for _, trip := range []time.Duration{200 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
			t.Run(fmt.Sprint(most, trip), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newHall(most, trip)
					a, b := h.join(t, line(100)), h.join(t, line(100))
					var w workshop
					const span, took = 10 * time.Second, 50 * time.Millisecond
					until := time.Now().Add(span)
					w.crowd(t, a, 60, always(took), until)
					rest(300 * time.Millisecond) // by then it has them all
					w.crowd(t, b, 30, always(took), until)
					rest(span - 300*time.Millisecond)
					used := w.used(span - 300*time.Millisecond)
					t.Logf("%.2f of %d used, %d and %d let go, %d calls", used, most, w.of(a), w.of(b), h.calls())
					x, y := float64(w.of(a))-0.3*float64(most)/took.Seconds(), float64(w.of(b))
					peak := w.peak()
					if peak > most {
						t.Errorf("%d at once", peak)
					}
					if x > 1.1*y || y > 1.1*x {
						t.Errorf("%.0f of one, %.0f of the other", x, y)
					}
					rest(time.Second)
					if n := h.hold(); n != 0 || a.Depth()+b.Depth() != 0 {
						t.Errorf("%d places are held at the end", n)
					}
				})
			})
		}
	}
}

// TestLeasesOfOne: one line alone passes places on without asking for each, and
// uses all of them.
func TestLeasesOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(10, 4*time.Millisecond)
		s := h.join(t, line(100))
		var w workshop
		w.crowd(t, s, 50, always(5*time.Millisecond), time.Now().Add(5*time.Second))
		rest(5 * time.Second)
		peak := w.peak()
		if used := w.used(5 * time.Second); used < 9.95 || peak != 10 {
			t.Errorf("%.2f of 10 used, %d at once", used, peak)
		}
		if n, calls := w.count(), h.calls(); n < 9900 || calls > 5*60 {
			t.Errorf("%d let go with %d calls", n, calls)
		}
		rest(time.Second)
		if h.hold() != 0 {
			t.Error("a place is held at the end")
		}
	})
}

// TestLeasesAtOnce: who finds places free goes as soon as that is known, takes no
// place of the queue, and counts as not having waited.
func TestLeasesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(10, time.Millisecond)
		s := h.join(t, line(2))
		var grants [15]shaping.Grant
		for i := range grants {
			go func() { grants[i], _ = s.Acquire(t.Context(), shaping.Request{}) }()
			synctest.Wait()
		}
		rest(2 * time.Millisecond) // the first asks for itself, then the second for all
		atOnce, refused := 0, 0
		for _, g := range grants {
			switch {
			case g.Allowed && !g.Queued:
				atOnce++
			case g.Policy != "":
				if refused++; g.Reason != limiter.ReasonQueueFull || g.RetryAfter <= 0 || g.Limit != 10 {
					t.Errorf("%+v", g.Decision)
				}
			}
		}
		if atOnce != 10 || refused != 3 || s.Depth() != 2 {
			t.Errorf("%d at once, %d refused, %d wait", atOnce, refused, s.Depth())
		}
		rest(time.Second)
		for _, g := range grants[:10] {
			g.Release()
		}
		rest(10 * time.Millisecond)
		for _, g := range grants[10:12] {
			if !g.Allowed || !g.Queued || g.Waited < time.Second {
				t.Errorf("%+v", g.Decision)
			}
		}
		if d := s.Peek(""); d.Limit != 10 || d.Remaining != 8 || s.Snapshot().InFlight != 2 {
			t.Errorf("%+v", d)
		}
		for _, g := range grants[10:] {
			g.Release()
		}
		rest(10 * time.Millisecond)
		if h.hold() != 0 {
			t.Error("a place is held at the end")
		}
	})
}

// TestLeasesGivenBack: a place that was asked for by one who has left is another's,
// here or elsewhere, and those who only wait elsewhere are told within a poll.
func TestLeasesGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(1, 10*time.Millisecond)
		a, b := h.join(t, line(9)), h.join(t, line(9))
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := a.Acquire(ctx, shaping.Request{})
			gone <- err
		}()
		rest(2 * time.Millisecond) // the question is on its way
		leave()
		if err := <-gone; err == nil {
			t.Fatal("it has left")
		}
		g, err := b.Acquire(t.Context(), shaping.Request{})
		if err != nil || !g.Allowed || g.Waited > 60*time.Millisecond {
			t.Fatalf("%v %+v", err, g.Decision)
		}
		// One leaves who stands first, as the place becomes free.
		ctx, leave = context.WithCancel(t.Context())
		for _, c := range []context.Context{ctx, t.Context()} {
			go func() {
				if g, err := a.Acquire(c, shaping.Request{}); err == nil && g.Allowed {
					g.Release()
				}
			}()
			synctest.Wait()
		}
		rest(time.Second)
		if a.Depth() != 2 {
			t.Fatal(a.Depth())
		}
		g.Release()
		leave()
		rest(60 * time.Millisecond)
		if a.Depth() != 0 || h.hold() != 0 {
			t.Errorf("%d wait, %d places held", a.Depth(), h.hold())
		}
		// Who waits in vain and leaves keeps nobody else waiting.
		g, _ = b.Acquire(t.Context(), shaping.Request{})
		ctx, leave = context.WithCancel(t.Context())
		go a.Acquire(ctx, shaping.Request{})
		rest(time.Second)
		leave()
		rest(30 * time.Millisecond)
		g.Release()
		began := time.Now()
		g, _ = b.Acquire(t.Context(), shaping.Request{})
		if took := time.Since(began); took > 21*time.Millisecond {
			t.Errorf("%v until the place was had again", took)
		}
		g.Release()
		rest(time.Second)
	})
}

// TestLeasesOrder: classes and flows count in each line, whatever the way to the
// places.
func TestLeasesOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(1, time.Millisecond)
		s := h.join(t, line(9))
		first, _ := s.Acquire(t.Context(), shaping.Request{})
		var mu sync.Mutex
		var order []string
		for _, r := range []shaping.Request{{Class: queue.Low, Flow: "a"}, {Class: queue.Normal, Flow: "b"}, {Class: queue.Normal, Flow: "b"}, {Class: queue.Normal, Flow: "c"}, {Class: queue.High, Flow: "d"}} {
			go func() {
				g, _ := s.Acquire(t.Context(), r)
				mu.Lock()
				order = append(order, r.Flow)
				mu.Unlock()
				time.Sleep(30 * time.Millisecond)
				g.Release()
			}()
			synctest.Wait()
		}
		first.Release()
		rest(time.Second)
		if got := strings.Join(order, ""); got != "dbcba" {
			t.Error(got)
		}
	})
}

// TestLeasesDown: while the store does not answer, each line has its part of the
// places, or everybody is told that it is so; and after its return the places are
// shared again.
func TestLeasesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(10, time.Millisecond)
		a, b := h.join(t, line(100)), h.join(t, line(100))
		var w workshop
		until := time.Now().Add(9 * time.Second)
		w.crowd(t, a, 30, always(20*time.Millisecond), until)
		w.crowd(t, b, 30, always(20*time.Millisecond), until)
		rest(2 * time.Second)
		h.set(func() {
			h.down = func() shaping.Leases { return shaping.Leases{Alone: 250 * time.Millisecond, Places: 4} }
		})
		rest(300 * time.Millisecond)
		w.used(time.Second)
		rest(2 * time.Second)
		if used := w.used(2 * time.Second); used < 7.9 || used > 8.01 {
			t.Errorf("%.2f used of 4 each", used)
		}
		h.set(func() { h.down = nil })
		rest(500 * time.Millisecond)
		w.used(time.Second)
		rest(time.Second)
		peak := w.peak()
		if used := w.used(time.Second); used < 9.5 || peak > 10 {
			t.Errorf("%.2f of 10 used, %d at once", used, peak)
		}
		h.set(func() { h.down = func() shaping.Leases { return shaping.Leases{Reason: limiter.ReasonStoreDown} } })
		rest(100 * time.Millisecond)
		g, err := a.Acquire(t.Context(), shaping.Request{})
		if err != nil || g.Allowed || g.Reason != limiter.ReasonStoreDown || g.Status != http.StatusServiceUnavailable {
			t.Errorf("%v %+v", err, g.Decision)
		}
		if n := a.Snapshot(); n.InFlight != 0 {
			t.Errorf("%+v", n)
		}
		h.set(func() { h.down = nil })
		rest(time.Second)
		w.used(time.Second)
		rest(time.Second)
		peak = w.peak()
		if used := w.used(time.Second); used < 9.5 || peak > 10 {
			t.Errorf("%.2f of 10 used after it was closed, %d at once", used, peak)
		}
		rest(9 * time.Second)
		if h.hold() != 0 {
			t.Error("a place is held at the end")
		}
	})
}

// TestLeasesForgotten: what a store has lost it is told again, by who waits at once
// and by others when it is renewed.
func TestLeasesForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(10, time.Millisecond)
		a, b := h.join(t, line(100)), h.join(t, line(100))
		var all []shaping.Grant
		for _, s := range []*shaping.Shaper{a, a, a, b, b} {
			g, _ := s.Acquire(t.Context(), shaping.Request{})
			all = append(all, g)
		}
		rest(time.Second)
		h.set(func() {
			for _, g := range h.guests {
				g.held = 0
			}
		})
		a.RenewLeases(2*time.Second, 8) // it has said so a second ago
		if n := h.hold(); n != 0 {
			t.Errorf("%d told", n)
		}
		for _, s := range []*shaping.Shaper{a, b} {
			s.RenewLeases(time.Second/2, 8)
		}
		if n := h.hold(); n != 5 {
			t.Errorf("%d of 5 told", n)
		}
		for _, g := range all {
			g.Release()
		}
		rest(time.Second)
		if n := h.hold(); n != 0 || a.Snapshot().Keys == 0 {
			t.Errorf("%d held at the end", n)
		}
	})
}

// TestLeasesAdopted: another number of places counts at once, upwards and downwards.
func TestLeasesAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(4, time.Millisecond)
		lines := []*shaping.Shaper{h.join(t, line(100)), h.join(t, line(100))}
		var w workshop
		until := time.Now().Add(4 * time.Second)
		for _, s := range lines {
			w.crowd(t, s, 30, always(20*time.Millisecond), until)
		}
		for _, most := range []int{4, 9, 2, 6} {
			h.set(func() { h.most = most })
			for _, s := range lines {
				p := s.Policy()
				if p.MaxInFlight = most; s.Adopt(p) != nil {
					t.Fatal(most)
				}
			}
			rest(200 * time.Millisecond)
			w.used(time.Second)
			w.peak()
			rest(800 * time.Millisecond)
			peak := w.peak()
			if used := w.used(800 * time.Millisecond); peak > most || used < 0.85*float64(most) {
				t.Errorf("%.2f of %d used, %d at once", used, most, peak)
			}
		}
		p := lines[0].Policy()
		for _, change := range []func(*shaping.Policy){
			func(p *shaping.Policy) { p.DryRun = true },
			func(p *shaping.Policy) { p.MinInFlight = 1 },
		} {
			bad := p
			change(&bad)
			if lines[0].Adopt(bad) == nil {
				t.Errorf("%+v was adopted", bad)
			}
		}
		rest(time.Minute)
	})
}

// TestLeasesPausedAndShut: a line that may not let anybody go holds no place, and
// goes on at the instant at which it may.
func TestLeasesPausedAndShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(3, time.Millisecond)
		s := h.join(t, line(100))
		gate := shaping.NewGate()
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		ask := func() {
			go func() {
				if g, err := s.Acquire(t.Context(), shaping.Request{Gate: gate}); err == nil && g.Allowed {
					mu.Lock()
					at = append(at, time.Since(start))
					mu.Unlock()
					g.Release()
				}
			}()
			synctest.Wait()
		}
		soon := func(want time.Duration) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if len(at) != 1 || at[0] < want || at[0] > want+5*time.Millisecond {
				t.Errorf("left at %v, want %v", at, want)
			}
			at = nil
		}
		s.Pause(time.Second)
		ask()
		rest(900 * time.Millisecond)
		if h.hold() != 0 {
			t.Error("a place is held in a pause")
		}
		rest(200 * time.Millisecond)
		soon(time.Second)
		gate.Close("test", start.Add(2*time.Second))
		ask()
		rest(800 * time.Millisecond)
		if h.hold() != 0 {
			t.Error("a place is held before a gate")
		}
		rest(200 * time.Millisecond)
		soon(2 * time.Second)
		gate.Close("test", time.Time{})
		ask()
		rest(900 * time.Millisecond)
		gate.Open("test")
		rest(100 * time.Millisecond)
		soon(3 * time.Second)
		// The quota of an upstream, from which two lines take turns.
		gate.Heard(gate.Sent(), 10, time.Now().Add(10*time.Second), time.Minute)
		other := h.join(t, line(100))
		var w workshop
		for _, s := range []*shaping.Shaper{s, other} {
			for range 10 {
				go func() {
					if g, err := s.Acquire(t.Context(), shaping.Request{Gate: gate, Paced: true}); err == nil && g.Allowed {
						w.work(s, g, 2500*time.Millisecond)
					}
				}()
			}
		}
		rest(10 * time.Second)
		peak := w.peak()
		if x, y := w.of(s), w.of(other); x < 3 || y < 3 || x+y > 11 || peak > 3 {
			t.Errorf("%d and %d let go of a quota of 10, %d at once", x, y, peak)
		}
		rest(time.Minute)
	})
}
