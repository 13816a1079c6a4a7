package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whatever comes, goes, counts better and comes back: who is next of class High is
// the first in order that is of it.
func TestNextHighIsTheFirstOfItsClass(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 17))
		q := &Turns[int]{Ageing: int64(r.IntN(3)) * 10}
		var left []*Place[int]
		flow := map[*Place[int]]string{}
		now := int64(0)
		for i := range 300 {
			now += int64(r.IntN(4))
			switch k := r.IntN(6); {
			case k < 3:
				p := &Place[int]{Value: i}
				flow[p] = fmt.Sprint(r.IntN(6))
				q.Push(p, Class(r.IntN(3)), flow[p], now)
			case k < 4 && len(left) > 0:
				at := r.IntN(len(left))
				p := left[at]
				left = slices.Delete(left, at, at+1)
				q.Return(p, p.class, flow[p], p.Ticket(), now)
			case q.Len() > 0:
				all := slices.Collect(q.All(now))
				p := all[r.IntN(len(all))]
				switch r.IntN(4) {
				case 0:
					q.Remove(p)
				case 1:
					if p = q.NextHigh(now); p == nil { // it passes those before it
						continue
					}
					fallthrough
				case 2:
					q.Take(p)
					left = append(left, p)
				default:
					p = q.Next(now)
					q.Take(p)
					left = append(left, p)
				}
			}
			if i%3 > 0 {
				continue // it is not asked after each
			}
			want := q.First(now, func(p *Place[int]) bool { return p.class == High })
			if got := q.NextHigh(now); got != want {
				t.Fatalf("seed %d, step %d: the next of class high is %+v, want %+v", seed, i, got, want)
			}
		}
	}
}

// A crowd of other classes is looked past once, not at each look.
func TestNextHighLooksPastACrowdOnce(t *testing.T) {
	q := &Turns[int]{Ageing: 10}
	for i := range 1000 {
		q.Push(new(Place[int]), Normal, fmt.Sprint(i), 0)
	}
	q.age(10)
	var high Place[int]
	for now := range int64(3) {
		q.Push(&high, High, "high", 10+now)
		if now > 0 && q.high == q.levels[High].ring.first {
			t.Errorf("it would look at all of them again")
		}
		q.Push(new(Place[int]), Normal, fmt.Sprint("more ", now), now)
		if q.NextHigh(10+now) != &high || q.high.flow != high.in {
			t.Errorf("it looked at the flow %s", q.high.flow.key)
		}
		q.Take(&high)
		q.NextHigh(10 + now)
	}
}
