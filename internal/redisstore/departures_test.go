package redisstore

import (
	"context"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A schedule is what the script and its caller are to do, in rational numbers of
// nanoseconds.
type schedule struct {
	known bool
	tat   *big.Rat
}

func ns(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func intervals(r limiter.Rate, n int64) *big.Rat {
	return new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(n), big.NewInt(int64(r.Per))), big.NewInt(r.Count))
}

// TestDeparturesAgainstReference: on a real server, whatever is asked for and given
// back by several proxies, each departure that is granted is the reference's, to the
// fraction of a nanosecond, and they are never above the rate.
func TestDeparturesAgainstReference(t *testing.T) { redistest.Each(t, departuresAgainstReference) }

func departuresAgainstReference(t *testing.T, engine redistest.Engine) {
	t.Parallel()
	server := engine.Start(t)
	o := Options{Address: []string{server.Address()}, Prefix: "walk", Timeout: 10 * time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := shaping.Policy{
			Name: "q", Rate: limiter.Rate{Count: 1 + r.Int64N(2000), Per: time.Duration(1 + r.Int64N(int64(3*time.Second)))},
			Burst: 1 + r.Int64N(4)*r.Int64N(5), Queue: 10, MaxWait: time.Hour,
		}
		now := time.Date(2026, 11, 30, 19, 16, 5, 123456000, time.UTC).UnixMicro()
		var stores []*Departures
		for range 2 {
			s := build(o, toldTime)
			s.clock = func() int64 { return now }
			s.circuit.start()
			t.Cleanup(s.Close)
			await(t, "the store comes up", s.Up)
			d, err := s.NewDepartures(p, Definition{CountedBy: "global", Down: Closed})
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, d)
		}
		key := strings.Repeat("k", int(seed)+1)
		one, full := intervals(p.Rate, 1), intervals(p.Rate, p.Burst-1)
		var ref schedule
		var end *big.Rat // of the last grant that can be given back
		var last shaping.Departures
		kept := int64(0)
		for step := range 200 {
			now += r.Int64N(1 + 2*int64(p.Rate.Per)/p.Rate.Count/1000)
			d := stores[r.IntN(2)]
			if last.Return != nil && r.IntN(3) == 0 {
				n := 1 + r.Int64N(kept)
				ok, may := last.Return(n), ref.tat.Cmp(end) == 0
				if ok != may {
					t.Fatalf("seed %d, step %d: given back %t, want %t", seed, step, ok, may)
				}
				if kept -= n; ok {
					ref.tat = new(big.Rat).Sub(ref.tat, intervals(p.Rate, n))
					end = ref.tat
				}
				if !ok || kept == 0 {
					last.Return = nil
				}
				continue
			}
			a := shaping.Ask{N: 1 + r.Int64N(20), Waited: time.Duration(r.Int64N(4_000_000)), More: r.IntN(2) == 0, After: time.Duration(r.Int64N(9_000) * 1000)}
			set := d.now.Load()
			g := d.Ask(key, a)
			if g.N != a.N {
				t.Fatalf("seed %d, step %d: %+v", seed, step, g)
			}
			from := now - min(a.Waited, shaping.Slack).Microseconds()
			if !ref.known {
				ref.known, ref.tat = true, ns(now*1000+int64(a.After))
			}
			if ref.tat.Cmp(ns(from*1000)) < 0 {
				ref.tat = ns(from * 1000)
			}
			first := new(big.Rat).Sub(ref.tat, full)
			// What the store added to come to our clock is in NotBefore as well.
			apart := g.First.Sub(g.NotBefore)
			got := new(big.Rat).Add(ns(from*1000+int64(apart)), new(big.Rat).SetFrac64(g.Frac, p.Rate.Count))
			if got.Cmp(first) != 0 {
				t.Fatalf("seed %d, step %d: the first is %s after the reference's", seed, step, new(big.Rat).Sub(got, first).FloatString(3))
			}
			ref.tat = new(big.Rat).Add(ref.tat, new(big.Rat).Mul(one, ns(a.N)))
			end, last, kept = ref.tat, g, a.N
			if set.after == "" {
				t.Fatal("no key")
			}
		}
	}
}

