// Package keyed is a bounded map from a key's text to the state kept for it,
// made for states that fade: a state that is as good as new can be forgotten
// without anybody noticing.
package keyed

import (
	"hash/maphash"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// Pinned is the rank of a state that must never be dropped.
const Pinned int64 = math.MaxInt64

const (
	perShard  = 128 // entries that a shard is made for, so that growing one is short, and a small map has several
	maxShards = 4096
	sample    = 16 // entries looked at to find the one to drop
	elsewhere = 64 // other shards looked at when a full map's own shard has nothing to drop
)

// A Map holds at most max states of type V, each in place: no pointer and no
// allocation of its own.
//
// Keys are kept as a 64-bit hash under a seed of the map's own, and as text only
// those that are asked for most; see Busiest.
// Two keys with the same hash share a state: together they get what one would.
// Among n keys some two do with probability n²/2⁶⁵, one in 37 million for a
// million keys and one in 370 000 for ten million; that a given key is one of
// them is n/2⁶⁴. As nobody outside knows the seed, nobody can choose keys to
// collide.
//
// A full map drops, of 16 states that stand together, the one of the least rank.
// So a state goes only if none of 15 others is nearer to being as good as new,
// and the map is bounded exactly, whatever the keys.
//
// A Map is safe for concurrent use. States are reached through their Shard,
// under its lock.
type Map[V any] struct {
	seed   maphash.Seed
	rank   func(v *V, now int64) int64
	shards []Shard[V] // a power of two
	busy   *busiest   // nil: there is but one key

	portable *Seed // instead of seed; see Reseed

	max     int64 // guarded by every shard's lock: all are held to write it, any to read it
	n       atomic.Int64
	evicted atomic.Uint64
	tidied  atomic.Uint64 // calls of Tidy
}

// A Latch is the lock of a shard. Whoever needs several shards, of one map or
// of many, locks them by ascending Order, each once.
type Latch struct {
	sync.Mutex
	Order uint64 // unique in the process
}

var orders atomic.Uint64

// New returns a map of at most max states (at least one).
//
// rank says how far a state is from being as good as new: the least is dropped
// first when the map is full. With rank <= 0 forgetting it changes no later
// decision and it may be dropped at any time; with Pinned it stays. now is the
// now of the Put that asks. It is called under the lock of the state's shard.
func New[V any](max int, rank func(v *V, now int64) int64) *Map[V] {
	n := 1
	for n < maxShards && n*perShard < max {
		n *= 2
	}
	m := &Map[V]{seed: maphash.MakeSeed(), rank: rank, shards: make([]Shard[V], n)}
	m.setMax(max)
	if max > 1 {
		m.busy = new(busiest)
	}
	last := orders.Add(uint64(n))
	for i := range m.shards {
		m.shards[i].of = m
		m.shards[i].Order = last - uint64(n-1-i)
	}
	return m
}

func (m *Map[V]) setMax(n int) { m.max = int64(max(1, n)) }

// Shard returns the shard that holds the key's state, and the hash by which
// the shard knows it.
func (m *Map[V]) Shard(key string) (*Shard[V], uint64) {
	var h uint64
	if m.portable != nil {
		h = m.portable.hash(key)
	} else {
		h = maphash.String(m.seed, key)
	}
	if h == 0 {
		h = 1 // zero marks a free slot
	}
	return m.At(h), h
}

// At returns the shard of a hash that Shard returned.
func (m *Map[V]) At(h uint64) *Shard[V] { return &m.shards[h&uint64(len(m.shards)-1)] }

// Len returns how many states are held.
func (m *Map[V]) Len() int { return int(m.n.Load()) }

// Evicted returns how many states have been dropped that were not yet as good
// as new, because the map was full.
func (m *Map[V]) Evicted() uint64 { return m.evicted.Load() }

// Each calls f for every state, one shard after the other under its lock, and
// drops those for which f returns false. States put meanwhile may be missed.
func (m *Map[V]) Each(f func(*V) (keep bool)) {
	for i := range m.shards {
		s := &m.shards[i]
		s.Lock()
		s.each(f)
		s.Unlock()
	}
}

// Lock locks every shard, so that what all states depend on can change at one
// instant.
func (m *Map[V]) Lock() {
	for i := range m.shards {
		m.shards[i].Lock()
	}
}

// Unlock undoes Lock.
func (m *Map[V]) Unlock() {
	for i := range m.shards {
		m.shards[i].Unlock()
	}
}

// EachLocked is Each between Lock and Unlock.
func (m *Map[V]) EachLocked(f func(*V) (keep bool)) {
	for i := range m.shards {
		m.shards[i].each(f)
	}
}

// ResizeLocked changes the bound, between Lock and Unlock, and drops what is
// beyond it. Pinned states stay, and no key is added while they are too many.
func (m *Map[V]) ResizeLocked(max int, now int64) {
	m.setMax(max)
	// From the fullest shards first, so that each keeps its best; when those
	// have only Pinned ones, from any.
	for fair := true; ; fair = false {
		for dropped := true; dropped; {
			dropped = false
			for i := range m.shards {
				s := &m.shards[i]
				n := m.n.Load()
				if n <= m.max {
					return
				}
				if !fair || int64(s.n*len(m.shards)) >= n {
					dropped = s.drop(now, true) || dropped
				}
			}
		}
		if !fair {
			return
		}
	}
}

// room counts one more state in, dropping others until there is a place. The
// caller holds s.
func (m *Map[V]) room(s *Shard[V], now int64) bool {
	for {
		n := m.n.Load()
		if n < m.max {
			if m.n.CompareAndSwap(n, n+1) {
				return true
			}
			continue
		}
		if !s.drop(now, true) && !m.dropElsewhere(s, now) {
			return false
		}
	}
}

// dropElsewhere drops a state of another shard. It only tries their locks: the
// caller holds s and maybe more, so waiting could be for ever.
func (m *Map[V]) dropElsewhere(s *Shard[V], now int64) bool {
	own := int(s.Order - m.shards[0].Order)
	for tries := 0; tries < 2; tries++ {
		for i := 1; i < len(m.shards) && i <= elsewhere; i++ {
			o := &m.shards[(own+i)&(len(m.shards)-1)]
			if o.TryLock() {
				dropped := o.drop(now, false)
				o.Unlock()
				if dropped {
					return true
				}
			}
		}
		runtime.Gosched() // whoever holds them does so for less than a microsecond
	}
	return false
}
