package shaping_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestLeasesWalk: whatever comes, leaves and is asked late, never more are taken than
// there are, all ends, and in the end no place is held.
func TestLeasesWalk(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			h := newHall(1+r.IntN(8), time.Duration(r.IntN(12_000))*time.Microsecond)
			f := newFleet(time.Duration(1+r.IntN(20))*time.Millisecond, 1+int64(r.IntN(2)*r.IntN(8)))
			f.trip, f.ahead = h.trip, 2+2*int64(2*h.trip/f.interval)
			rated := r.IntN(2) == 0
			var lines []*shaping.Shaper
			for range 1 + r.IntN(4) {
				p := shaping.Policy{Queue: 1 + r.IntN(40), MaxWait: time.Duration(50+r.IntN(3000)) * time.Millisecond}
				var more []shaping.Option
				if rated {
					p.Rate, p.Burst, more = f.rate(), f.burst, []shaping.Option{shaping.WithPace(&member{fleet: f})}
				}
				lines = append(lines, h.join(t, p, more...))
			}
			var w workshop
			var all sync.WaitGroup
			took := float64(1+r.IntN(50)) * float64(time.Millisecond)
			for range 400 {
				rest(time.Duration(r.ExpFloat64() * took / float64(h.most)))
				s, req := lines[r.IntN(len(lines))], shaping.Request{Cost: 1 + int64(r.IntN(2)*r.IntN(4)), Class: []queue.Class{queue.Low, queue.Normal, queue.High}[r.IntN(3)], Flow: string(rune('a' + r.IntN(3)))}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(1000))*time.Millisecond)
				in := time.Duration(r.ExpFloat64() * took)
				all.Go(func() {
					defer cancel()
					g, err := s.Acquire(ctx, req)
					if err == nil && g.Allowed {
						w.work(s, g, in)
					} else if err == nil && g.RetryAfter <= 0 {
						t.Errorf("seed %d: %+v", seed, g.Decision)
					}
				})
			}
			all.Wait()
			peak := w.peak()
			if peak > h.most || peak == 0 {
				t.Errorf("seed %d: %d of %d at once", seed, peak, h.most)
			}
			rest(time.Minute)
			if h.hold() != 0 {
				t.Errorf("seed %d: %d places held at the end", seed, h.hold())
			}
			if rated {
				never(t, f.grants(), f.interval, shaping.Slack, f.burst)
			}
			for _, s := range lines {
				if n := s.Snapshot(); n.Depth != 0 || n.InFlight != 0 {
					t.Errorf("seed %d: %+v", seed, n)
				}
			}
		})
	}
}
