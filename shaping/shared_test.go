package shaping

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A sharedMemory is a SharedStore in this process, which a Chain must treat as
// one that is elsewhere.
type sharedMemory struct {
	*limiter.Memory
	calls    int
	returned []SharedCharge
	down     bool
}

func (s *sharedMemory) charges(list []SharedCharge) (c []limiter.Charge) {
	s.calls++
	for _, one := range list {
		c = append(c, limiter.Charge{Limit: one.Limit.(*limiter.Limit), Key: one.Key, Cost: one.Cost})
	}
	return c
}

func (s *sharedMemory) Take(into []limiter.Decision, list []SharedCharge) ([]limiter.Decision, bool) {
	d := s.Memory.Take(into, s.charges(list))
	held := !s.down
	for _, one := range d {
		held = held && one.Allowed
	}
	return d, held
}

func (s *sharedMemory) Look(into []limiter.Decision, list []SharedCharge) ([]limiter.Decision, bool) {
	for _, c := range s.charges(list) {
		into = append(into, s.Memory.Peek(c.Limit, c.Key, c.Cost))
	}
	return into, !s.down
}

func (s *sharedMemory) Return(list []SharedCharge, at time.Time) {
	s.returned = append(s.returned, list...)
	s.Memory.Return(s.charges(list), at)
}

// sharedChain is a limit in memory, one that is shared, one that is shared in
// dry run, and a queue of one place, each with its burst.
func sharedChain(t *testing.T, inMemory, shared, dry int64) (*Chain, *sharedMemory) {
	t.Helper()
	memory, store := limiter.NewMemory(), &sharedMemory{Memory: limiter.NewMemory()}
	limit := func(m *limiter.Memory, name string, burst int64, dryRun bool) *limiter.Limit {
		l, err := m.NewLimit(limiter.Policy{
			Name: name, Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: burst, DryRun: dryRun,
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	queue, err := New(Policy{Name: "queue", Rate: limiter.Rate{Count: 1, Per: time.Minute}, Burst: 1, Queue: 1, MaxWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	chain := NewChain(memory,
		Link{Shared: limit(store.Memory, "shared", shared, false)},
		Link{Reject: limit(memory, "memory", inMemory, false)},
		Link{Shared: limit(store.Memory, "dry", dry, true)},
		Link{Queue: queue},
	)
	return chain.Sharing(store), store
}

func TestSharedLimitsOfAChain(t *testing.T) {
	req := limiter.Request{Keys: make([]limiter.Key, 4)}
	refusedBy := func(t *testing.T, c *Chain, name string) limiter.Permit {
		t.Helper()
		p, err := c.Acquire(t.Context(), req)
		if err != nil || p.Allowed || p.Policy != name {
			t.Fatalf("%v, refused by %q, want %q", err, p.Policy, name)
		}
		return p
	}
	left := func(l Link) int64 {
		if l.Reject != nil {
			return l.Reject.Peek("", 1).Remaining
		}
		return l.Shared.(*limiter.Limit).Peek("", 1).Remaining
	}

	t.Run("memory is asked first, and its refusal costs no call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, store := sharedChain(t, 1, 5, 5)
			if p, err := c.Acquire(t.Context(), req); err != nil || !p.Allowed || len(p.All) != 4 {
				t.Fatalf("%v %+v", err, p)
			}
			before := store.calls
			p := refusedBy(t, c, "memory")
			for _, d := range p.All {
				if d.Policy == "shared" || d.Policy == "dry" {
					t.Errorf("tells of %+v, which was not asked", d)
				}
			}
			if store.calls != before || left(c.links[0]) != 4 {
				t.Errorf("%d calls for a refusal, %d left", store.calls-before, left(c.links[0]))
			}
		})
	})
	t.Run("one that refuses has memory give back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := sharedChain(t, 5, 1, 5)
			c.Acquire(t.Context(), req)
			p := refusedBy(t, c, "shared")
			if n := left(c.links[1]); n != 4 {
				t.Errorf("%d left in memory, want 4", n)
			}
			for _, d := range p.All {
				if d.Policy == "memory" && d.Remaining != 4 {
					t.Errorf("tells of %d left in memory", d.Remaining)
				}
			}
		})
	})
	t.Run("a dry run does not bind", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, _ := sharedChain(t, 5, 5, 1)
			for range 2 { // the second waits a minute
				if p, err := c.Acquire(t.Context(), req); err != nil || !p.Allowed {
					t.Fatalf("%v %+v", err, p)
				}
			}
			if n := left(c.links[0]); n != 3 {
				t.Errorf("%d left, want 3", n)
			}
		})
	})
	t.Run("a queue that refuses has the store give back what it holds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, store := sharedChain(t, 9, 9, 9)
			ask := func() limiter.Permit {
				p, _ := c.Acquire(t.Context(), req)
				return p
			}
			ask()
			go ask()
			synctest.Wait()
			if p := ask(); p.Reason != limiter.ReasonQueueFull {
				t.Fatalf("%+v", p)
			}
			if len(store.returned) != 2 || left(c.links[0]) != 7 || left(c.links[1]) != 7 || left(c.links[2]) != 7 {
				t.Errorf("returned %+v, %d left", store.returned, left(c.links[0]))
			}
			store.down = true // what it decides now is not held
			if ask(); len(store.returned) != 2 {
				t.Errorf("gave back what was not held: %+v", store.returned)
			}
			time.Sleep(time.Hour)
		})
	})
	t.Run("after a wait the fields are true", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, store := sharedChain(t, 9, 9, 9)
			c.Acquire(t.Context(), req)
			go func() {
				time.Sleep(time.Second)
				store.Memory.Take(nil, []limiter.Charge{{Limit: c.links[0].Shared.(*limiter.Limit), Cost: 3}})
			}()
			p, err := c.Acquire(t.Context(), req)
			if err != nil || p.All[0].Policy != "shared" || p.All[0].Remaining != 4 {
				t.Errorf("%v %+v", err, p.All[0])
			}
		})
	})
}

