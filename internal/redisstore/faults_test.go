package redisstore

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Timeouts in these tests are far above what a busy machine loses: what is told
// is that there is a bound, not how low it may be.
const patience = 250 * time.Millisecond

// TestCase36_RemainingFallsByOne (Kong/kong #11846): whoever of two proxies is
// asked.
func TestCase36_RemainingFallsByOne(t *testing.T) {
	server := redistest.Start(t)
	var limits []*Limit
	for range 2 {
		s, _ := live(t, at(server))
		limits = append(limits, limit(t, s, limiter.Policy{Name: "w", Algorithm: limiter.FixedWindow, Limit: 1000, Window: 24 * time.Hour}, Definition{}))
	}
	for i := range 200 {
		if d := limits[i%2].ask("k"); !d.Allowed || d.Remaining != int64(999-i) {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
}

// TestCase46_ClocksOfProxiesDoNotCount (sourcegraph/sourcegraph-public-snapshot
// PR #56826): the script takes the server's time, wherever the proxy's stands.
func TestCase46_ClocksOfProxiesDoNotCount(t *testing.T) {
	server := redistest.Start(t)
	fast, _ := live(t, at(server))
	fast.noteTime(time.Now().Add(30 * time.Second).UnixMicro())
	right, _ := live(t, at(server))
	a, b := limit(t, fast, hour("c", 10), Definition{}), limit(t, right, hour("c", 10), Definition{})
	passed := 0
	for range 20 {
		for _, l := range []*Limit{a, b} {
			d := l.ask("k")
			if d.Allowed {
				passed++
			} else if d.RetryAfter <= 0 || d.RetryAfter > 6*time.Minute {
				t.Fatalf("retry after %v", d.RetryAfter)
			}
		}
	}
	if passed != 10 {
		t.Errorf("%d passed a limit of 10", passed)
	}
}

// TestKeysAndExpiry: nobody who reads the server learns who the clients are, a
// debt is never forgotten, and a finished key always is.
func TestKeysAndExpiry(t *testing.T) { redistest.Each(t, keysAndExpiry) }

func keysAndExpiry(t *testing.T, engine redistest.Engine) {
	t.Parallel()
	server := engine.Start(t)
	s, _ := live(t, at(server))
	for _, c := range []struct {
		p    limiter.Policy
		debt time.Duration // after one request at any instant, at most
		done time.Duration
	}{
		{limiter.Policy{Name: "bucket", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Minute}, Burst: 5}, time.Minute, time.Minute},
		{limiter.Policy{Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: 5, Window: time.Minute}, time.Minute, time.Minute},
		{limiter.Policy{Name: "counter", Algorithm: limiter.SlidingWindowCounter, Limit: 5, Window: time.Hour}, 0, 2 * time.Hour},
		{limiter.Policy{Name: "fixed", Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour}, 0, time.Hour},
	} {
		l := limit(t, s, c.p, Definition{CountedBy: "client-ip"})
		d := l.ask("203.0.113.77{}")
		if !d.Allowed {
			t.Fatalf("%+v", d)
		}
		keys := server.Must("KEYS", "*:"+c.p.Name+":*")
		if strings.Contains(keys, "\n") || strings.Contains(keys, "203") || strings.Count(keys, "{") != 1 {
			t.Errorf("%s: keys %q", c.p.Name, keys)
		}
		var ms int64
		fmt.Sscan(server.Must("PTTL", keys), &ms)
		// Each is kept for a second longer than it counts.
		ttl := time.Duration(ms)*time.Millisecond - time.Second
		if least := max(c.debt, d.ResetAfter) - 10*time.Second; ttl < least || ttl > c.done+10*time.Millisecond {
			t.Errorf("%s: forgotten after %v", c.p.Name, ttl)
		}
	}
	short := limit(t, s, limiter.Policy{Name: "short", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1000, Per: time.Second}, Burst: 5}, Definition{})
	short.ask("k")
	await(t, "a finished key is forgotten", func() bool { return server.Must("KEYS", "*:short:*") == "" })
}

