package queue

// A series is places in order of arrival, linked through one of their links.
type series[T any] struct{ first, last *Place[T] }

func all[T any](p *Place[T]) *links[T] { return &p.all }
func own[T any](p *Place[T]) *links[T] { return &p.own }

// insert puts p behind all who came before it, which a newcomer finds at once.
func (s *series[T]) insert(p *Place[T], by func(*Place[T]) *links[T]) {
	var next *Place[T]
	prev := s.last
	if prev != nil && p.older(prev) {
		for next = s.first; !p.older(next); next = by(next).next {
		}
		prev = by(next).prev
	}
	*by(p) = links[T]{prev: prev, next: next}
	if prev == nil {
		s.first = p
	} else {
		by(prev).next = p
	}
	if next == nil {
		s.last = p
	} else {
		by(next).prev = p
	}
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
// has had its turn, and put back in front if that has come to nothing.
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

// pushBefore puts n before one that is in the ring; nil: at the end.
func (r *ring[T]) pushBefore(n, next *node[T]) {
	if next == nil {
		r.push(n)
		return
	}
	n.prev, n.next = next.prev, next
	if next.prev == nil {
		r.first = n
	} else {
		next.prev.next = n
	}
	next.prev = n
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
