package shaping

// A heap is waiters, who gives up first at the top, and of those who do
// together, who came first.
type heap[T any] []*Waiter[T]

func (h *heap[T]) push(w *Waiter[T]) {
	w.index = int32(len(*h))
	*h = append(*h, w)
	h.up(len(*h) - 1)
}

func (h *heap[T]) remove(w *Waiter[T]) {
	i, last := int(w.index), len(*h)-1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h heap[T]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = int32(i), int32(j)
}

func (h heap[T]) before(i, j int) bool {
	a, b := h[i], h[j]
	return a.until < b.until || a.until == b.until && a.came < b.came
}

func (h heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h heap[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h.before(child+1, child) {
			child++
		}
		if !h.before(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
