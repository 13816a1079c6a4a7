// Package limiters measures shapeproxy's limiter beside other Go libraries for
// the same job. It is a module of its own, so that they are no business of
// whoever builds shapeproxy.
package limiters

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/didip/tollbooth/v8"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"
)

// A subject is one way to limit a million keys.
type subject struct {
	name string
	// open returns the decision on a key, of a limiter that is made for n keys.
	open func(b testing.TB, n int, q quota) (allow func(key string) bool)
}

// A quota lets limit pass in each per, all of them at once.
type quota struct {
	limit int
	per   time.Duration
}

func (q quota) perSecond() float64 { return float64(q.limit) / q.per.Seconds() }

// subjects are asked for what they give when used as their documentation says:
// Allow and Take of shapeproxy, the second with all that headers need, which
// throttled, ulule/limiter and sethvargo/go-limiter tell in part too; the
// others answer yes or no.
var subjects = []subject{
	{"shapeproxy.Allow", func(b testing.TB, n int, q quota) func(string) bool {
		return openOurs(b, limiter.TokenBucket, n, q).Allow
	}},
	{"shapeproxy.Take", func(b testing.TB, n int, q quota) func(string) bool {
		l := openOurs(b, limiter.TokenBucket, n, q)
		return func(key string) bool { return l.Take(key, 1).Allowed }
	}},
	{"sketch", func(_ testing.TB, _ int, q quota) func(string) bool { return newSketch(q).allow }},
	{"x/time/rate", func(_ testing.TB, _ int, q quota) func(string) bool {
		return (&rateMap{quota: q, m: make(map[string]*rate.Limiter)}).allow
	}},
	{"throttled", func(b testing.TB, _ int, q quota) func(string) bool { return openThrottled(b, 0, q) }},
	{"throttled.lru", openThrottled},
	{"ulule", func(b testing.TB, _ int, q quota) func(string) bool {
		ctx := context.Background()
		l := ulule.New(memory.NewStore(), ulule.Rate{Period: q.per, Limit: int64(q.limit)})
		return func(key string) bool {
			c, err := l.Get(ctx, key)
			if err != nil {
				b.Error(err)
			}
			return !c.Reached
		}
	}},
	{"sethvargo", func(b testing.TB, _ int, q quota) func(string) bool {
		ctx := context.Background()
		s, err := memorystore.New(&memorystore.Config{Tokens: uint64(q.limit), Interval: q.per})
		if err != nil {
			b.Fatal(err)
		}
		return func(key string) bool {
			_, _, _, ok, err := s.Take(ctx, key)
			if err != nil {
				b.Error(err)
			}
			return ok
		}
	}},
	{"tollbooth", func(_ testing.TB, _ int, q quota) func(string) bool {
		l := tollbooth.NewLimiter(q.perSecond(), nil).SetBurst(q.limit)
		return func(key string) bool { return !l.LimitReached(key) }
	}},
}

func openOurs(b testing.TB, a limiter.Algorithm, n int, q quota) *limiter.Limit {
	p := limiter.Policy{Algorithm: a, MaxKeys: n}
	if a.Windowed() {
		p.Limit, p.Window = int64(q.limit), q.per
	} else {
		r, err := limiter.NewRate(int64(q.limit), q.per)
		if err != nil {
			b.Fatal(err)
		}
		p.Rate, p.Burst = r, int64(q.limit)
	}
	l, err := limiter.New(p)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// openThrottled bounds its keys if n is above zero.
func openThrottled(b testing.TB, n int, q quota) func(string) bool {
	ctx := context.Background()
	store, err := memstore.NewCtx(n)
	if err != nil {
		b.Fatal(err)
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(q.limit, q.per), MaxBurst: q.limit - 1})
	if err != nil {
		b.Fatal(err)
	}
	return func(key string) bool {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		// The error is that of a key on which too many decided at once.
		return err == nil && !limited
	}
}

// A rateMap is what most programs write around golang.org/x/time/rate. It
// forgets nothing.
type rateMap struct {
	quota
	mu sync.RWMutex
	m  map[string]*rate.Limiter
}

func (r *rateMap) allow(key string) bool {
	r.mu.RLock()
	l := r.m[key]
	r.mu.RUnlock()
	if l == nil {
		r.mu.Lock()
		if l = r.m[key]; l == nil {
			l = rate.NewLimiter(rate.Limit(r.perSecond()), r.limit)
			r.m[key] = l
		}
		r.mu.Unlock()
	}
	return l.Allow()
}

// A sketch is about the least that can decide per key: one word, swapped
// atomically, in one of 1024 maps. It forgets nothing, tells only yes or no,
// and knows neither costs nor other algorithms.
type sketch struct {
	seed          maphash.Seed
	base          time.Time
	interval, all int64
	shards        [1024]struct {
		sync.RWMutex
		m map[string]*atomic.Int64
		_ [32]byte
	}
}

func newSketch(q quota) *sketch {
	s := &sketch{seed: maphash.MakeSeed(), base: time.Now(), interval: int64(q.per) / int64(q.limit), all: int64(q.per)}
	for i := range s.shards {
		s.shards[i].m = make(map[string]*atomic.Int64)
	}
	return s
}

func (s *sketch) allow(key string) bool {
	shard := &s.shards[maphash.String(s.seed, key)%uint64(len(s.shards))]
	shard.RLock()
	state := shard.m[key]
	shard.RUnlock()
	if state == nil {
		shard.Lock()
		if state = shard.m[key]; state == nil {
			state = new(atomic.Int64)
			shard.m[key] = state
		}
		shard.Unlock()
	}
	now := int64(time.Since(s.base))
	for {
		was := state.Load()
		is := max(was, now) + s.interval
		if is > now+s.all {
			return false
		}
		if state.CompareAndSwap(was, is) {
			return true
		}
	}
}
