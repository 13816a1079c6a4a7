package redisstore

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A yard is an upstream that notes how many are there, of several proxies.
type yard struct {
	mu           sync.Mutex
	inside, most int
	came         map[*gang]int
}

// A gang is a proxy whose queue has places.
type gang struct {
	*Store
	*Leases
	line *shaping.Shaper
	yard *yard
}

func (y *yard) join(t *testing.T, server *redistest.Server, o Options, p shaping.Policy, down Down) *gang {
	t.Helper()
	o.Address = []string{server.Address()}
	s, _ := live(t, o)
	def := Definition{CountedBy: "global", Down: down}
	l, err := s.NewLeases(p, def)
	if err != nil {
		t.Fatal(err)
	}
	options := []shaping.Option{shaping.WithLeases(l)}
	if p.Rate.Count > 0 {
		d, err := s.NewDepartures(p, def)
		if err != nil {
			t.Fatal(err)
		}
		options = append(options, shaping.WithPace(d))
	}
	line, err := shaping.New(p, options...)
	if err != nil {
		t.Fatal(err)
	}
	l.Watch(line)
	await(t, "the store is found", s.Up)
	return &gang{s, l, line, y}
}

// overload keeps so many at the line until ctx ends, each of which takes so long.
func (g *gang) overload(t *testing.T, ctx context.Context, all *sync.WaitGroup, crowd int, took time.Duration) {
	y := g.yard
	for range crowd {
		all.Go(func() {
			for ctx.Err() == nil {
				d, err := g.line.Acquire(ctx, shaping.Request{})
				switch {
				case err != nil:
					continue
				case d.Allowed:
				case d.Reason == limiter.ReasonStoreDown && d.Status == http.StatusServiceUnavailable:
					time.Sleep(10 * time.Millisecond)
					continue
				default:
					t.Errorf("%+v", d.Decision)
					return
				}
				y.mu.Lock()
				y.inside++
				y.most = max(y.most, y.inside)
				y.came[g]++
				y.mu.Unlock()
				select {
				case <-time.After(took):
				case <-ctx.Done():
				}
				y.mu.Lock()
				y.inside--
				y.mu.Unlock()
				d.Release()
			}
		})
	}
}

func (y *yard) count(g *gang) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.came[g]
}

// peak is how many were inside at once since it was asked last.
func (y *yard) peak() int {
	y.mu.Lock()
	defer y.mu.Unlock()
	defer func() { y.most = y.inside }()
	return y.most
}

func (g *gang) goesOn(t *testing.T, n int) {
	t.Helper()
	from := g.yard.count(g)
	await(t, "a queue goes on", func() bool { return g.yard.count(g) >= from+n })
}

// TestCase29_QueuesOfTwoProxies: two proxies whose queues are full never have more
// unfinished than there are places; who waits is known everywhere; and when one is
// killed, the other has all places when the lease is over.
func TestCase29_QueuesOfTwoProxies(t *testing.T) { redistest.Each(t, queuesOfTwoProxies) }

func queuesOfTwoProxies(t *testing.T, engine redistest.Engine) {
	t.Parallel()
	server := engine.Start(t)
	y := &yard{came: map[*gang]int{}}
	p := shaping.Policy{Name: "q", MaxInFlight: 5, Queue: 100, MaxWait: time.Minute}
	o := Options{Timeout: 10 * time.Second}
	a, b := y.join(t, server, o, p, Closed), y.join(t, server, o, p, Closed)
	ctx, cancel := context.WithCancel(t.Context())
	var all, theirs sync.WaitGroup
	defer all.Wait()
	defer cancel()
	a.overload(t, ctx, &all, 40, 10*time.Millisecond)
	a.goesOn(t, 20)
	dies, kill := context.WithCancel(ctx)
	b.overload(t, dies, &theirs, 20, 10*time.Millisecond)
	b.goesOn(t, 100)
	server.Must("SCRIPT", "FLUSH")
	a.goesOn(t, 50)
	b.goesOn(t, 50)
	await(t, "each knows who waits at the other", func() bool {
		return a.WaitingElsewhere() > 10 && b.WaitingElsewhere() > 25
	})
	if n := y.peak(); n > 5 {
		t.Errorf("%d of 5 at once", n)
	}
	b.circuit.stop() // as kill -9 does: nothing is given back, and nobody beats
	kill()
	theirs.Wait()
	y.peak()
	await(t, "the other has all places", func() bool {
		y.mu.Lock()
		defer y.mu.Unlock()
		return y.most == 5
	})
	cancel()
	all.Wait()
	if n := y.peak(); n > 5 {
		t.Errorf("%d of 5 at once", n)
	}
	await(t, "a finished key is forgotten", func() bool { return server.Must("KEYS", "*:q:h") == "" })
}

