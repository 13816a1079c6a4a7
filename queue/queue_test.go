package queue_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shapeproxy/shapeproxy/queue"
)

func Example() {
	var q queue.Turns[string]
	push := func(name string, class queue.Class, flow string) *queue.Place[string] {
		p := &queue.Place[string]{Value: name}
		q.Push(p, class, flow, 0)
		return p
	}
	push("first of a flood", queue.Normal, "flood")
	push("second of the flood", queue.Normal, "flood")
	gives := push("gives up", queue.Normal, "flood")
	push("somebody else", queue.Normal, "other")
	push("of a better class", queue.High, "other")

	fmt.Println(q.Remove(gives), q.Remove(gives)) // it gives up, and only once
	for p := q.Next(0); p != nil; p = q.Next(0) {
		q.Take(p)
		fmt.Println(p.Value)
	}
	// Output:
	// true false
	// of a better class
	// first of a flood
	// somebody else
	// second of the flood
}

func items(n int) []*queue.Place[int] {
	all := make([]*queue.Place[int], n)
	for i := range all {
		all[i] = &queue.Place[int]{Value: i}
	}
	return all
}

// pop takes who is next.
func pop(q *queue.Turns[int]) *queue.Place[int] {
	p := q.Next(0)
	if p != nil {
		q.Take(p)
	}
	return p
}

// drain pops everything and returns the values in the order they left.
func drain(q *queue.Turns[int]) []int {
	left := []int{}
	for it := pop(q); it != nil; it = pop(q) {
		left = append(left, it.Value)
	}
	return left
}

// The assertions of Kubernetes' fair queuing on its FIFO list.
func TestScenarioK1(t *testing.T) {
	const n = 100
	fill := func() (*queue.Turns[int], []*queue.Place[int]) {
		q, all := new(queue.Turns[int]), items(n)
		for _, it := range all {
			q.Push(it, queue.Normal, "", 0)
		}
		return q, all
	}

	t.Run("leaves in the order it came", func(t *testing.T) {
		q, all := fill()
		if q.Len() != n || q.Next(0) != all[0] {
			t.Fatalf("Len %d, Head %v", q.Len(), q.Next(0))
		}
		if got := drain(q); !slices.IsSorted(got) || len(got) != n {
			t.Fatalf("left as %v", got)
		}
		if q.Len() != 0 || q.Next(0) != nil || pop(q) != nil {
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
		popped := pop(q)
		if q.Remove(popped) || q.Len() != n-2 {
			t.Fatal("Remove after Take was not harmless")
		}
		if got := drain(q); len(got) != n-2 {
			t.Fatalf("%d left", len(got))
		}
	})
	t.Run("removed from another queue", func(t *testing.T) {
		q, all := fill()
		var other queue.Turns[int]
		if other.Remove(all[0]) || q.Len() != n || q.Next(0) != all[0] {
			t.Fatal("a queue gave up an item to another")
		}
	})
}

func TestPushOfAWaitingItemPanics(t *testing.T) {
	var a, b queue.Turns[int]
	it := new(queue.Place[int])
	a.Push(it, queue.Normal, "", 0)
	defer func() {
		if recover() == nil {
			t.Fatal("Push took an item that waits elsewhere")
		}
	}()
	b.Push(it, queue.Normal, "", 0)
}