// TestOtherSecretsAreOtherKeys: what is stored depends on the secret and on what
// is counted by.
func TestOtherSecretsAreOtherKeys(t *testing.T) {
	var hashes []string
	for _, o := range []Options{{Prefix: "a"}, {Prefix: "b"}, {Prefix: "a", HashKey: []byte("0123456789abcdef")}} {
		s := build(o, toldTime)
		hashes = append(hashes, s.hashOf("host", "x"), s.hashOf("client-ip", "x"))
	}
	for i, h := range hashes {
		if len(h) != 22 {
			t.Errorf("hash %q", h)
		}
		for _, o := range hashes[:i] {
			if o == h {
				t.Errorf("%q twice", h)
			}
		}
	}
}

// TestRefusalsAreKnown: a key that is refused until an instant costs no call
// until then, and none that would pass is refused.
func TestRefusalsAreKnown(t *testing.T) {
	server := redistest.Start(t)
	s, _ := live(t, at(server))
	calls := func() (n int) {
		fmt.Sscan(strings.SplitN(strings.SplitN(server.Must("INFO", "commandstats"), "cmdstat_evalsha:calls=", 2)[1], ",", 2)[0], &n)
		return n
	}
	p := limiter.Policy{Name: "r", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Minute}, Burst: 2}
	l := limit(t, s, p, Definition{})
	if n := l.passes("k", 2); n != 2 {
		t.Fatalf("%d of 2 passed", n)
	}
	before, first := calls(), l.ask("k")
	for range 1000 {
		d := l.ask("k")
		if d.Allowed || d.RetryAfter > first.RetryAfter || d.RetryAfter <= 0 || d.Reason != limiter.ReasonLimit || d.Status != http.StatusTooManyRequests || d.Limit != 2 {
			t.Fatalf("%+v, first %+v", d, first)
		}
	}
	// One a second, each kind.
	if n := calls() - before; n > 100 {
		t.Errorf("%d calls for a thousand refusals", n)
	}
	quick := limit(t, s, limiter.Policy{Name: "quick", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: 50 * time.Millisecond}, Burst: 1}, Definition{})
	for range 10 {
		if d := quick.ask("k"); !d.Allowed {
			time.Sleep(d.RetryAfter)
			if d := quick.ask("k"); !d.Allowed {
				t.Fatalf("refused after the time that was told: %+v", d)
			}
		}
	}
	if d, err := l.Peek("k"); err != nil || !d.Peeked || d.Limit != 2 {
		t.Errorf("%v %+v", err, d)
	}
	l.passes("k", 3)
	if err := l.Forget("k"); err != nil || l.passes("k", 2) != 2 {
		t.Errorf("%v, a key that was reset is refused", err)
	}
	// Another cost and another key are other questions.
	if d, _ := s.Take(nil, []shaping.SharedCharge{{Limit: l, Key: "other", Cost: 2}}); !d[0].Allowed {
		t.Errorf("%+v", d)
	}
	l.ask("k")
	// A change of the limit frees at once.
	p.Burst = 50
	if err := l.Adopt(p, Definition{}); err != nil {
		t.Fatal(err)
	}
	if n := l.passes("k", 40); n != 40 {
		t.Errorf("%d of 40 passed after the burst was raised", n)
	}
	// What a queue may give back is asked for each time.
	l = limit(t, s, hour("back", 1), Definition{GivenBack: true})
	charge := []shaping.SharedCharge{{Limit: l, Key: "k", Cost: 1}}
	d, held := s.Take(nil, charge)
	if !d[0].Allowed || !held || l.ask("k").Allowed {
		t.Fatal("one of one did not pass, or two did")
	}
	if s.Return(charge, d[0].At); !l.ask("k").Allowed {
		t.Error("refused what was given back")
	}
}

// faults are what a server can suffer.
var faults = map[string]struct {
	breakIt, mend func(*redistest.Server)
}{
	"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
	"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
	"password": {
		func(s *redistest.Server) { s.RestartWith("--requirepass", "other") },
		func(s *redistest.Server) { s.RestartWith("--requirepass", "") },
	},
	"read-only": {
		func(s *redistest.Server) { s.Must("REPLICAOF", "127.0.0.1", "1") },
		func(s *redistest.Server) { s.Must("REPLICAOF", "NO", "ONE") },
	},
	"out of memory": {
		func(s *redistest.Server) { s.Must("CONFIG", "SET", "maxmemory", "1") },
		func(s *redistest.Server) { s.Must("CONFIG", "SET", "maxmemory", "0") },
	},
}

