// Package queue says who is next.
//
// It knows no time, takes no lock and waits for nobody: a queue is a value
// that its owner guards, and whoever is taken from it is told by its owner.
// When the next may go is the business of package shaping.
package queue

// An Item is one place in a queue, made by whoever enters: embed it in the
// struct that waits, or let Value point there. The zero Item with its Value set
// is ready; after it has left a queue it may be used again.
type Item[T any] struct {
	Value T

	prev, next *Item[T]
	in         *FIFO[T] // nil while it waits nowhere
}

// A FIFO lets out first who came first. Every operation takes constant time,
// leaving from the middle included, and none allocates.
//
// The zero FIFO is empty and ready. It must not be copied while anything waits
// in it, and is not safe for concurrent use.
type FIFO[T any] struct {
	head, tail *Item[T]
	n          int
}

// Len is how many wait.
func (q *FIFO[T]) Len() int { return q.n }

// Head is the item that is next, or nil when nobody waits.
func (q *FIFO[T]) Head() *Item[T] { return q.head }

// Push puts an item last. It panics if the item waits already, here or
// elsewhere: two places for one item would lose everybody between them.
func (q *FIFO[T]) Push(it *Item[T]) {
	if it.in != nil {
		panic("queue: Push of an item that already waits")
	}
	it.in, it.prev = q, q.tail
	if q.tail == nil {
		q.head = it
	} else {
		q.tail.next = it
	}
	q.tail = it
	q.n++
}

// Pop takes the item that is next, or returns nil when nobody waits.
func (q *FIFO[T]) Pop() *Item[T] {
	it := q.head
	if it != nil {
		q.Remove(it)
	}
	return it
}

// Remove takes an item out wherever it stands, and reports whether it waited
// in q. Removing it a second time is harmless, which is what lets "its turn
// came" and "it gave up" race without either asking first.
func (q *FIFO[T]) Remove(it *Item[T]) bool {
	if it.in != q {
		return false
	}
	if it.prev == nil {
		q.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		q.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next, it.in = nil, nil, nil
	q.n--
	return true
}
