package queue_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shapeproxy/shapeproxy/queue"
)

// Whoever comes back leaves before all who came later, in the order of arrival.
func TestReturnToTheHead(t *testing.T) {
	q, all := new(queue.Turns[int]), items(6)
	passes := q.Ticket(0) // does not wait
	for _, p := range all {
		q.Push(p, queue.Normal, "", 0)
	}
	for range 3 {
		pop(q)
	}
	first := &queue.Place[int]{Value: 100}
	for _, back := range []struct {
		p      *queue.Place[int]
		t      queue.Ticket
		before int
	}{{all[1], all[1].Ticket(), 0}, {first, passes, 0}, {all[2], all[2].Ticket(), 2}, {all[0], all[0].Ticket(), 1}} {
		if n, cost := q.Before(queue.Normal, "", back.t, 0); n != back.before || cost != 0 {
			t.Errorf("%d go before %d, want %d", n, back.p.Value, back.before)
		}
		q.Return(back.p, queue.Normal, "", back.t, 0)
	}
	if got := q.Oldest().Value; got != 100 {
		t.Errorf("the oldest is %d", got)
	}
	if got, want := drain(q), []int{100, 0, 1, 2, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("left as %v, want %v", got, want)
	}
}

// The turn that came to nothing is the flow's again, and nobody else's is taken.
func TestReturnGivesTheTurnBack(t *testing.T) {
	q := new(queue.Turns[int])
	var places []*queue.Place[int]
	for i, flow := range []string{"a", "a", "a", "b", "b", "c"} {
		p := &queue.Place[int]{Value: i}
		places = append(places, p)
		q.Push(p, queue.Normal, flow, 0)
	}
	a, b := pop(q), pop(q) // of a, of b
	q.Return(b, queue.Normal, "b", b.Ticket(), 0)
	q.Return(a, queue.Normal, "a", a.Ticket(), 0)
	if got, want := drain(q), []int{0, 3, 5, 1, 4, 2}; !slices.Equal(got, want) {
		t.Errorf("left as %v, want %v: as if nobody had left", got, want)
	}
	// Of a queue that was forgotten meanwhile.
	q = new(queue.Turns[int])
	for i, flow := range []string{"b", "b"} {
		q.Push(&queue.Place[int]{Value: i}, queue.Normal, flow, 10)
	}
	for _, p := range []*queue.Place[int]{places[4], places[2]} {
		q.Return(p, queue.Normal, "a", p.Ticket().Elsewhere(), 10)
	}
	if got, want := drain(q), []int{4, 0, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("left as %v, want %v: its flow has the next turn", got, want)
	}
}

// A waiter that comes back counts as what it would had it waited all the time.
func TestReturnAges(t *testing.T) {
	q := &queue.Turns[string]{Ageing: 10}
	push := func(name string, class queue.Class, now int64) *queue.Place[string] {
		p := &queue.Place[string]{Value: name}
		q.Push(p, class, "", now)
		return p
	}
	low := push("low", queue.Low, 0)
	if q.Next(5) != low || !q.Take(low) {
		t.Fatal("it is not next")
	}
	push("low later", queue.Low, 3)
	push("high", queue.High, 12)
	q.Return(low, queue.Low, "", low.Ticket(), 12) // counts as normal, and high from 20 on
	if n, _ := q.Before(queue.Low, "", low.Ticket(), 12); n != 1 {
		t.Errorf("%d go before it at 12, want 1", n)
	}
	if got := q.Next(13).Value; got != "high" {
		t.Errorf("at 13 the next is %q", got)
	}
	push("high later", queue.High, 19)
	var got []string
	for p := q.Next(20); p != nil; p = q.Next(20) {
		q.Take(p)
		got = append(got, p.Value)
	}
	if want := []string{"low", "high", "high later", "low later"}; !slices.Equal(got, want) {
		t.Errorf("left as %v, want %v", got, want)
	}
}

// One comes back to a turn in which another flow has some who count as much as it
// does, behind one that counts better by now.
func TestReturnAmongFlowsThatAge(t *testing.T) {
	q, all := &queue.Turns[int]{Ageing: 20}, items(5)
	q.Push(all[0], queue.Normal, "a", 0)
	q.Push(all[1], queue.Normal, "a", 0)
	q.Push(all[2], queue.Normal, "b", 10)
	q.Push(all[3], queue.Normal, "a", 12)
	pop(q)
	if got := pop(q).Value; got != 2 {
		t.Fatalf("%d has its turn", got)
	}
	ticket := all[2].Ticket()
	if n, _ := q.Before(queue.Normal, "b", ticket, 25); n != 1 {
		t.Errorf("%d go before it, want 1", n)
	}
	q.Return(all[2], queue.Normal, "b", ticket, 25)
	got := []int{}
	for p := q.Next(25); p != nil; p = q.Next(25) {
		q.Take(p)
		got = append(got, p.Value)
	}
	if want := []int{1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("left as %v, want %v", got, want)
	}
}

// With one flow, whoever comes and goes, and comes back as often as it likes, the
// order is by class as aged, then by arrival.
func TestReturnWalk(t *testing.T) {
	type entry struct {
		p     *queue.Place[int]
		class queue.Class
		came  int64
		n     int
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 59))
		q := &queue.Turns[int]{Ageing: int64(r.IntN(3)) * 15}
		var waiting, left []entry
		level := func(e entry, now int64) int64 {
			if q.Ageing == 0 {
				return int64(e.class)
			}
			return max(0, int64(e.class)-(now-e.came)/q.Ageing)
		}
		now := int64(0)
		for i := range 400 {
			now += int64(r.IntN(4))
			switch k := r.IntN(5); {
			case k < 2:
				e := entry{&queue.Place[int]{Value: i, Cost: 1}, queue.Class(r.IntN(3)), now, i}
				q.Push(e.p, e.class, "", now)
				waiting = append(waiting, e)
			case k < 3 && len(left) > 0:
				at := r.IntN(len(left))
				e := left[at]
				left = slices.Delete(left, at, at+1)
				before := 0
				for _, w := range waiting {
					if a, b := level(w, now), level(e, now); a < b || a == b && w.n < e.n {
						before++
					}
				}
				if n, cost := q.Before(e.class, "", e.p.Ticket(), now); n != before || cost != int64(before) {
					t.Fatalf("seed %d, step %d: %d go before it, want %d", seed, i, n, before)
				}
				q.Return(e.p, e.class, "", e.p.Ticket(), now)
				waiting = append(waiting, e)
			case len(waiting) > 0:
				slices.SortFunc(waiting, func(a, b entry) int {
					return cmp.Or(cmp.Compare(level(a, now), level(b, now)), cmp.Compare(a.n, b.n))
				})
				want := 0
				if k == 4 { // one gives up
					want = r.IntN(len(waiting))
					q.Remove(waiting[want].p)
				} else {
					p := q.Next(now)
					if p != waiting[0].p {
						t.Fatalf("seed %d, step %d: the next is %d, want %d", seed, i, p.Value, waiting[0].p.Value)
					}
					q.Take(p)
					left = append(left, waiting[0])
				}
				waiting = slices.Delete(waiting, want, want+1)
			}
			if q.Len() != len(waiting) || q.Cost() != int64(len(waiting)) {
				t.Fatalf("seed %d, step %d: %d wait, want %d", seed, i, q.Len(), len(waiting))
			}
		}
	}
}