// TestCase43_StoreDown (Kong/kong #2382, traefik/traefik #12091): a server that is
// killed, frozen, or refuses the password costs no request more than the
// timeout; each limit does what it is to do, with one line a change.
func TestCase43_StoreDown(t *testing.T) { redistest.Each(t, storeDown) }

func storeDown(t *testing.T, engine redistest.Engine) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := engine.Start(t)
			s, log := live(t, at(server))
			await(t, "the store is found", s.Up)
			open := limit(t, s, hour("open", 5), Definition{Down: Open})
			closed := limit(t, s, hour("closed", 5), Definition{Down: Closed})
			local := limit(t, s, hour("local", 5), Definition{Down: Local})
			if n := local.passes("k", 3); n != 3 || !s.Up() {
				t.Fatalf("%d of 3 passed", n)
			}
			goroutines := runtime.NumGoroutine()
			fault.breakIt(server)

			// A crowd at once: none waits for longer than the timeout, and soon none
			// waits at all.
			var crowd sync.WaitGroup
			for i := range 200 {
				crowd.Go(func() {
					began := time.Now()
					l := []*Limit{open, closed, local}[i%3]
					d := l.ask(fmt.Sprint("crowd", i))
					if took := time.Since(began); took > 2*patience {
						t.Errorf("%s took %v", l.Policy().Name, took)
					}
					switch {
					case l == closed && !d.Allowed && (d.Reason != limiter.ReasonStoreDown || d.Status != http.StatusServiceUnavailable || d.RetryAfter <= 0 || d.Policy != "closed"):
						t.Errorf("closed: %+v", d)
					case l != closed && !d.Allowed:
						t.Errorf("%s: %+v", l.Policy().Name, d)
					}
				})
			}
			crowd.Wait()
			await(t, "the circuit opens", func() bool { return !s.Up() })
			began := time.Now()
			for range 1000 {
				open.ask("x")
			}
			if took := time.Since(began); took > 4*patience {
				t.Errorf("a thousand took %v with an open circuit", took)
			}
			if n := open.passes("k", 20); n != 20 {
				t.Errorf("open: %d of 20 passed", n)
			}
			if n := closed.passes("k", 20); n != 0 {
				t.Errorf("closed: %d passed", n)
			}
			// Three of five were spent on the server.
			if n := local.passes("k", 20); n != 2 {
				t.Errorf("local: %d more passed a limit of 5 of which 3 were used", n)
			}
			await(t, "there is one line about it", func() bool { return log.count("level=ERROR") == 1 })
			// And no more while it lasts: no probe is answered as if all were well.
			for began := time.Now(); time.Since(began) < 3*probeEvery; time.Sleep(10 * time.Millisecond) {
				closed.ask("x")
				if s.Up() {
					t.Fatal("the store is found though nothing was mended")
				}
			}
			if n := log.count("level=ERROR"); n != 1 {
				t.Errorf("%d lines about it", n)
			}
			fault.mend(server)
			await(t, "the store is found again", s.Up)
			await(t, "there is one line about its return", func() bool { return log.count("the store answers again") == 1 })
			// No burst beyond one window: what the server knows counts; if it has
			// forgotten all, one limit's worth.
			if n := local.passes("k", 20); n > 5 {
				t.Errorf("%d passed a limit of 5 on return", n)
			}
			if !closed.ask("k").Allowed {
				t.Error("closed does not let pass on return")
			}
			await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines+20 })
		})
	}
}

