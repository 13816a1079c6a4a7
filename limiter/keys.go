package limiter

import (
	"sync"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
)

// budgets are the states of a limit's keys, whatever its algorithm. A key is
// named by its hash, and its latch is held wherever one is passed; that of all
// keys is held in adopt.
type budgets interface {
	sync.Locker
	Len() int
	Evicted() uint64
	Busiest(n int, now int64) []keyed.Busy

	// decide is all of a Take of one charge, with the key's latch not held. The
	// quota is empty unless asked for.
	decide(m *Memory, key string, cost int64, tell bool) (now, wait int64, q quota)

	locate(key string) (*keyed.Latch, uint64)
	notice(h uint64, key string, now int64)
	settle(h uint64, now int64)
	wait(h uint64, now, cost int64) int64
	state(h uint64, now int64) quota
	words(h uint64, now int64) []int64
	take(h uint64, now, cost int64)
	giveBack(h uint64, at, now, cost int64)
	forget(h uint64)
	adopt(p Policy, now int64)

	Reseed(keyed.Seed)
	save(w *stateWriter)
	load(r *stateReader, was Policy, now int64)
}

// A quota is what a Decision tells of a state.
type quota struct{ limit, window, remaining, reset int64 }

type keys[S any, M meter[S, M]] struct {
	*keyed.Map[S]
	meter M // guarded by every shard's lock, as the map's bound is
	make  func(Policy) M
	tidy  bool // states hold memory of their own
}

func newBudgets(p Policy) budgets {
	switch p.Algorithm {
	case TokenBucket:
		return newKeys(p, newTokenBucket)
	case LeakyBucket:
		return newKeys(p, newLeakyBucket)
	case FixedWindow:
		return newKeys(p, newFixedWindow)
	case SlidingWindowLog:
		return newKeys(p, newSlidingLog)
	case SlidingWindowCounter:
		return newKeys(p, newSlidingCounter)
	}
	panic("limiter: policy was not validated")
}

func newKeys[S any, M meter[S, M]](p Policy, make func(Policy) M) *keys[S, M] {
	k := &keys[S, M]{meter: make(p), make: make, tidy: p.Algorithm == SlidingWindowLog}
	k.Map = keyed.New(maxKeys(p), func(s *S, now int64) int64 { return k.meter.rank(*s, now) })
	return k
}

func maxKeys(p Policy) int {
	if p.MaxKeys == 0 {
		return DefaultMaxKeys
	}
	return p.MaxKeys
}

func (k *keys[S, M]) locate(key string) (*keyed.Latch, uint64) {
	s, h := k.Shard(key)
	return &s.Latch, h
}

func (k *keys[S, M]) decide(m *Memory, key string, cost int64, tell bool) (now, wait int64, q quota) {
	shard, h := k.Shard(key)
	shard.Lock()
	now = m.now() // under the lock, so that no key sees time run backwards
	shard.Notice(h, key, now)
	var s S
	known := shard.Get(h)
	if known != nil {
		s = *known
	}
	if cost > 0 {
		wait = k.meter.wait(s, now, cost)
	}
	if cost > 0 && wait == 0 {
		if known == nil {
			// With no place to be had, the newcomer is the one that is forgotten.
			known, _ = shard.Put(h, now)
		}
		if known != nil {
			k.meter.take(known, now, cost)
		}
	} else if known != nil {
		k.meter.settle(known, now)
	}
	if known != nil {
		s = *known
	}
	if tell {
		q = k.quota(s, now)
	}
	shard.Unlock()
	if k.tidy {
		k.Tidy(now)
	}
	return now, wait, q
}

func (k *keys[S, M]) notice(h uint64, key string, now int64) { k.At(h).Notice(h, key, now) }

// get is the key's state, or that of a key never seen.
func (k *keys[S, M]) get(h uint64) (s S) {
	if p := k.At(h).Get(h); p != nil {
		s = *p
	}
	return s
}

func (k *keys[S, M]) settle(h uint64, now int64) {
	if s := k.At(h).Get(h); s != nil {
		k.meter.settle(s, now)
	}
	if k.tidy {
		k.Tidy(now)
	}
}

func (k *keys[S, M]) wait(h uint64, now, cost int64) int64 {
	if cost == 0 {
		return 0
	}
	return k.meter.wait(k.get(h), now, cost)
}

func (k *keys[S, M]) state(h uint64, now int64) quota {
	return k.quota(k.get(h), now)
}

func (k *keys[S, M]) words(h uint64, now int64) []int64 {
	k.settle(h, now)
	if s := k.At(h).Get(h); s != nil {
		return stateWords(nil, any(s))
	}
	return nil
}

func (k *keys[S, M]) quota(s S, now int64) quota { return quotaOf(k.meter, s, now) }

func quotaOf[S any, M meter[S, M]](m M, s S, now int64) (q quota) {
	q.limit, q.window = m.quota(now)
	if q.remaining = m.remaining(s, now); q.remaining < q.limit {
		q.reset = m.wait(s, now, q.remaining+1)
	}
	return q
}

func (k *keys[S, M]) take(h uint64, now, cost int64) {
	// With no place to be had, the newcomer is the one that is forgotten.
	if s, ok := k.At(h).Put(h, now); ok {
		k.meter.take(s, now, cost)
	}
}

func (k *keys[S, M]) giveBack(h uint64, at, now, cost int64) {
	if s := k.At(h).Get(h); s != nil {
		k.meter.giveBack(s, at, now, cost)
	}
}

func (k *keys[S, M]) forget(h uint64) { k.At(h).Delete(h) }

func (k *keys[S, M]) adopt(p Policy, now int64) {
	old := k.meter
	k.meter = k.make(p)
	k.EachLocked(func(s *S) bool {
		k.meter.adopt(old, s, now)
		return k.meter.rank(*s, now) > 0
	})
	k.ResizeLocked(maxKeys(p), now)
}
