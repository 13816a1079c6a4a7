package keyed

// tidyEach is how many calls of Tidy there are to one that looks: a look at
// states that are not in the cache takes as long as several decisions.
const tidyEach = 8

// Tidy looks, once in eight calls, at two states of one shard, of each in turn,
// and drops those that are as good as new. Called with every decision, it has
// states that hold memory of their own give it back after they fade, whichever
// keys are asked for: all of n within about four times n decisions. It waits for
// no lock and may be called under any.
func (m *Map[V]) Tidy(now int64) {
	calls := m.tidied.Add(1)
	if calls%tidyEach != 0 {
		return
	}
	s := &m.shards[calls/tidyEach&uint64(len(m.shards)-1)]
	if s.TryLock() {
		s.sweep(now)
		s.Unlock()
	}
}