// TestNoServer: a proxy starts without its store, and finds it later.
func TestNoServer(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	s, log := live(t, at(server))
	l := limit(t, s, hour("l", 2), Definition{Down: Local})
	if n := l.passes("k", 5); n != 2 || s.Up() {
		t.Errorf("%d passed", n)
	}
	if n := log.count("level=ERROR"); n != 1 {
		t.Errorf("%d lines", n)
	}
	if _, err := l.Peek("k"); err == nil {
		t.Error("looked at a key without a server")
	}
	if err := l.Forget("k"); err == nil {
		t.Error("reset a key without a server")
	}
	server.Restart()
	await(t, "the store is found", s.Up)
}

// TestScriptFlushAndFlushAll: a server that has forgotten its scripts is told them
// again, within the same request; one that has forgotten everything begins anew.
func TestScriptFlushAndFlushAll(t *testing.T) { redistest.Each(t, scriptFlushAndFlushAll) }

func scriptFlushAndFlushAll(t *testing.T, engine redistest.Engine) {
	server := engine.Start(t)
	s, log := live(t, at(server))
	l := limit(t, s, hour("l", 1000), Definition{Down: Closed})
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 8 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if d := l.ask("k"); d.Reason == limiter.ReasonStoreDown {
					t.Errorf("%+v", d)
					return
				}
			}
		})
	}
	for range 20 {
		server.Must("SCRIPT", "FLUSH")
		time.Sleep(5 * time.Millisecond)
	}
	server.Must("FLUSHALL")
	close(stop)
	load.Wait()
	if n := log.count("level=ERROR"); n != 0 {
		t.Errorf("%d errors", n)
	}
}

// TestProxiesShareWhatIsLeft: without the server, three proxies keep to the limit
// together.
func TestProxiesShareWhatIsLeft(t *testing.T) {
	server := redistest.Start(t)
	var limits []*Limit
	for range 3 {
		s, _ := live(t, at(server))
		limits = append(limits, limit(t, s, hour("l", 10), Definition{Down: Local}))
	}
	for _, l := range limits {
		await(t, "the proxies know of each other", func() bool { return l.store.Proxies() == 3 })
	}
	server.Kill()
	passed := 0
	for _, l := range limits {
		await(t, "the circuit opens", func() bool { l.ask("warm"); return !l.store.Up() })
		passed += l.passes("k", 20)
	}
	if passed != 9 {
		t.Errorf("%d passed a limit of 10 that three share, want 3 each", passed)
	}
}

// TestS42_OtherPeoplesKeys: what lies under our key and is not ours is neither
// believed nor a reason to give up the server.
func TestS42_OtherPeoplesKeys(t *testing.T) { redistest.Each(t, otherPeoplesKeys) }

func otherPeoplesKeys(t *testing.T, engine redistest.Engine) {
	server := engine.Start(t)
	s, log := live(t, at(server))
	for _, p := range []limiter.Policy{
		hour("bucket", 5),
		{Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: 5, Window: time.Hour},
		{Name: "fixed", Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour},
		{Name: "counter", Algorithm: limiter.SlidingWindowCounter, Limit: 5, Window: time.Hour},
	} {
		l := limit(t, s, p, Definition{Down: Closed, GivenBack: true})
		l.ask("k")
		key := server.Must("KEYS", "*:"+p.Name+":*")
		ours := l.now.Load().tag
		for _, value := range []string{
			"x", "", ours, ours + " 1 2 3", ours + " 1 -5 99999999999999999999 7", ours + " 1 9e999 0 0",
			"b|0|0|0 1 2 3", "b|1|1|9223372036854775807 1 2 3", "f|5|day|No/Where 1 2 3", strings.Repeat("9", 10000),
		} {
			server.Must("SET", key, value)
			d := l.ask("k")
			if d.Remaining < 0 || d.Remaining > 5 || d.Allowed != (d.RetryAfter == 0) {
				t.Errorf("%s with %.40q: %+v", p.Name, value, d)
			}
		}
		server.Must("DEL", key)
		server.Must("RPUSH", key, "x", "y")
		l.ask("k")
		server.Must("DEL", key)
		if d := l.ask("k"); !d.Allowed {
			t.Errorf("%s: %+v", p.Name, d)
		}
	}
	if !s.Up() || log.count("the store holds something") != 1 {
		t.Errorf("up %t, %d lines", s.Up(), log.count("the store holds something"))
	}
}
