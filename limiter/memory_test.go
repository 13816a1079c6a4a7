package limiter_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/limiter/limitertest"
)

// memory is a Memory as the suite wants it, in the virtual time of a bubble.
type memory struct {
	*limiter.Memory
	limits []*limiter.Limit
}

func newMemory() *memory { return &memory{Memory: limiter.NewMemory()} }

func (m *memory) NewLimit(p limiter.Policy) error {
	l, err := m.Memory.NewLimit(p)
	m.limits = append(m.limits, l)
	return err
}

func (m *memory) charges(list []limitertest.Charge) (c []limiter.Charge) {
	for _, one := range list {
		c = append(c, limiter.Charge{Limit: m.limits[one.Limit], Key: one.Key, Cost: one.Cost})
	}
	return c
}

func (m *memory) Take(c ...limitertest.Charge) []limiter.Decision {
	return m.Memory.Take(nil, m.charges(c))
}

func (m *memory) Peek(c limitertest.Charge) limiter.Decision {
	return m.limits[c.Limit].Peek(c.Key, c.Cost)
}

func (m *memory) Return(at time.Time, c ...limitertest.Charge) { m.Memory.Return(m.charges(c), at) }

func (m *memory) Adopt(limit int, p limiter.Policy) error { return m.limits[limit].Adopt(p) }

func (m *memory) Now() time.Time        { return time.Now() }
func (m *memory) Sleep(d time.Duration) { time.Sleep(d) }
func (m *memory) Tick() time.Duration   { return 1 }

func TestMemory(t *testing.T) {
	limitertest.Run(t, func(t *testing.T, test func(*testing.T, limitertest.Store)) {
		synctest.Test(t, func(t *testing.T) { test(t, newMemory()) })
	})
}

func open(t testing.TB, p limiter.Policy) *limiter.Limit {
	t.Helper()
	l, err := limiter.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func policy(a limiter.Algorithm, limit int64, window time.Duration) limiter.Policy {
	p := limiter.Policy{Name: "test", Algorithm: a}
	if a.Windowed() {
		p.Limit, p.Window = limit, window
	} else {
		p.Burst, p.Rate = limit, limiter.Rate{Count: limit, Per: window}
	}
	return p
}

func TestOnlyATakeMakesAKey(t *testing.T) {
	for _, a := range limiter.Algorithms {
		l := open(t, policy(a, 2, time.Minute))
		l.Peek("a", 1)
		l.Take("b", 3) // refused
		l.Take("c", 0) // looks
		if n := l.Keys(); n != 0 {
			t.Errorf("%s: %d keys after looking", a, n)
		}
		l.Take("a", 2)
		if n := l.Keys(); n != 1 {
			t.Errorf("%s: %d keys after one take", a, n)
		}
		l.Forget("a")
		if n := l.Keys(); n != 0 || !l.Take("a", 2).Allowed {
			t.Errorf("%s: not forgotten, %d keys", a, n)
		}
	}
}

// TestS26_ExhaustedKeyOutlivesAFlood: inventing keys does not buy a new
// budget, though each of the invented ones is active.
func TestS26_ExhaustedKeyOutlivesAFlood(t *testing.T) {
	for _, a := range limiter.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := policy(a, 10, time.Hour)
				p.MaxKeys = 2000
				l := open(t, p)
				l.Take("exhausted", 10)
				for i := range 10 * p.MaxKeys {
					l.Take(fmt.Sprint("invented", i), 1)
					if i%100 == 0 {
						time.Sleep(time.Millisecond)
					}
					if n := l.Keys(); n > p.MaxKeys {
						t.Fatalf("%d keys, at most %d allowed", n, p.MaxKeys)
					}
				}
				if d := l.Take("exhausted", 1); d.Allowed {
					t.Errorf("a flood of keys freed the exhausted one: %+v", d)
				}
				if want := uint64(9*p.MaxKeys + 1); l.Evicted() != want {
					t.Errorf("%d evicted, want %d", l.Evicted(), want)
				}
			})
		})
	}
}