// TestDeparturesResume: under another rate what was granted stands and the next is
// an interval of the new rate after it; tokens that are there are kept, up to the new
// burst.
func TestDeparturesResume(t *testing.T) {
	terms := func(count int64, burst int64) *departing {
		d, err := newTerms(limiter.Policy{Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: count, Per: time.Second}, Burst: burst}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return &departing{terms: d}
	}
	const now = 1_000_000_000
	for _, c := range []struct {
		name     string
		was, is  *departing
		next     int64 // µs from now, of the next under was
		want     int64 // and under is
		wantFree int64 // tokens, if there are some
	}{
		{"granted ahead", terms(10, 1), terms(2, 1), 300_000, 700_000, 0},
		{"slower to faster", terms(2, 1), terms(10, 1), 600_000, 200_000, 0},
		{"half an interval waited", terms(10, 1), terms(1, 1), 50_000, 950_000, 0},
		{"a token there", terms(10, 1), terms(1, 1), -50_000, 0, 1},
		{"three tokens, a burst of 2", terms(10, 5), terms(10, 2), -250_000, 0, 2},
		{"three tokens, a burst of 9", terms(10, 5), terms(10, 9), -250_000, 0, 3},
		{"a token less than three tokens of a full bucket", terms(10, 5), terms(10, 5), -150_000, 0, 2},
	} {
		full := c.was.spanOf(c.was.meter.Policy().Burst - 1)
		state := c.was.text([]int64{(now+c.next)*1000 + full.us*1000, 0}, now)
		got := strings.Fields(c.is.resume(state, now))
		if len(got) != 4 || got[0] != c.is.tag {
			t.Fatalf("%s: %q", c.name, got)
		}
		tat, _ := new(big.Int).SetString(got[2], 10)
		p := c.is.meter.Policy()
		one := time.Second.Microseconds() / p.Rate.Count
		next := tat.Int64() - (p.Burst-1)*one - now
		free := int64(0)
		if next <= 0 {
			free, next = -next/one+1, 0
		}
		if next-c.want > 1 || c.want-next > 1 || free != c.wantFree {
			t.Errorf("%s: the next in %d µs and %d tokens, want %d and %d", c.name, next, free, c.want, c.wantFree)
		}
	}
	for _, state := range []string{"", "x", "b|1|1 1 2 3", "f|5|1000000 1 2 3", "b|0|0|0 1 2 3", "b|10|1000000000|1 1 -2 x", "b|10|1000000000|1 1 99999999999999999999 0"} {
		if got := strings.Fields(terms(5, 1).resume(state, now)); len(got) != 4 || got[2] != "0" {
			t.Errorf("%q became %q", state, got)
		}
	}
}

// TestOffset: an instant of the server's is never early here, whatever the way to
// it takes, and a clock that is set counts at once.
func TestOffset(t *testing.T) {
	var o offset
	r := rand.New(rand.NewPCG(1, 2))
	ahead, ours := int64(5_000_000_000), int64(1_000_000_000)
	for step := range 2000 {
		ours += r.Int64N(20_000_000)
		if step == 1000 {
			ahead += 3_000_000_000 // of us; the server was set back
		}
		if step == 1500 {
			ahead -= 7_000_000_000
		}
		out, back := r.Int64N(3_000_000), r.Int64N(3_000_000)
		began := ours
		server := began + out - ahead
		ours += out + back
		most, trip := o.note(began, ours, server, false)
		if most < ahead || most > ahead+6_000_000 {
			t.Fatalf("step %d: the bound is %d away", step, most-ahead)
		}
		if trip < out+back {
			t.Fatalf("step %d: an answer takes %d, not %d", step, out+back, trip)
		}
		if own, _ := o.note(began, ours, server, true); own != ours-server && own != most {
			t.Fatalf("step %d: %d of its own", step, own)
		}
	}
}

// A crew is a proxy with one queue.
type crew struct {
	*Store
	*Departures
	line *shaping.Shaper

	mu   sync.Mutex
	left []time.Time
}

func join(t *testing.T, server *redistest.Server, p shaping.Policy, down Down) *crew {
	t.Helper()
	s, _ := live(t, at(server))
	return s.crew(t, p, down)
}

func (s *Store) crew(t *testing.T, p shaping.Policy, down Down) *crew {
	t.Helper()
	d, err := s.NewDepartures(p, Definition{CountedBy: "global", Down: down})
	if err != nil {
		t.Fatal(err)
	}
	line, err := shaping.New(p, shaping.WithPace(d))
	if err != nil {
		t.Fatal(err)
	}
	d.Watch(line)
	t.Cleanup(d.Drop)
	return &crew{Store: s, Departures: d, line: line}
}

