package shaping

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// nginx's limit_req2.t: two limits on a route, of which a request may lack the
// key of either, and the one that refuses charges the other nothing.
func TestScenarioN7toN12(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, limiter.Policy{Name: "slow", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Minute}, Burst: 1}, tokens("fast", 1000, 1))
		passes := func(what string, want bool, slow, fast string) {
			t.Helper()
			time.Sleep(10 * time.Millisecond) // a token of the fast one
			p := acquire(t, c, slow, fast)
			if p.Allowed != want || !want && p.Policy != "slow" {
				t.Errorf("%s: %+v", what, p.Decision)
			}
		}
		for range 5 {
			passes("N7, only the fast one asks", true, "SKIP", "f")
			passes("N10, neither asks", true, "SKIP", "SKIP")
		}
		passes("N8, only the slow one asks", true, "s", "SKIP")
		passes("N8, again", false, "s", "SKIP")
		passes("N9, both ask", true, "a", "f")
		passes("N9, again", false, "a", "f")
		if d := c.peek(1, "f"); d.Remaining != 1 {
			t.Errorf("N9: what the slow one refused was charged to the fast one: %+v", d)
		}
		passes("N12, another key", true, "b", "f")
	})
}

// nginx's limit_conn.t: places are counted by key, given back at once, shared by
// the routes that name the limit, and each route is held to all of its limits.
func TestScenarioN23toN27(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		places := func(name string, n, status int) Policy {
			return Policy{Name: name, MaxInFlight: n, Status: status}
		}
		c := chainOf(t, places("one", 1, 501), places("five", 5, 503))
		other := NewChain(c.store, c.links[0]) // another route that names the first
		first := acquire(t, c, "k", "k")
		if second := acquire(t, c, "k", "k"); second.Allowed || second.Policy != "one" || second.Status != 501 {
			t.Errorf("N23, N25, N26: %+v", second.Decision)
		}
		if p := acquire(t, other, "k"); p.Allowed {
			t.Errorf("N23, by another route: %+v", p.Decision)
		}
		if p := acquire(t, c, "k2", "k"); !p.Allowed {
			t.Errorf("N27, another key: %+v", p.Decision)
		}
		if d := c.peek(1, "k"); d.Remaining != 3 {
			t.Errorf("N26: the refused one holds a place of the other limit: %+v", d)
		}
		first.Release()
		if p := acquire(t, other, "k"); !p.Allowed {
			t.Errorf("N24, after the end of the first: %+v", p.Decision)
		}
	})
}

// N28: places that nobody may wait for are taken before the wait in a queue of a
// rate, and held through it; those with a queue of their own are asked after it.
func TestScenarioN28(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, line("rate", 1, 5, time.Minute), Policy{Name: "places", MaxInFlight: 2})
		acquire(t, c, "k", "k")
		go func() { _, _ = c.Acquire(t.Context(), keys("k", "k")) }()
		synctest.Wait()
		if p := acquire(t, c, "k", "k"); p.Allowed || p.Policy != "places" {
			t.Errorf("one that waits holds no place: %+v", p.Decision)
		}
		time.Sleep(time.Minute)
	})
}

// nginx's limit_conn_dry_run.t: what would find no place passes, and takes none.
func TestScenarioN29(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, Policy{Name: "dry", MaxInFlight: 1, DryRun: true}, tokens("binding", 1, 2))
		for i, would := range []bool{true, false, false} {
			p := acquire(t, c, "k", "k")
			if binding := i < 2; p.Allowed != binding {
				t.Errorf("%d: %+v", i, p.Decision)
			}
			if d := p.All[0]; d.Policy != "dry" || !d.DryRun || i < 2 && d.Allowed != would {
				t.Errorf("%d: in dry run %+v", i, d)
			}
		}
	})
}

// Traefik's inflightreq: one place for each address, free when the request ends.
func TestScenarioT4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, Policy{Name: "inflight", MaxInFlight: 1})
		first := acquire(t, c, "192.0.2.1")
		if p := acquire(t, c, "192.0.2.1"); p.Allowed {
			t.Error("a second of one address passed")
		}
		if p := acquire(t, c, "192.0.2.2"); !p.Allowed {
			t.Errorf("another address: %+v", p.Decision)
		}
		first.Release()
		if p := acquire(t, c, "192.0.2.1"); !p.Allowed {
			t.Errorf("after the first has ended: %+v", p.Decision)
		}
	})
}