// TestCase13EvictionForgetsNoDebt: with idle keys to drop, none that still has
// debt goes, however many come.
func TestCase13EvictionForgetsNoDebt(t *testing.T) {
	for _, a := range limiter.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := policy(a, 1, time.Second)
				p.MaxKeys = 100
				l := open(t, p)
				for round := range 200 {
					for i := range 20 {
						l.Take(fmt.Sprint(round, "/", i), 1)
					}
					if l.Take(fmt.Sprint(round, "/", 0), 1).Allowed {
						t.Fatalf("round %d: debt of this second is forgotten", round)
					}
					time.Sleep(time.Second)
				}
				if l.Keys() > 100 || l.Evicted() != 0 {
					t.Errorf("%d keys, %d evicted with debt", l.Keys(), l.Evicted())
				}
			})
		})
	}
}

func TestAdoptMaxKeys(t *testing.T) {
	p := policy(limiter.TokenBucket, 10, time.Hour)
	p.MaxKeys = 5000
	l := open(t, p)
	l.Take("exhausted", 10)
	for i := range 4999 {
		l.Take(fmt.Sprint(i), 1)
	}
	p.MaxKeys = 100
	if err := l.Adopt(p); err != nil {
		t.Fatal(err)
	}
	if l.Keys() != 100 || l.Take("exhausted", 1).Allowed {
		t.Errorf("%d keys, or the exhausted one went first", l.Keys())
	}
	for i := range 1000 {
		l.Take(fmt.Sprint("more", i), 1)
		if l.Keys() > 100 {
			t.Fatalf("%d keys", l.Keys())
		}
	}
	if l.Policy() != p {
		t.Errorf("follows %+v", l.Policy())
	}
}

func TestAdoptForgetsWhatIsIdle(t *testing.T) {
	for _, a := range limiter.Algorithms {
		synctest.Test(t, func(t *testing.T) {
			l := open(t, policy(a, 10, time.Minute))
			l.Take("idle", 1)
			time.Sleep(2 * time.Minute)
			l.Take("active", 1)
			if err := l.Adopt(l.Policy()); err != nil || l.Keys() != 1 {
				t.Errorf("%s: %d keys, %v", a, l.Keys(), err)
			}
		})
	}
}

func TestAdoptWhileTaking(t *testing.T) {
	m := limiter.NewMemory()
	var limits []*limiter.Limit
	for _, a := range limiter.Algorithms {
		l, err := m.NewLimit(policy(a, 50, 24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
	}
	var passed atomic.Int64
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for range 300 {
				charges := make([]limiter.Charge, len(limits))
				for i := range limits {
					charges[i] = limiter.Charge{Limit: limits[(i*(1+g%2)+g)%len(limits)], Key: "a", Cost: 1}
				}
				into := m.Take(nil, charges)
				ok := true
				for _, d := range into {
					ok = ok && d.Allowed
				}
				if ok {
					passed.Add(1)
				}
			}
		})
		all.Go(func() {
			for n := range 50 {
				l := limits[n%len(limits)]
				p := l.Policy()
				p.Status = 500 + n
				if err := l.Adopt(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 50 {
		t.Errorf("%d passed five limits of 50", n)
	}
}

func TestNewLimitRefuses(t *testing.T) {
	tb := limiter.TokenBucket
	for name, p := range map[string]limiter.Policy{
		"no algorithm":         {},
		"T3 rate 0":            {Algorithm: tb, Burst: 1},
		"T3 negative period":   {Algorithm: tb, Burst: 1, Rate: limiter.Rate{Count: 1, Per: -1}},
		"negative rate":        {Algorithm: tb, Burst: 1, Rate: limiter.Rate{Count: -1, Per: 1}},
		"no burst":             {Algorithm: tb, Rate: limiter.Rate{Count: 1, Per: time.Second}},
		"faster than the tick": {Algorithm: tb, Burst: 1, Rate: limiter.Rate{Count: 2, Per: 1}},
		"X9 slower than ever":  {Algorithm: tb, Burst: 1, Rate: limiter.Rate{Count: 1, Per: limiter.MaxPeriod + 1}},
		"fills after a life":   {Algorithm: tb, Burst: 3_153_600_001, Rate: limiter.Rate{Count: 1, Per: time.Second}},
		"no limit":             {Algorithm: limiter.FixedWindow, Window: 1},
		"no window":            {Algorithm: limiter.SlidingWindowLog, Limit: 1},
		"window too long":      {Algorithm: limiter.SlidingWindowLog, Limit: 1, Window: limiter.MaxWindow + 1},
		"negative keys":        {Algorithm: limiter.FixedWindow, Limit: 1, Window: 1, MaxKeys: -1},
	} {
		if _, err := limiter.New(p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestE3_RefillRacesWithTakes: takes at the very instants of the refills, from
// many goroutines, never get more than the burst and what was refilled.
func TestE3_RefillRacesWithTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, policy(limiter.TokenBucket, 2, 2*time.Second))
		var passed atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 11 {
					if l.Take("a", 1).Allowed {
						passed.Add(1)
					}
					time.Sleep(time.Second)
				}
			})
		}
		all.Wait()
		if n := passed.Load(); n != 2+10 {
			t.Errorf("%d passed, want 2 and 10 refilled", n)
		}
	})
}

