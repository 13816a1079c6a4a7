package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

const callers = 64

// wide is a token bucket that refuses nobody here.
func wide(name string) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1_000_000, Per: time.Second}, Burst: 1_000_000}
}

func benchStore(b *testing.B, server *redistest.Server) *Store {
	b.Helper()
	s := New(Options{Address: []string{server.Address()}, Prefix: "bench", Timeout: 5 * time.Second})
	b.Cleanup(s.Close)
	if !s.Up() {
		b.Fatal("the server does not answer")
	}
	return s
}

// BenchmarkDecisions is a token bucket over ten thousand keys that 64 callers
// ask, and the same calls of the same script by the bare client: what this
// package costs on top. The rounds are interleaved, as the machine is not the
// same from second to second; the metrics are medians.
func BenchmarkDecisions(b *testing.B) {
	server := redistest.Start(b)
	s := benchStore(b, server)
	var names [10_000]string
	for i := range names {
		names[i] = fmt.Sprint("client-", i)
	}
	limits := map[Down]*Limit{}
	for _, down := range []Down{Open, Local} {
		l, err := s.NewLimit(wide(string(down)), Definition{CountedBy: "client-ip", Down: down})
		if err != nil {
			b.Fatal(err)
		}
		limits[down] = l
	}
	take := func(l *Limit) func(i int) {
		return func(i int) {
			d, _ := s.Take(make([]limiter.Decision, 0, 1), []shaping.SharedCharge{{Limit: l, Key: names[i%len(names)], Cost: 1}})
			if !d[0].Allowed {
				b.Errorf("%+v", d[0])
			}
		}
	}
	set := limits[Open].now.Load()
	keys := make([][]string, len(names))
	for i, n := range names {
		keys[i] = []string{set.before + s.hashOf("client-ip", n) + set.after}
	}
	args := append([]string{"take", "0"}, set.one[:]...)
	client := *s.circuit.client.Load()
	bare := func(i int) {
		if _, err := s.script.Exec(context.Background(), client, keys[i%len(keys)], args).ToArray(); err != nil {
			b.Error(err)
		}
	}
	type side struct {
		name string
		call func(int)
	}
	sides := []side{{"bare", bare}, {"open", take(limits[Open])}, {"local", take(limits[Local])}}
	per := map[string][]float64{}
	for round := 0; b.Loop(); round++ {
		for i := range sides {
			side := sides[(round+i)%len(sides)]
			var n atomic.Int64
			var all sync.WaitGroup
			began := time.Now()
			for range callers {
				all.Go(func() {
					for time.Since(began) < 500*time.Millisecond {
						for range 20 {
							side.call(int(n.Add(1)))
						}
					}
				})
			}
			all.Wait()
			per[side.name] = append(per[side.name], float64(n.Load())/time.Since(began).Seconds())
		}
	}
	for name, list := range per {
		slices.Sort(list)
		b.ReportMetric(list[len(list)/2], name+"/s")
	}
}

// BenchmarkLatency is what a request waits for a decision at 1000 requests a
// second, in memory and on a server.
func BenchmarkLatency(b *testing.B) {
	s := benchStore(b, redistest.Start(b))
	shared, err := s.NewLimit(wide("shared"), Definition{Down: Local})
	if err != nil {
		b.Fatal(err)
	}
	memory, err := limiter.New(wide("memory"))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for _, side := range []struct {
			name string
			call func(key string)
		}{
			{"memory", func(key string) { memory.Take(key, 1) }},
			{"redis", func(key string) { shared.ask(key) }},
		} {
			var mu sync.Mutex
			var waits []time.Duration
			var all sync.WaitGroup
			tick := time.NewTicker(time.Millisecond)
			for i := range 3000 {
				<-tick.C
				all.Go(func() {
					began := time.Now()
					side.call(fmt.Sprint(i % 100))
					took := time.Since(began)
					mu.Lock()
					waits = append(waits, took)
					mu.Unlock()
				})
			}
			all.Wait()
			tick.Stop()
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Nanoseconds())/1e3, side.name+"-p50-µs")
			b.ReportMetric(float64(waits[len(waits)*99/100].Nanoseconds())/1e3, side.name+"-p99-µs")
		}
	}
}

// BenchmarkServerMemory is what a key takes of the server's memory, of a hundred
// thousand (logs: a thousand with 100 entries each).
func BenchmarkServerMemory(b *testing.B) {
	window := func(a limiter.Algorithm) limiter.Policy {
		return limiter.Policy{Name: "per-client", Algorithm: a, Limit: 1000, Window: 24 * time.Hour}
	}
	for b.Loop() {
		for _, c := range []struct {
			name string
			p    limiter.Policy
			keys int
			each int
		}{
			{"bucket", limiter.Policy{Name: "per-client", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 1000}, 100_000, 1},
			{"fixed", window(limiter.FixedWindow), 100_000, 1},
			{"counter", window(limiter.SlidingWindowCounter), 100_000, 1},
			{"log", window(limiter.SlidingWindowLog), 100_000, 1},
			{"log-of-100", window(limiter.SlidingWindowLog), 2_000, 100},
		} {
			server := redistest.Start(b)
			s := benchStore(b, server)
			l, err := s.NewLimit(c.p, Definition{CountedBy: "client-ip", Down: Open})
			if err != nil {
				b.Fatal(err)
			}
			used := func() (n float64) {
				_, rest, _ := strings.Cut(server.Must("INFO", "memory"), "used_memory:")
				fmt.Sscan(rest, &n)
				return n
			}
			before := used()
			var all sync.WaitGroup
			for w := range callers {
				all.Go(func() {
					for k := w; k < c.keys; k += callers {
						for range c.each {
							l.ask(fmt.Sprint(k))
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric((used()-before)/float64(c.keys), c.name+"-B/key")
			server.Kill()
		}
		server := redistest.Start(b)
		s := benchStore(b, server)
		p := hundred(10)
		p.Name, p.Rate = "per-client", limiter.Rate{Count: 1, Per: time.Hour}
		d, err := s.NewDepartures(p, Definition{CountedBy: "client-ip", Down: Open})
		if err != nil {
			b.Fatal(err)
		}
		var before, after float64
		for _, at := range []*float64{&before, &after} {
			_, rest, _ := strings.Cut(server.Must("INFO", "memory"), "used_memory:")
			fmt.Sscan(rest, at)
			if at == &before {
				for k := range 20_000 {
					d.Ask(fmt.Sprint(k), shaping.Ask{N: 1})
				}
			}
		}
		b.ReportMetric((after-before)/20_000, "queue-B/key")
		server.Kill()
	}
}
