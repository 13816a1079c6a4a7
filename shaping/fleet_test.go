package shaping_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A fleet is a SharedPace in this process, which lines must treat as one that is
// elsewhere: it takes a while to answer, and knows no more than it is told. Its
// rates have intervals of whole nanoseconds.
type fleet struct {
	mu       sync.Mutex
	interval time.Duration
	burst    int64
	trip     time.Duration
	ahead    int64
	tat      time.Time
	asks     int
	granted  []time.Time               // instants, but for those given back
	wants    map[*member]bool          // those that want more than they have
	down     func() shaping.Departures // nil: it answers
}

// A member is the fleet as one line's process sees it.
type member struct {
	*fleet
	way   time.Duration // to the fleet and back, besides trip
	needs int64         // departures in advance, for that
}

func (f *member) Ask(_ string, a shaping.Ask) shaping.Departures {
	trip := f.trip + f.way
	time.Sleep(trip / 2)
	defer time.Sleep(trip - trip/2)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asks++
	if f.down != nil {
		return f.down()
	}
	now := time.Now()
	from := now.Add(-min(a.Waited, shaping.Slack))
	if f.tat.Before(from) {
		f.tat = from
	}
	f.wants[f] = a.More
	rivals, ahead := int64(0), max(f.ahead, f.needs)
	for other, more := range f.wants {
		if more && other != f {
			rivals++
			ahead = max(ahead, other.needs)
		}
	}
	first := f.tat.Add(-time.Duration(f.burst-1) * f.interval)
	for i := range a.N {
		at := first.Add(time.Duration(i) * f.interval)
		if at.Before(from) {
			at = from
		}
		f.granted = append(f.granted, at)
	}
	f.tat = f.tat.Add(time.Duration(a.N) * f.interval)
	end, burst := f.tat, f.burst
	return shaping.Departures{
		N: a.N, First: first, NotBefore: from, Rate: f.rate(), Rivals: rivals, Ahead: ahead,
		Return: func(n int64) bool {
			time.Sleep(f.trip)
			f.mu.Lock()
			defer f.mu.Unlock()
			if !f.tat.Equal(end) || burst != f.burst {
				return false
			}
			end = end.Add(-time.Duration(n) * f.interval)
			f.tat = end
			f.granted = f.granted[:len(f.granted)-int(n)]
			return true
		},
	}
}

func (f *fleet) rate() limiter.Rate {
	r, _ := limiter.NewRate(1, f.interval)
	return r
}

// grants are the instants that were granted until now.
func (f *fleet) grants() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.granted)
}

func newFleet(interval time.Duration, burst int64) *fleet {
	return &fleet{interval: interval, burst: burst, trip: time.Millisecond, ahead: 2, wants: map[*member]bool{}}
}

func (f *fleet) join(t *testing.T, queue int, maxWait time.Duration) *shaping.Shaper {
	t.Helper()
	s, err := shaping.New(shaping.Policy{
		Name: "test", Rate: f.rate(), Burst: f.burst, Queue: queue, MaxWait: maxWait,
	}, shaping.WithPace(&member{fleet: f}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A log of departures, of several lines.
type departed struct {
	mu sync.Mutex
	at []time.Time
	n  map[*shaping.Shaper]int
}

// overload keeps so many waiting at s until then.
func (d *departed) overload(t *testing.T, s *shaping.Shaper, crowd int, until time.Time) {
	ctx, cancel := context.WithDeadline(t.Context(), until)
	t.Cleanup(cancel)
	for range crowd {
		go func() {
			for ctx.Err() == nil {
				g, err := s.Acquire(ctx, shaping.Request{})
				switch {
				case err != nil:
				case g.Allowed:
					d.note(s)
				default:
					t.Errorf("%+v", g.Decision)
					return
				}
			}
		}()
	}
}

func (d *departed) note(s *shaping.Shaper) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil {
		d.n = map[*shaping.Shaper]int{}
	}
	d.at = append(d.at, time.Now())
	d.n[s]++
}

func (d *departed) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.at)
}

func (d *departed) all() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.at)
}

func (d *departed) of(s *shaping.Shaper) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n[s]
}

// rest lets time go by, and everything that is to happen then happen.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// never fails if in some interval of length t more than (t + slack) ÷ interval +
// burst are among all.
func never(t *testing.T, all []time.Time, interval, slack time.Duration, burst int64) {
	t.Helper()
	slices.SortFunc(all, time.Time.Compare)
	// The generic cell rate algorithm, with that tolerance.
	var tat time.Time
	for i, at := range all {
		if limit := tat.Add(-slack - time.Duration(burst-1)*interval); at.Before(limit) {
			t.Fatalf("departure %d of %d is %v too early", i, len(all), limit.Sub(at))
		}
		if tat.Before(at) {
			tat = at
		}
		tat = tat.Add(interval)
	}
}
