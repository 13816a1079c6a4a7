package keyed

import "math/bits"

// A Shard is a part of a Map with a lock of its own. Its methods other than
// Lock and Unlock are called under that lock.
//
// It is an open-addressed table with linear probing, whose deletions move the
// followers back, so that no tombstones gather however many keys come and go.
//
// It is as long as a cache line, so that neighbours share none.
type Shard[V any] struct {
	Latch
	of *Map[V]

	slots  []slot[V] // at least a quarter of them are free
	n      int       // slots in use
	cursor uint32    // where the next look for something to drop begins
	skip   int32     // calls of Notice until one is counted
}

// A slot holds a state beside its hash, so that finding it has brought it into
// the cache.
type slot[V any] struct {
	hash  uint64 // zero: free
	state V
}

// Get returns the state of h, or nil. It is valid until the next Put or Delete
// on this shard, or until the lock is released.
func (s *Shard[V]) Get(h uint64) *V {
	if i, ok := s.find(h); ok {
		return &s.slots[i].state
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
	if 4*(s.n+1) > 3*len(s.slots) {
		s.grow()
	}
	i, _ := s.find(h)
	s.slots[i].hash = h
	s.n++
	return &s.slots[i].state, true
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
	hi, _ := bits.Mul64(h, uint64(len(s.slots)))
	return int(hi)
}

func (s *Shard[V]) next(i int) int {
	if i++; i == len(s.slots) {
		return 0
	}
	return i
}

// find returns the slot of h, or else the free slot where it belongs.
func (s *Shard[V]) find(h uint64) (int, bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	i := s.home(h)
	for s.slots[i].hash != h {
		if s.slots[i].hash == 0 {
			return i, false
		}
		i = s.next(i)
	}
	return i, true
}

func (s *Shard[V]) grow() {
	old := s.slots
	s.slots = make([]slot[V], max(8, len(old)+len(old)/4))
	s.cursor = 0
	for i := range old {
		if h := old[i].hash; h != 0 {
			j, _ := s.find(h)
			s.slots[j] = old[i]
		}
	}
}

// remove frees slot i and moves those behind it back that may stand nearer to
// their home.
func (s *Shard[V]) remove(i int) {
	for j := s.next(i); s.slots[j].hash != 0; j = s.next(j) {
		// The one in j may go to i unless its home lies within (i, j], read
		// around the end.
		home := s.home(s.slots[j].hash)
		if i <= j && i < home && home <= j || i > j && (home > i || home <= j) {
			continue
		}
		s.slots[i] = s.slots[j]
		i = j
	}
	s.slots[i] = slot[V]{}
	s.n--
	s.of.n.Add(-1)
}

// sweep looks at two states and drops those that are as good as new.
func (s *Shard[V]) sweep(now int64) {
	for looked, steps := 0, 0; looked < 2 && steps < min(sample, len(s.slots)); steps++ {
		i := int(s.cursor)
		if s.slots[i].hash != 0 {
			looked++
			if s.of.rank(&s.slots[i].state, now) <= 0 {
				s.remove(i)
				continue // another may have moved here
			}
		}
		s.cursor = uint32(s.next(i))
	}
}

// drop drops the state of the least rank among a sample, or reports that there
// was none to drop. With thorough it goes on past a sample of Pinned ones.
func (s *Shard[V]) drop(now int64, thorough bool) bool {
	best, least := -1, Pinned
	i := int(s.cursor)
	for seen, steps := 0, 0; steps < len(s.slots); steps++ {
		if s.slots[i].hash != 0 {
			if r := s.of.rank(&s.slots[i].state, now); r < least {
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
	for s.slots[first].hash != 0 {
		first++
	}
	for i, left := s.next(first), len(s.slots)-1; left > 0; left-- {
		for s.slots[i].hash != 0 && !f(&s.slots[i].state) {
			s.remove(i)
		}
		i = s.next(i)
	}
}

// EachHash calls f for every hash and its state.
func (s *Shard[V]) EachHash(f func(h uint64, v *V)) {
	for i := range s.slots {
		if slot := &s.slots[i]; slot.hash != 0 {
			f(slot.hash, &slot.state)
		}
	}
}