// TestN3_OneBucketOwnStatus: two routes that name a limit share its bucket, and
// the limit's own status is what both are told.
func TestN3_OneBucketOwnStatus(t *testing.T) {
	p := policy(limiter.FixedWindow, 1, time.Hour)
	p.Name, p.Status, p.DryRun = "daily", 503, true
	l := open(t, p)
	l.Take("a", 1)
	for _, d := range []limiter.Decision{l.Take("a", 1), l.Peek("a", 1)} {
		if d.Policy != "daily" || d.Status != 503 || !d.DryRun || d.Allowed || d.Reason != limiter.ReasonLimit {
			t.Errorf("%+v", d)
		}
	}
}

// TestAllocations: a decision on known keys allocates nothing. The log may
// grow its ring, so here it has grown.
func TestAllocations(t *testing.T) {
	m := limiter.NewMemory()
	var charges []limiter.Charge
	for _, a := range limiter.Algorithms {
		l, err := m.NewLimit(policy(a, 1<<20, time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		charges = append(charges, limiter.Charge{Limit: l, Key: "known", Cost: 1})
		m.Take(nil, charges[len(charges)-1:])
		if a == limiter.SlidingWindowLog {
			for range 5000 {
				l.Take("known", 1)
			}
		}
	}
	into := make([]limiter.Decision, 0, len(charges))
	for i, c := range charges {
		name := c.Limit.Policy().Algorithm
		if n := testing.AllocsPerRun(200, func() { m.Take(into, charges[i:i+1]) }); n != 0 {
			t.Errorf("%s: %v allocations a take", name, n)
		}
		if n := testing.AllocsPerRun(200, func() { c.Limit.Take("known", 1) }); n != 0 {
			t.Errorf("%s: %v allocations a take of one limit", name, n)
		}
		if n := testing.AllocsPerRun(200, func() { c.Limit.Peek("known", 1) }); n != 0 {
			t.Errorf("%s: %v allocations a peek", name, n)
		}
	}
	if n := testing.AllocsPerRun(200, func() { m.Take(into, charges) }); n != 0 {
		t.Errorf("%v allocations a take of %d charges", n, len(charges))
	}
}

func TestManyCharges(t *testing.T) {
	m := limiter.NewMemory()
	l, err := m.NewLimit(policy(limiter.TokenBucket, 20, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var charges []limiter.Charge
	for i := range 20 {
		charges = append(charges, limiter.Charge{Limit: l, Key: fmt.Sprint(i % 7), Cost: 1})
	}
	for i, d := range m.Take(make([]limiter.Decision, 2), charges)[2:] {
		if want := int64(20 - 2); !d.Allowed || d.Remaining > want || d.Remaining < want-1 {
			t.Errorf("charge %d: %+v", i, d)
		}
	}
}