// overload keeps so many waiting until ctx ends.
func (c *crew) overload(ctx context.Context, all *sync.WaitGroup, crowd int) {
	for range crowd {
		all.Go(func() {
			for ctx.Err() == nil {
				g, err := c.line.Acquire(ctx, shaping.Request{})
				if err == nil && g.Allowed {
					c.mu.Lock()
					c.left = append(c.left, g.At) // however late this goroutine is
					c.mu.Unlock()
				} else if err == nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
}

func (c *crew) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.left)
}

func (c *crew) since(began time.Time) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.left {
		if at.After(began) {
			n++
		}
	}
	return n
}

func hundred(queue int) shaping.Policy {
	return shaping.Policy{Name: "q", Rate: limiter.Rate{Count: 100, Per: time.Second}, Burst: 1, Queue: queue, MaxWait: time.Minute}
}

// within fails if more left in some interval than the bound says: rate × (t + late)
// + extra.
func within(t *testing.T, interval, late time.Duration, extra int, crews ...*crew) {
	t.Helper()
	all := leftOf(crews)
	for i := range all {
		for j := i + extra; j < len(all); j++ {
			if n, in := j-i+1, all[j].Sub(all[i]); float64(n) > float64(in+late)/float64(interval)+float64(extra) {
				t.Fatalf("%d of %d left within %v", n, len(all), in)
			}
		}
	}
}

// leftOf are the instants at which somebody left, in order.
func leftOf(crews []*crew) (all []time.Time) {
	for _, c := range crews {
		c.mu.Lock()
		all = append(all, c.left...)
		c.mu.Unlock()
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

// stall is what a departure may be late by: two intervals, and on a busy machine the
// quickest of all answers.
const stall = 150 * time.Millisecond

// TestTwoProxiesOneQueue: both have too much, and together they keep the rate; who
// waits is known everywhere; and one that is killed costs no more than what it
// had been granted.
func TestTwoProxiesOneQueue(t *testing.T) { redistest.Each(t, twoProxiesOneQueue) }

func twoProxiesOneQueue(t *testing.T, engine redistest.Engine) {
	t.Parallel()
	server := engine.Start(t)
	a, b := join(t, server, hundred(100), Closed), join(t, server, hundred(100), Closed)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	a.overload(ctx, &all, 30)
	dies, kill := context.WithCancel(ctx)
	b.overload(dies, &all, 50)
	await(t, "both wait", func() bool { return a.count() > 10 && b.count() > 10 })
	x, y := a.count(), b.count()
	await(t, "both have let many go", func() bool { return a.count() > x+80 && b.count() > y+80 })
	x, y = a.count()-x, b.count()-y
	if x > 2*y || y > 2*x {
		t.Errorf("%d of one, %d of the other", x, y)
	}
	await(t, "each knows who waits at the other", func() bool {
		return a.WaitingElsewhere() == 50 && b.WaitingElsewhere() == 30
	})
	b.circuit.stop() // as kill -9 does: nothing is given back, and nobody beats
	kill()
	n := a.count()
	await(t, "the other goes on", func() bool { return a.count() > n+80 })
	cancel()
	all.Wait()
	within(t, 10*time.Millisecond, stall, 3, a, b)
	await(t, "a finished key is forgotten", func() bool { return server.Must("KEYS", "*:q:q") == "" })
}

// TestQueueWhileTheServerIsAway: with local each goes on by its part, and together
// again afterwards, whatever has happened to the server; one that has forgotten all
// begins behind what was granted.
func TestQueueWhileTheServerIsAway(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b := join(t, server, hundred(100), Local), join(t, server, hundred(100), Local)
			for _, c := range []*crew{a, b} {
				await(t, "both are seen", func() bool { return c.Proxies() == 2 })
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			a.overload(ctx, &all, 30)
			b.overload(ctx, &all, 30)
			await(t, "many have gone", func() bool { return a.count()+b.count() > 60 })
			fault.breakIt(server)
			await(t, "the circuits open", func() bool { return !a.Up() && !b.Up() })
			n, m := a.count(), b.count()
			await(t, "both go on alone", func() bool { return a.count() > n+30 && b.count() > m+30 })
			fault.mend(server)
			await(t, "the circuits close", func() bool { return a.Up() && b.Up() })
			server.Must("FLUSHALL")
			began := time.Now()
			await(t, "both go on together", func() bool { return a.since(began) > 40 && b.since(began) > 40 })
			cancel()
			all.Wait()
			// Each change may let each proxy have what it holds, which is a burst and two
			// departures: when the server is lost, when it is back, and when it forgets all.
			within(t, 10*time.Millisecond, stall, 3+3*2*3, a, b)
		})
	}
}

// TestQueueClosed: who waits is told at once when the server is lost, and who comes
// is refused until it is back.
func TestQueueClosed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := hundred(100)
	p.Rate = limiter.Rate{Count: 1, Per: time.Minute}
	p.MaxWait = time.Hour
	c := join(t, server, p, Closed)
	c.line.Acquire(t.Context(), shaping.Request{})
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			g, err := c.line.Acquire(t.Context(), shaping.Request{})
			if err != nil || g.Allowed || g.Reason != limiter.ReasonStoreDown || g.Status != http.StatusServiceUnavailable {
				t.Errorf("%v %+v", err, g.Decision)
			}
		})
	}
	await(t, "five wait", func() bool { return c.line.Depth() == 5 })
	server.Kill()
	await(t, "the circuit opens", func() bool { return !c.Up() })
	g, err := c.line.Acquire(t.Context(), shaping.Request{})
	if err != nil || g.Reason != limiter.ReasonStoreDown {
		t.Errorf("%v %+v", err, g.Decision)
	}
	all.Wait()
	server.Restart()
	await(t, "it is let in again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		g, err := c.line.Acquire(ctx, shaping.Request{})
		return err != nil || g.Reason != limiter.ReasonStoreDown
	})
}