// TestQueuesWhileTheServerIsAway: with local each proxy has its part of the places,
// with closed whoever waits is told; and a server that comes back empty lets in no
// more than there are places.
func TestQueuesWhileTheServerIsAway(t *testing.T) {
	for _, down := range []Down{Local, Closed} {
		t.Run(string(down), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			y := &yard{came: map[*gang]int{}}
			p := shaping.Policy{Name: "q", MaxInFlight: 6, Queue: 100, MaxWait: time.Minute}
			a, b := y.join(t, server, Options{Timeout: 5 * time.Second}, p, down), y.join(t, server, Options{Timeout: 5 * time.Second}, p, down)
			for _, g := range []*gang{a, b} {
				await(t, "both are seen", func() bool { return g.Proxies() == 2 })
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			a.overload(t, ctx, &all, 20, 5*time.Millisecond)
			b.overload(t, ctx, &all, 20, 5*time.Millisecond)
			a.goesOn(t, 50)
			b.goesOn(t, 50)
			server.Kill()
			await(t, "the circuits open", func() bool { return !a.Up() && !b.Up() })
			if down == Local {
				a.goesOn(t, 50)
				b.goesOn(t, 50)
				y.peak()
				a.goesOn(t, 50)
				b.goesOn(t, 50)
			} else {
				await(t, "nobody is inside", func() bool { return y.peak() == 0 })
			}
			server.Restart()
			a.goesOn(t, 100)
			b.goesOn(t, 100)
			if n := y.peak(); n > 6 {
				t.Errorf("%d of 6 at once", n)
			}
			// Changes while it runs: fewer places, and a server that has lost everything.
			for _, p.MaxInFlight = range []int{2, 8} {
				for _, g := range []*gang{a, b} {
					if err := g.Adopt(p, Definition{CountedBy: "global", Down: down}); err != nil {
						t.Fatal(err)
					}
					if err := g.line.Adopt(p); err != nil {
						t.Fatal(err)
					}
				}
				a.goesOn(t, 20)
				b.goesOn(t, 20)
				y.peak()
				a.goesOn(t, 40)
				b.goesOn(t, 40)
				if n := y.peak(); n > p.MaxInFlight {
					t.Errorf("%d of %d at once", n, p.MaxInFlight)
				}
			}
			server.Must("FLUSHALL")
			a.goesOn(t, 100)
			b.goesOn(t, 100)
			if n := y.peak(); n > p.MaxInFlight {
				t.Errorf("%d of %d at once after it has lost all", n, p.MaxInFlight)
			}
			cancel()
			all.Wait()
			for _, g := range []*gang{a, b} {
				g.Drop()
				await(t, "it is dropped", func() bool { return len(g.watched()) == 0 })
			}
		})
	}
}

// TestQueuesWithARate: two proxies keep one rate and one bound together.
func TestQueuesWithARate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	y := &yard{came: map[*gang]int{}}
	p := hundred(100)
	p.MaxInFlight = 3
	o := Options{Timeout: 10 * time.Second}
	a, b := y.join(t, server, o, p, Closed), y.join(t, server, o, p, Closed)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	began := time.Now()
	a.overload(t, ctx, &all, 20, 10*time.Millisecond)
	b.overload(t, ctx, &all, 20, 10*time.Millisecond)
	a.goesOn(t, 60)
	b.goesOn(t, 60)
	n, in := y.count(a)+y.count(b), time.Since(began)
	if float64(n) > 100*(in+stall).Seconds()+3 {
		t.Errorf("%d left in %v", n, in)
	}
	cancel()
	all.Wait()
	if n := y.peak(); n > 3 {
		t.Errorf("%d of 3 at once", n)
	}
	await(t, "a finished key is forgotten", func() bool { return server.Must("KEYS", "*:q:*") == "" })
}
