package queue

// A series is places in order of arrival, linked through one of their links.
type series[T any] struct{ first, last *Place[T] }

func all[T any](p *Place[T]) *links[T] { return &p.all }
func own[T any](p *Place[T]) *links[T] { return &p.own }

func (s *series[T]) push(p *Place[T], by func(*Place[T]) *links[T]) {
	*by(p) = links[T]{prev: s.last}
	if s.last == nil {
		s.first = p
	} else {
		by(s.last).next = p
	}
	s.last = p
}

func (s *series[T]) remove(p *Place[T], by func(*Place[T]) *links[T]) {
	at := by(p)
	if at.prev == nil {
		s.first = at.next
	} else {
		by(at.prev).next = at.next
	}
	if at.next == nil {
		s.last = at.prev
	} else {
		by(at.next).prev = at.prev
	}
	*at = links[T]{}
}

// A ring is flows in order; the one at the front is pushed to the end when it
// has had its turn.
type ring[T any] struct {
	first, last *node[T]
	n           int
}

type node[T any] struct {
	flow       *flow[T]
	prev, next *node[T]
}

func (r *ring[T]) push(n *node[T]) {
	n.prev, n.next = r.last, nil
	if r.last == nil {
		r.first = n
	} else {
		r.last.next = n
	}
	r.last = n
	r.n++
}

func (r *ring[T]) remove(n *node[T]) {
	if n.prev == nil {
		r.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		r.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.prev, n.next = nil, nil
	r.n--
}
