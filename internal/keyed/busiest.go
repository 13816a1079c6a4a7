package keyed

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	namesKept = 128 // how many names a map remembers beside its hashes
	nameBytes = 128 // of each
	halfLife  = time.Minute

	rarest  = 64                    // one in so many decisions is counted at least
	window  = 256                   // counts until it is considered whether to count more or fewer
	tooFast = 10 * time.Microsecond // between counts
	tooSlow = 16 * tooFast
)

// A Busy is one of the keys that are asked for most.
type Busy struct {
	Key     string
	Clipped bool   // Key is only the beginning, as the whole is longer than 128 bytes
	Count   uint64 // about how often it was asked for, and at most so much too often:
	Error   uint64
}

// busiest are the names of the keys that are asked for most, in bounded memory
// whatever is asked for: the Space-Saving sketch (Metwally, Agrawal and El
// Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
// Streams", ICDT 2005). A key that is not among them takes the place of the one
// with the least count, and its count with it, as it may have been asked for as
// often before: by so much, its Error, the count is too high at most. A key that
// is asked for more often than one time in namesKept is always among them.
//
// Counts are halved each halfLife, so that it is about those that are busy now.
type busiest struct {
	mu     sync.Mutex
	hashes []uint64
	counts []uint64
	errors []uint64
	names  [][]byte // each has room for nameBytes, and is written over
	whole  []bool
	halved int64 // when counts were last halved

	oneIn atomic.Uint32 // how many decisions one count stands for; 0: one
	n     int           // counts since
	since int64
}

// Notice counts a decision about a key. Where there are many it counts a few of
// them at random, down to one in 64, as a count costs as much as a decision. It
// is called under the lock of the key's shard, waits for none itself, and
// allocates nothing when as many names as can be are kept.
func (s *Shard[V]) Notice(h uint64, key string, now int64) {
	if s.skip--; s.skip >= 0 {
		return
	}
	b := s.of.busy
	if b == nil {
		s.skip = math.MaxInt32
		return
	}
	weight := max(1, b.oneIn.Load())
	s.skip = int32(rand.Uint32N(2*weight - 1)) // at random, so that no order of keys slips past
	if b.mu.TryLock() {
		b.count(h, key, now, uint64(weight))
		b.mu.Unlock()
	}
}

// adapt counts more or fewer of the decisions, by how fast they come.
func (b *busiest) adapt(now int64) {
	if b.n++; b.n < window {
		return
	}
	each := time.Duration(now-b.since) / window
	switch weight := max(1, b.oneIn.Load()); {
	case each < tooFast:
		b.oneIn.Store(min(2*weight, rarest))
	case each > tooSlow:
		b.oneIn.Store(max(weight/2, 1))
	}
	b.n, b.since = 0, now
}

func (b *busiest) count(h uint64, key string, now int64, weight uint64) {
	b.adapt(now)
	b.fade(now)
	if i := slices.Index(b.hashes, h); i >= 0 {
		b.counts[i] += weight
		return
	}
	i, least := len(b.hashes), uint64(0)
	if i < namesKept {
		b.hashes, b.counts, b.errors = append(b.hashes, 0), append(b.counts, 0), append(b.errors, 0)
		b.names, b.whole = append(b.names, make([]byte, 0, min(len(key), nameBytes))), append(b.whole, false)
	} else {
		for j, n := range b.counts {
			if i == namesKept || n < least {
				i, least = j, n
			}
		}
	}
	b.hashes[i], b.counts[i], b.errors[i] = h, least+weight, least
	b.names[i] = append(b.names[i][:0], key[:min(len(key), nameBytes)]...)
	b.whole[i] = len(key) <= nameBytes
}

// fade halves what was counted before.
func (b *busiest) fade(now int64) {
	n := (now - b.halved) / int64(halfLife)
	if n <= 0 {
		return
	}
	b.halved = now - (now-b.halved)%int64(halfLife)
	for i := range b.counts {
		b.counts[i] >>= uint64(n) // more than 63 leaves nothing
		b.errors[i] >>= uint64(n)
	}
}

// Busiest returns at most n of the keys that are asked for most, the busiest
// first. A decision counts half after a minute, and a quarter after two.
func (m *Map[V]) Busiest(n int, now int64) []Busy {
	b := m.busy
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fade(now)
	var all []Busy
	for i, count := range b.counts {
		if count > 0 {
			all = append(all, Busy{string(b.names[i]), !b.whole[i], count, b.errors[i]})
		}
	}
	slices.SortFunc(all, func(a, b Busy) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Key, b.Key))
	})
	return all[:min(max(0, n), len(all))]
}
