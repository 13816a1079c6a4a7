package queue

// A Ticket says when somebody came, so that one who has left, and whose turn has
// come to nothing, can stand where it stood.
type Ticket struct {
	seq   uint64
	since int64
}

// Ticket is that of one who comes at now and does not have to wait.
func (q *Turns[T]) Ticket(now int64) Ticket {
	q.seq++
	return Ticket{q.seq, now}
}

// Ticket is that of p, which waits or has waited.
func (p *Place[T]) Ticket() Ticket { return Ticket{p.seq, p.since} }

// Elsewhere is the same ticket for another queue, all of whose waiters came later.
func (t Ticket) Elsewhere() Ticket { return Ticket{0, t.since} }

// Since is when the one came that p is for, first.
func (p *Place[T]) Since() int64 { return p.since }

// older reports whether p came before o.
func (p *Place[T]) older(o *Place[T]) bool {
	return p.seq < o.seq || p.seq == o.seq && p.since < o.since
}

// Return puts p where the one with that ticket stood before its turn: before all
// who came later, and its flow has the next turn of those that count as much,
// after flows of others who came back and had come before it. It counts as what
// it would if it had waited all the time.
//
// It looks at those who came before p, and at the turns of others who came back.
// It panics if p waits already.
func (q *Turns[T]) Return(p *Place[T], class Class, key string, t Ticket, now int64) {
	q.age(now)
	p.since, p.seq, p.back = t.since, t.seq, true
	q.enter(p, class, q.aged(class, t, now), key)
	ring, turn := &q.levels[p.level].ring, &p.in.turns[p.level]
	q.leave(p.in, p.level)
	first := p
	if p.in.returned(p) {
		first = p.in.at(p.level).oldest()
	}
	at := ring.first
	for at != nil && at.flow.returned(first) {
		at = at.next
	}
	ring.pushBefore(turn, at)
	if p.level == High && p.in.own[High].first != nil {
		q.high = ring.first
	}
}

// aged is what one of that class counts as that came with t.
func (q *Turns[T]) aged(class Class, t Ticket, now int64) Class {
	if q.Ageing <= 0 || now <= t.since {
		return class
	}
	return Class(max(int64(High), int64(class)-(now-t.since)/q.Ageing))
}

// returned reports whether the first of f at p's level, where it has some, has come
// back, and had come before p. Others of its class may count better.
func (f *flow[T]) returned(p *Place[T]) bool {
	first := f.at(p.level).oldest()
	return first.back && first.older(p)
}

// Before is how many of those who wait at now go before one of that class and
// flow that comes back with t, if nobody comes or counts better meanwhile, and
// what they cost; at least so many where it is not the first of its flow.
func (q *Turns[T]) Before(class Class, key string, t Ticket, now int64) (n int, cost int64) {
	q.age(now)
	p := Place[T]{since: t.since, seq: t.seq, level: q.aged(class, t, now)}
	for l := range p.level {
		n += q.levels[l].n
		cost += q.levels[l].cost
	}
	own, first := q.flows[key], &p
	if own != nil && own.counts[p.level] > 0 && own.returned(&p) {
		first = own.at(p.level).oldest()
	}
	for at := q.levels[p.level].ring.first; at != nil && at.flow != own && at.flow.returned(first); at = at.next {
		n++
		cost += at.flow.at(p.level).oldest().Cost
	}
	if own != nil {
		for turns := own.at(p.level); turns.has() && turns.oldest().older(&p); n++ {
			cost += turns.take().Cost
		}
	}
	return n, cost
}
