package keyed

// Tidy looks at two states of one shard, of each in turn, and drops those that
// are as good as new. Called with every decision, it has states that hold
// memory of their own give it back soon after they fade, whichever keys are
// asked for. It waits for no lock and may be called under any.
func (m *Map[V]) Tidy(now int64) {
	s := &m.shards[m.tidied.Add(1)&uint64(len(m.shards)-1)]
	if s.TryLock() {
		s.sweep(now)
		s.Unlock()
	}
}
