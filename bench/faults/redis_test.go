package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/shapeproxy/shapeproxy/internal/redisstore"
	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestStoreFaults: whatever the network does between a proxy and its store, no
// request waits for longer than the timeout, each is decided by store_down until
// the store is back, nothing piles up, and few look for it meanwhile.
func TestStoreFaults(t *testing.T) {
	for _, c := range []struct {
		name       string
		kind       string
		stream     string
		attributes map[string]any
	}{
		{"latency", "latency", "downstream", map[string]any{"latency": 300}},
		{"answers are swallowed", "timeout", "downstream", map[string]any{"timeout": 0}},
		{"requests are swallowed", "timeout", "upstream", map[string]any{"timeout": 0}},
		{"resets", "reset_peer", "downstream", map[string]any{"timeout": 0}},
		{"one byte", "limit_data", "downstream", map[string]any{"bytes": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			network := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "store", "127.0.0.1:0", server.Address())
			if err := network.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(network.Stop)
			const timeout = 200 * time.Millisecond
			s := redisstore.New(redisstore.Options{
				Address: []string{network.Listen}, Prefix: "t", Timeout: timeout, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			t.Cleanup(s.Close)
			l, err := s.NewLimit(limiter.Policy{
				Name: "l", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 1000,
			}, redisstore.Definition{Down: redisstore.Local})
			if err != nil {
				t.Fatal(err)
			}
			ask := func(key string) (d limiter.Decision, took time.Duration) {
				began := time.Now()
				all, _ := s.Take(nil, []shaping.SharedCharge{{Limit: l, Key: key, Cost: 1}})
				return all[0], time.Since(began)
			}
			await(t, "the store is found", s.Up)
			for range 50 {
				if d, _ := ask("k"); !d.Allowed {
					t.Fatalf("%+v", d)
				}
			}
			goroutines := runtime.NumGoroutine()

			text, err := json.Marshal(map[string]any{"name": "fault", "type": c.kind, "stream": c.stream, "attributes": c.attributes})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := network.Toxics.AddToxicJson(bytes.NewReader(text)); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var waits []time.Duration
			var crowd sync.WaitGroup
			for i := range 300 {
				crowd.Go(func() {
					for range 5 {
						d, took := ask(fmt.Sprint(i))
						mu.Lock()
						waits = append(waits, took)
						mu.Unlock()
						if !d.Allowed {
							t.Errorf("%+v", d)
						}
					}
				})
			}
			crowd.Wait()
			slices.Sort(waits)
			// Twice the timeout, as the machine may be busy; it is a bound all the same.
			if p99 := waits[len(waits)*99/100]; p99 > 2*timeout {
				t.Errorf("p99 of the wait is %v with a timeout of %v", p99, timeout)
			}
			await(t, "the fault is noticed", func() bool { ask("x"); return !s.Up() })

			// Nobody but the circuit calls, and that less than 10 times a second.
			came := received(t, server)
			time.Sleep(time.Second)
			if n := received(t, server) - came; n > 10+2 { // and what this test asks itself
				t.Errorf("%d commands in a second of an open circuit", n)
			}
			if err := network.Toxics.RemoveToxic(t.Context(), "fault"); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			await(t, "the store is found again", s.Up)
			t.Logf("p50 %v, p99 %v, max %v; found again after %v", waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], time.Since(began))
			if d, _ := ask("k"); !d.Allowed || d.Remaining >= 950 {
				t.Errorf("%+v", d)
			}
			await(t, "nothing is left behind", func() bool { return runtime.NumGoroutine() <= goroutines+30 })
		})
	}
}

// received is how many calls of scripts the server has had.
func received(t *testing.T, server *redistest.Server) (n int) {
	t.Helper()
	_, calls, found := strings.Cut(server.Must("INFO", "commandstats"), "cmdstat_evalsha:calls=")
	if !found {
		t.Fatal("the server has had no calls")
	}
	fmt.Sscan(calls[:strings.IndexByte(calls, ',')], &n)
	return n
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
