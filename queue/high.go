package queue

// NextHigh is who is next at now of those of class High; nil if none waits. It looks
// past flows that have none but once for each turn of theirs, and once more after
// one that waits already, or has come back, has its first of that class.
func (q *Turns[T]) NextHigh(now int64) *Place[T] {
	if q.came[High].first == nil {
		return nil
	}
	q.age(now)
	for q.high.flow.own[High].first == nil {
		q.high = q.high.next
	}
	return q.high.flow.own[High].first
}

// join has f take turns at that level, after all others.
func (q *Turns[T]) join(f *flow[T], l Class) {
	q.levels[l].ring.push(&f.turns[l])
	if l == High && q.high == nil {
		q.high = &f.turns[l]
	}
}

// leave has f take no more turns there.
func (q *Turns[T]) leave(f *flow[T], l Class) {
	if q.high == &f.turns[l] {
		q.high = q.high.next
	}
	q.levels[l].ring.remove(&f.turns[l])
}
