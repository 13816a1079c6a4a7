package shaping_test

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A hall is places in this process, which lines must treat as ones that are
// elsewhere: it takes a while to answer, and knows no more than it is told. A place
// that is free is for whoever of those who want one holds the fewest, and of several
// for the one who was served longest ago.
type hall struct {
	mu     sync.Mutex
	most   int
	trip   time.Duration
	guests []*guest
	asks   int
	down   func() shaping.Leases // nil: it answers
}

// A guest is the hall as one line's process sees it.
type guest struct {
	*hall
	held, wants int
	until, at   time.Time // its wants end, and when it was served last
}

func (g *guest) wanted(now time.Time) int {
	if now.After(g.until) {
		return 0
	}
	return g.wants
}

func (g *guest) Ask(_ string, a shaping.LeaseAsk) shaping.Leases {
	h := g.hall
	time.Sleep(h.trip / 2)
	defer time.Sleep(h.trip - h.trip/2)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asks++
	if h.down != nil {
		return h.down()
	}
	now := time.Now()
	if g.held == 0 && g.wanted(now) == 0 {
		g.at = now
	}
	g.held, g.wants, g.until = a.Held, a.More, now.Add(2*a.Every+100*time.Millisecond)
	got := shaping.Leases{Trip: h.trip, Keep: math.MaxInt32}
	free := h.most
	trial := map[*guest]*guest{}
	for _, o := range h.guests {
		free -= o.held
		trial[o] = &guest{held: o.held, wants: o.wanted(now), at: o.at}
	}
	crowded := free < 0
	for ; free > 0; free-- {
		var next *guest
		for _, o := range h.guests {
			if c := trial[o]; c.wants > 0 && (next == nil || c.held < trial[next].held || c.held == trial[next].held && c.at.Before(trial[next].at)) {
				next = o
			}
		}
		if next == nil {
			break
		}
		trial[next].held++
		trial[next].wants--
	}
	got.Granted, got.Free = trial[g].held-a.Held, max(0, free)
	g.held, g.wants = trial[g].held, trial[g].wants
	if got.Granted > 0 {
		g.at = now
	}
	for _, o := range h.guests {
		if o != g && trial[o].wants > 0 {
			got.Keep = min(got.Keep, o.held)
		}
		if o != g && (o.held > 0 && (o.held > g.held || trial[o].wants == 0) || trial[o].held > o.held && g.wants > 0) {
			got.Near = true
		}
	}
	if crowded {
		got.Keep = 0
	}
	return got
}

func newHall(most int, trip time.Duration) *hall { return &hall{most: most, trip: trip} }

func (h *hall) join(t *testing.T, p shaping.Policy, more ...shaping.Option) *shaping.Shaper {
	t.Helper()
	g := &guest{hall: h}
	h.mu.Lock()
	h.guests = append(h.guests, g)
	p.Name, p.MaxInFlight = "test", h.most
	h.mu.Unlock()
	s, err := shaping.New(p, append(more, shaping.WithLeases(g))...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hold is how many places the hall believes to be held.
func (h *hall) hold() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.guests {
		n += g.held
	}
	return n
}

func (h *hall) calls() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asks
}

func (h *hall) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// A workshop is an upstream that notes who is there.
type workshop struct {
	departed
	inside, most int
	busy         time.Duration // time × those inside
	last         time.Time
}

func (w *workshop) move(by int) {
	now := time.Now()
	w.busy += time.Duration(w.inside) * now.Sub(w.last)
	w.last = now
	w.inside += by
	w.most = max(w.most, w.inside)
}

// work lets one in that was let go by s, for so long.
func (w *workshop) work(s *shaping.Shaper, g shaping.Grant, took time.Duration) {
	w.note(s)
	w.mu.Lock()
	w.move(+1)
	w.mu.Unlock()
	time.Sleep(took)
	w.mu.Lock()
	w.move(-1)
	w.mu.Unlock()
	g.Release()
}

// used is how many were inside, on the average, since this was asked last.
func (w *workshop) used(over time.Duration) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.move(0)
	defer func() { w.busy = 0 }()
	return w.busy.Seconds() / over.Seconds()
}

// peak is how many were inside at once since this was asked last.
func (w *workshop) peak() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.most = w.inside }()
	return w.most
}

// crowd keeps so many at s until then, each of which takes so long there.
func (w *workshop) crowd(t *testing.T, s *shaping.Shaper, n int, took func() time.Duration, until time.Time) {
	ctx, cancel := context.WithDeadline(t.Context(), until)
	t.Cleanup(cancel)
	w.mu.Lock()
	w.move(0)
	w.busy = 0
	w.mu.Unlock()
	for range n {
		go func() {
			for ctx.Err() == nil {
				switch g, err := s.Acquire(ctx, shaping.Request{}); {
				case err != nil:
				case g.Allowed:
					w.work(s, g, took())
				case g.Reason == limiter.ReasonStoreDown:
					time.Sleep(10 * time.Millisecond)
				default:
					t.Errorf("%+v", g.Decision)
					return
				}
			}
		}()
	}
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
