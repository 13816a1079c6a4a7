package queue_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shapeproxy/shapeproxy/queue"
)

func Example() {
	var q queue.FIFO[string]
	first, second, third := &queue.Item[string]{Value: "first"}, &queue.Item[string]{Value: "second"}, &queue.Item[string]{Value: "third"}
	q.Push(first)
	q.Push(second)
	q.Push(third)

	fmt.Println(q.Remove(second), q.Remove(second)) // it gives up, and only once
	for it := q.Pop(); it != nil; it = q.Pop() {
		fmt.Println(it.Value)
	}
	// Output:
	// true false
	// first
	// third
}

func items(n int) []*queue.Item[int] {
	all := make([]*queue.Item[int], n)
	for i := range all {
		all[i] = &queue.Item[int]{Value: i}
	}
	return all
}

// drain pops everything and returns the values in the order they left.
func drain(q *queue.FIFO[int]) []int {
	left := []int{}
	for it := q.Pop(); it != nil; it = q.Pop() {
		left = append(left, it.Value)
	}
	return left
}

// The assertions of Kubernetes' fair queuing on its FIFO list.
func TestScenarioK1(t *testing.T) {
	const n = 100
	fill := func() (*queue.FIFO[int], []*queue.Item[int]) {
		q, all := new(queue.FIFO[int]), items(n)
		for _, it := range all {
			q.Push(it)
		}
		return q, all
	}

	t.Run("leaves in the order it came", func(t *testing.T) {
		q, all := fill()
		if q.Len() != n || q.Head() != all[0] {
			t.Fatalf("Len %d, Head %v", q.Len(), q.Head())
		}
		if got := drain(q); !slices.IsSorted(got) || len(got) != n {
			t.Fatalf("left as %v", got)
		}
		if q.Len() != 0 || q.Head() != nil || q.Pop() != nil {
			t.Fatal("an emptied queue is not empty")
		}
	})
	t.Run("removed in the order it came", func(t *testing.T) {
		q, all := fill()
		for i, it := range all {
			if !q.Remove(it) || q.Len() != n-i-1 {
				t.Fatalf("removing %d: Len %d", i, q.Len())
			}
		}
	})
	t.Run("removed in random order, the rest keeps its order", func(t *testing.T) {
		q, all := fill()
		stays := make(map[int]bool)
		for i, at := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
			if stays[at] = i >= n/2; !stays[at] && !q.Remove(all[at]) {
				t.Fatalf("%d was not removed", at)
			}
		}
		want := []int{}
		for i := range n {
			if stays[i] {
				want = append(want, i)
			}
		}
		if got := drain(q); !slices.Equal(got, want) {
			t.Fatalf("left as %v, want %v", got, want)
		}
	})
	t.Run("removed twice", func(t *testing.T) {
		q, all := fill()
		if !q.Remove(all[50]) || q.Remove(all[50]) || q.Len() != n-1 {
			t.Fatal("the second Remove was not harmless")
		}
		popped := q.Pop()
		if q.Remove(popped) || q.Len() != n-2 {
			t.Fatal("Remove after Pop was not harmless")
		}
		if got := drain(q); len(got) != n-2 {
			t.Fatalf("%d left", len(got))
		}
	})
	t.Run("removed from another queue", func(t *testing.T) {
		q, all := fill()
		var other queue.FIFO[int]
		if other.Remove(all[0]) || q.Len() != n || q.Head() != all[0] {
			t.Fatal("a queue gave up an item to another")
		}
	})
}

func TestPushOfAWaitingItemPanics(t *testing.T) {
	var a, b queue.FIFO[int]
	it := &queue.Item[int]{}
	a.Push(it)
	defer func() {
		if recover() == nil {
			t.Fatal("Push took an item that waits elsewhere")
		}
	}()
	b.Push(it)
}

// A random walk against the obvious model, a slice.
func TestRandomWalk(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	var q queue.FIFO[int]
	var model []*queue.Item[int]
	var gone []*queue.Item[int]
	for step := range 50_000 {
		switch op := rnd.IntN(8); {
		case op < 3: // come, sometimes with an item that waited before
			it := &queue.Item[int]{Value: step}
			if len(gone) > 0 && op == 0 {
				it, gone = gone[len(gone)-1], gone[:len(gone)-1]
			}
			q.Push(it)
			model = append(model, it)
		case op < 5:
			it := q.Pop()
			if len(model) == 0 {
				if it != nil {
					t.Fatalf("step %d: Pop of an empty queue: %v", step, it)
				}
				continue
			}
			if it != model[0] {
				t.Fatalf("step %d: Pop took %v, want %v", step, it, model[0])
			}
			model, gone = model[1:], append(gone, it)
		case op < 7 && len(model) > 0:
			i := rnd.IntN(len(model))
			it := model[i]
			if !q.Remove(it) || q.Remove(it) {
				t.Fatalf("step %d: Remove of %v", step, it)
			}
			model, gone = slices.Delete(slices.Clone(model), i, i+1), append(gone, it)
		case len(gone) > 0:
			if q.Remove(gone[rnd.IntN(len(gone))]) {
				t.Fatalf("step %d: removed an item that had left", step)
			}
		}
		if q.Len() != len(model) {
			t.Fatalf("step %d: Len %d, want %d", step, q.Len(), len(model))
		}
	}
	for _, want := range model {
		if got := q.Pop(); got != want {
			t.Fatalf("left %v, want %v", got, want)
		}
	}
}