// sharedPlaces are places in this process, which a Chain must treat as ones that
// are elsewhere.
type sharedPlaces struct {
	policy Policy
	held   int
	asked  int
}

func (p *sharedPlaces) Policy() Policy { return p.policy }

func (p *sharedPlaces) Acquire(string) (d limiter.Decision, release func()) {
	p.asked++
	d = limiter.Decision{Policy: p.policy.Name, DryRun: p.policy.DryRun, Limit: int64(p.policy.MaxInFlight), At: time.Now()}
	if p.held >= p.policy.MaxInFlight {
		d.Reason, d.RetryAfter = limiter.ReasonLimit, time.Second
		return d, nil
	}
	p.held++
	d.Allowed = true
	return d, func() { p.held-- }
}

func (p *sharedPlaces) Look(string) (limiter.Decision, bool) { return limiter.Decision{}, false }

// TestSharedPlacesOfAChain: they are given back whatever becomes of the request,
// once, and a limit in reject mode gets back what it was charged if there is no
// place.
func TestSharedPlacesOfAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := limiter.NewMemory()
		reject, err := memory.NewLimit(limiter.Policy{Name: "reject", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: time.Hour}, Burst: 100})
		if err != nil {
			t.Fatal(err)
		}
		queue, err := New(Policy{Name: "queue", Rate: limiter.Rate{Count: 1, Per: time.Minute}, Burst: 1, Queue: 1, MaxWait: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		binds := &sharedPlaces{policy: Policy{Name: "places", MaxInFlight: 2}}
		dry := &sharedPlaces{policy: Policy{Name: "dry", MaxInFlight: 1, DryRun: true}}
		c := NewChain(memory, Link{Places: dry}, Link{Queue: queue}, Link{Places: binds}, Link{Reject: reject})
		req := limiter.Request{Keys: make([]limiter.Key, 4)}
		ask := func(ctx context.Context) limiter.Permit {
			p, _ := c.Acquire(ctx, req)
			return p
		}

		first := ask(t.Context())
		if !first.Allowed || len(first.All) != 4 || binds.held != 1 || dry.held != 1 {
			t.Fatalf("%+v, %d held", first, binds.held)
		}
		leaving, leave := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { ask(leaving); close(ended) }()
		synctest.Wait()
		if binds.held != 2 { // while it waits
			t.Errorf("%d held", binds.held)
		}
		if p := ask(t.Context()); p.Allowed || p.Policy != "places" || reject.Peek("", 1).Remaining != 98 {
			t.Errorf("%+v, %d left", p, reject.Peek("", 1).Remaining)
		}
		asked := dry.asked
		leave()
		<-ended
		if binds.held != 1 {
			t.Errorf("%d held when one had left", binds.held)
		}
		go ask(t.Context())
		synctest.Wait()
		first.Release()
		if binds.held != 1 || dry.held != 0 {
			t.Errorf("%d and %d held when one had ended", binds.held, dry.held)
		}
		// Refused by the queue, which is full.
		if p := ask(t.Context()); p.Policy != "queue" || binds.held != 1 || dry.asked != asked+2 {
			t.Errorf("%+v, %d held, the dry run was asked %d times", p, binds.held, dry.asked-asked)
		}
		skip := limiter.Request{Keys: make([]limiter.Key, 4)}
		skip.Keys[2].Skip, skip.Keys[1].Skip = true, true
		if p, _ := c.Acquire(t.Context(), skip); !p.Allowed || binds.held != 1 {
			t.Errorf("%+v, %d held", p, binds.held)
		}
		time.Sleep(time.Hour)
	})
}

// TestRefusesAsksNoStore: whether a request would be refused at once is asked
// before its body is waited for, and by every limit there is. One in another
// process is not asked twice for that; one here is asked at its cost.
func TestRefusesAsksNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := sharedChain(t, 5, 1, 5)
		places := &sharedPlaces{policy: Policy{Name: "places", MaxInFlight: 1}}
		c.links = append(c.links, Link{Places: places})
		for _, step := range []struct {
			what string
			keys []limiter.Key
			want bool
		}{
			{"what passes", make([]limiter.Key, 5), false},
			{"a cost that is not there", []limiter.Key{{}, {Cost: 6}, {}, {}, {}}, true},
			{"a cost that would wait for longer than an hour", []limiter.Key{{}, {}, {}, {Cost: 100 << 40}, {}}, true},
			{"a key that is missing", []limiter.Key{{Missing: true}, {}, {}, {}, {}}, true},
			{"a key that a dry run misses", []limiter.Key{{}, {}, {Missing: true}, {}, {}}, false},
		} {
			if got := c.Refuses(limiter.Request{Keys: step.keys}); got != step.want {
				t.Errorf("%s: %v", step.what, got)
			}
		}
		if store.calls != 0 || places.asked != 0 {
			t.Errorf("%d calls", store.calls+places.asked)
		}
		for range 2 { // one leaves and one waits
			go c.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{{Skip: true}, {}, {Skip: true}, {}, {Skip: true}}})
			synctest.Wait()
		}
		for free, want := range map[bool]bool{false: true, true: false} {
			if got := c.Refuses(limiter.Request{Keys: []limiter.Key{{}, {}, {}, {Free: free}, {}}}); got != want {
				t.Errorf("with a full queue, a free one %v: %v", free, got)
			}
		}
		time.Sleep(time.Hour)
	})
}
