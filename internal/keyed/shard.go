package keyed

import "math/bits"

// A Shard is a part of a Map with a lock of its own. Its methods other than
// Lock and Unlock are called under that lock.
//
// It is an open-addressed table with linear probing, whose deletions move the
// followers back, so that no tombstones gather however many keys come and go.
type Shard[V any] struct {
	Latch
	of *Map[V]

	hashes []uint64 // zero: free; at least a quarter of them are
	states []V      // of the same length
	n      int      // slots in use
	cursor int      // where the next look for something to drop begins

	_ [40]byte // neighbours do not share a cache line
}

// Get returns the state of h, or nil. It is valid until the next Put or Delete
// on this shard, or until the lock is released.
func (s *Shard[V]) Get(h uint64) *V {
	if i, ok := s.find(h); ok {
		return &s.states[i]
	}
	return nil
}

// Put returns the state of h, a zero one if there was none, valid as Get's is.
// A full map drops the one of a few states that is nearest to being as good as
// new; Put is false when all that it can look at are Pinned: each of the own
// shard and a few of others whose locks are free.
//
// Each new key also pays for two looks at a moving cursor, which drop what is
// as good as new, so that a map empties without a sweeper.
func (s *Shard[V]) Put(h uint64, now int64) (*V, bool) {
	if v := s.Get(h); v != nil {
		return v, true
	}
	s.sweep(now)
	if !s.of.room(s, now) {
		return nil, false
	}
	if 4*(s.n+1) > 3*len(s.hashes) {
		s.grow()
	}
	i, _ := s.find(h)
	s.hashes[i] = h
	s.n++
	return &s.states[i], true
}

// Delete forgets h.
func (s *Shard[V]) Delete(h uint64) {
	if i, ok := s.find(h); ok {
		s.remove(i)
	}
}

// home is the slot where the search for h begins. It uses the high bits, as the
// low ones chose the shard, and allows any length.
func (s *Shard[V]) home(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(s.hashes)))
	return int(hi)
}

func (s *Shard[V]) next(i int) int {
	if i++; i == len(s.hashes) {
		return 0
	}
	return i
}

// find returns the slot of h, or else the free slot where it belongs.
func (s *Shard[V]) find(h uint64) (int, bool) {
	if len(s.hashes) == 0 {
		return 0, false
	}
	i := s.home(h)
	for s.hashes[i] != h {
		if s.hashes[i] == 0 {
			return i, false
		}
		i = s.next(i)
	}
	return i, true
}

func (s *Shard[V]) grow() {
	hashes, states := s.hashes, s.states
	size := max(8, len(hashes)+len(hashes)/2)
	s.hashes, s.states = make([]uint64, size), make([]V, size)
	s.cursor = 0
	for i, h := range hashes {
		if h != 0 {
			j, _ := s.find(h)
			s.hashes[j], s.states[j] = h, states[i]
		}
	}
}

// remove frees slot i and moves those behind it back that may stand nearer to
// their home.
func (s *Shard[V]) remove(i int) {
	for j := s.next(i); s.hashes[j] != 0; j = s.next(j) {
		// The one in j may go to i unless its home lies within (i, j], read
		// around the end.
		home := s.home(s.hashes[j])
		if i <= j && i < home && home <= j || i > j && (home > i || home <= j) {
			continue
		}
		s.hashes[i], s.states[i] = s.hashes[j], s.states[j]
		i = j
	}
	var zero V
	s.hashes[i], s.states[i] = 0, zero
	s.n--
	s.of.n.Add(-1)
}

// sweep looks at two states and drops those that are as good as new.
func (s *Shard[V]) sweep(now int64) {
	for looked, steps := 0, 0; looked < 2 && steps < min(sample, len(s.hashes)); steps++ {
		if s.hashes[s.cursor] != 0 {
			looked++
			if s.of.rank(&s.states[s.cursor], now) <= 0 {
				s.remove(s.cursor)
				continue // another may have moved here
			}
		}
		s.cursor = s.next(s.cursor)
	}
}

// drop drops the state of the least rank among a sample, or reports that there
// was none to drop. With thorough it goes on past a sample of Pinned ones.
func (s *Shard[V]) drop(now int64, thorough bool) bool {
	best, least := -1, Pinned
	i := s.cursor
	for seen, steps := 0, 0; steps < len(s.hashes); steps++ {
		if s.hashes[i] != 0 {
			if r := s.of.rank(&s.states[i], now); r < least {
				best, least = i, r
			}
			if seen++; seen >= sample && (best >= 0 || !thorough) {
				break
			}
		}
		i = s.next(i)
	}
	if best < 0 {
		return false
	}
	if least > 0 {
		s.of.evicted.Add(1)
	}
	s.remove(best)
	return true
}

// each begins behind a free slot: a run of neighbours is then met from its
// front, and what remove moves back has not been met yet.
func (s *Shard[V]) each(f func(*V) bool) {
	if s.n == 0 {
		return
	}
	first := 0
	for s.hashes[first] != 0 {
		first++
	}
	for i, left := s.next(first), len(s.hashes)-1; left > 0; left-- {
		for s.hashes[i] != 0 && !f(&s.states[i]) {
			s.remove(i)
		}
		i = s.next(i)
	}
}
