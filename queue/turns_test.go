package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A waiting is a place in the model.
type waiting struct {
	id    int
	class Class
	flow  string
	since int64
	level Class
	cost  int64
}

// A model is Turns in its slow and obvious form: a list of everybody in order of
// arrival, and a ring of flows for each level.
type model struct {
	ageing int64
	all    []*waiting
	rings  [3][]string
}

// age takes the promotions one by one, in the order of their instants.
func (m *model) age(now int64) {
	for m.ageing > 0 {
		var next *waiting
		var first int64
		for _, w := range m.all {
			at := w.since + m.ageing*int64(w.class-w.level+1)
			if w.level > High && at <= now && (next == nil || at < first) {
				next, first = w, at
			}
		}
		if next == nil {
			return
		}
		next.level--
		m.tidy()
	}
}

// tidy lets flows join and leave the rings.
func (m *model) tidy() {
	for l := range m.rings {
		has := func(flow string) bool {
			return slices.ContainsFunc(m.all, func(w *waiting) bool { return w.level == Class(l) && w.flow == flow })
		}
		m.rings[l] = slices.DeleteFunc(m.rings[l], func(flow string) bool { return !has(flow) })
		for _, w := range m.all {
			if w.level == Class(l) && !slices.Contains(m.rings[l], w.flow) {
				m.rings[l] = append(m.rings[l], w.flow)
			}
		}
	}
}

func (m *model) push(w *waiting, now int64) {
	m.age(now)
	m.all = append(m.all, w)
	m.tidy()
}

func (m *model) next(now int64) *waiting {
	m.age(now)
	for l := range m.rings {
		if len(m.rings[l]) > 0 {
			for _, w := range m.all {
				if w.level == Class(l) && w.flow == m.rings[l][0] {
					return w
				}
			}
		}
	}
	return nil
}

// costs are what those of each class cost.
func (m *model) costs() (sums [3]int64) {
	for _, w := range m.all {
		sums[w.class] += w.cost
	}
	return sums
}

func (m *model) remove(w *waiting) {
	m.all = slices.DeleteFunc(m.all, func(o *waiting) bool { return o == w })
	m.tidy()
}

func (m *model) take(w *waiting) {
	m.remove(w)
	if ring := m.rings[w.level]; slices.Contains(ring, w.flow) {
		i := slices.Index(ring, w.flow)
		m.rings[w.level] = append(slices.Delete(slices.Clone(ring), i, i+1), w.flow)
	}
}

func (m *model) places(flow string) (n int) {
	for _, w := range m.all {
		if w.flow == flow {
			n++
		}
	}
	return n
}

// victims is everybody who may have to go: several flows may hold the most.
func (m *model) victims(class Class, flow string, now int64) (may []int) {
	m.age(now)
	for l := Low; l > class; l-- {
		for _, w := range slices.Backward(m.all) {
			if w.level == l {
				return []int{w.id}
			}
		}
	}
	most := 0
	for _, w := range m.all {
		most = max(most, m.places(w.flow))
	}
	if most < m.places(flow)+2 {
		return nil
	}
	seen := map[string]bool{}
	for _, w := range slices.Backward(m.all) {
		if m.places(w.flow) == most && w.level == class && !seen[w.flow] {
			seen[w.flow] = true
			may = append(may, w.id)
		}
	}
	return may
}

// ahead lets everybody out before a newcomer, and counts, and adds up the costs.
func (m *model) ahead(class Class, flow string, now int64) (n int, cost int64) {
	m.age(now)
	trial := model{all: slices.Clone(m.all)}
	for l := range m.rings {
		trial.rings[l] = slices.Clone(m.rings[l])
	}
	me := &waiting{id: -1, class: class, level: class, flow: flow}
	trial.all = append(trial.all, me)
	trial.tidy()
	for ; ; n++ {
		w := trial.next(now)
		if w == me {
			return n, cost
		}
		cost += w.cost
		trial.take(w)
	}
}

func walkTurns(t *testing.T, steps int, pick func(int) int) {
	q := Turns[int]{Ageing: int64(pick(3)) * 10}
	m := model{ageing: q.Ageing}
	flows := 1 + pick(4)
	places := map[int]*Place[int]{}
	now := int64(0)
	for step := range steps {
		now += int64(pick(6))
		class, key := Class(pick(3)), fmt.Sprint(pick(flows))

		var got, want int = -1, -1
		if p := q.Next(now); p != nil {
			got = p.Value
		}
		w := m.next(now)
		if w != nil {
			want = w.id
		}
		if got != want || q.Len() != len(m.all) {
			t.Fatalf("step %d: next %d of %d, want %d of %d", step, got, q.Len(), want, len(m.all))
		}
		high := q.First(now, func(p *Place[int]) bool { return p.class == High })
		if got := q.NextHigh(now); got != high {
			t.Fatalf("step %d: the next of class high is %+v, want %+v", step, got, high)
		}
		for c, sum := range m.costs() {
			if got := q.CostOf(Class(c)); got != sum {
				t.Fatalf("step %d: those of class %s cost %d, want %d", step, Class(c), got, sum)
			}
		}
		ahead, before := q.Ahead(class, key, now)
		exact, dues := m.ahead(class, key, now)
		if ahead < exact || (m.places(key) == 0 || flows == 1) && ahead > exact && m.onlyLevel(class) {
			t.Fatalf("step %d: ahead %d, want %d", step, ahead, exact)
		}
		least, most := q.Costs()
		if before < dues || before > int64(ahead)*most || flows == 1 && before > dues && m.onlyLevel(class) {
			t.Fatalf("step %d: %d ahead cost %d, want %d that cost %d", step, ahead, before, exact, dues)
		}
		upTo, by := 0, now+int64(pick(30))
		var upToCost, total int64
		joined := false
		for _, w := range m.all {
			total += w.cost
			if w.cost < least || w.cost > most {
				t.Fatalf("step %d: costs from %d to %d, and one of %d", step, least, most, w.cost)
			}
			if w.level <= class {
				upTo++
				upToCost += w.cost
			} else if m.ageing > 0 && w.since+m.ageing*int64(w.class-class) <= by {
				joined = true
			}
		}
		n, cost := q.UpTo(class, now)
		if j := q.Joined(class, by); n != upTo || cost != upToCost || j != joined {
			t.Fatalf("step %d: %d up to class %d that cost %d, joined by %d: %v; want %d, %d, %v", step, n, class, cost, by, j, upTo, upToCost, joined)
		}
		if q.Cost() != total {
			t.Fatalf("step %d: all cost %d, want %d", step, q.Cost(), total)
		}
		may := m.victims(class, key, now)
		if v := q.Victim(class, key, now); v == nil && len(may) > 0 || v != nil && !slices.Contains(may, v.Value) {
			t.Fatalf("step %d: victim %v, want one of %v", step, v, may)
		}

		switch op := pick(10); {
		case op < 5:
			p := &Place[int]{Value: step, Cost: int64(pick(4))}
			places[step] = p
			q.Push(p, class, key, now)
			m.push(&waiting{step, class, key, now, class, p.Cost}, now)
		case op < 8 && w != nil:
			if !q.Take(places[w.id]) || q.Take(places[w.id]) {
				t.Fatalf("step %d: Take must work once", step)
			}
			m.take(w)
		case len(m.all) > 0:
			w := m.all[pick(len(m.all))]
			if !q.Remove(places[w.id]) || q.Remove(places[w.id]) {
				t.Fatalf("step %d: Remove must work once", step)
			}
			m.remove(w)
		}
	}
	for q.Len() > 0 {
		q.Take(q.Next(now))
	}
	if q.Flows() != 0 || len(q.sizes) != 0 || q.Cost() != 0 || q.levels != [classes]level[int]{} {
		t.Fatalf("%d flows and %d sizes left, and a cost of %d", q.Flows(), len(q.sizes), q.Cost())
	}
}

// onlyLevel reports whether all who wait count as l, which is when Ahead is
// exact: it takes a flow's places of all levels for its turns.
func (m *model) onlyLevel(l Class) bool {
	return !slices.ContainsFunc(m.all, func(w *waiting) bool { return w.level != l })
}

func TestTurnsAgainstModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		walkTurns(t, 150, r.IntN)
	}
}

func FuzzTurns(f *testing.F) {
	for seed := range byte(8) {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(i)*seed + byte(i>>3)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i := 0
		walkTurns(t, min(len(data)/6, 200), func(n int) int {
			if i >= len(data) {
				return 0
			}
			i++
			return int(data[i-1]) % n
		})
	})
}

// With one class and one flow it is first come, first out.
func TestTurnsOfOneFlow(t *testing.T) {
	var q Turns[int]
	var want []int
	r := rand.New(rand.NewPCG(1, 2))
	places := map[int]*Place[int]{}
	for i := range 5000 {
		if p := q.Next(0); (p == nil) != (len(want) == 0) || p != nil && p.Value != want[0] {
			t.Fatalf("step %d: %v, want one of %v", i, p, want)
		}
		switch op := r.IntN(5); {
		case op < 2 && len(want) > 0:
			q.Take(q.Next(0))
			want = want[1:]
		case op < 3 && len(want) > 0:
			k := r.IntN(len(want))
			if !q.Remove(places[want[k]]) {
				t.Fatal("not removed")
			}
			want = slices.Delete(slices.Clone(want), k, k+1)
		default:
			places[i] = &Place[int]{Value: i}
			q.Push(places[i], Normal, "", 0)
			want = append(want, i)
		}
	}
}

// A flow that pours in fills its share and no more.
func TestTurnsFloodFillsItsShare(t *testing.T) {
	const room = 100
	var q Turns[string]
	arrive := func(key string) bool {
		if q.Len() == room {
			v := q.Victim(Normal, key, 0)
			if v == nil {
				return false
			}
			q.Remove(v)
		}
		q.Push(&Place[string]{Value: key}, Normal, key, 0)
		return true
	}
	for range 500 {
		arrive("flood")
	}
	for i := range 9 {
		for range 20 {
			arrive(fmt.Sprint("client", i))
		}
	}
	counts := map[string]int{}
	for range 40 {
		p := q.Next(0)
		counts[p.Value]++
		q.Take(p)
	}
	for key, n := range counts {
		if n != 4 {
			t.Errorf("%s had %d of 40 turns, want 4", key, n)
		}
	}
	if len(counts) != 10 {
		t.Errorf("%d flows had turns", len(counts))
	}
}

// The wait of Low is bounded: after 2 × Ageing no newcomer overtakes it.
func TestTurnsLowIsNotStarved(t *testing.T) {
	q := Turns[string]{Ageing: 100}
	q.Push(&Place[string]{Value: "low"}, Low, "", 0)
	for now := int64(1); ; now++ {
		q.Push(&Place[string]{Value: "high"}, High, "", now)
		p := q.Next(now)
		q.Take(p)
		if p.Value == "low" {
			if now != 200 {
				t.Errorf("low went at %d, want 200", now)
			}
			return
		}
		if now > 1000 {
			t.Fatal("low is starved")
		}
	}
}

func BenchmarkTurns(b *testing.B) {
	for _, flows := range []int{1, 1000} {
		for _, n := range []int{10, 100_000} {
			b.Run(fmt.Sprintf("flows=%d/waiting=%d", flows, n), func(b *testing.B) {
				keys := make([]string, flows)
				for i := range keys {
					keys[i] = fmt.Sprint("client", i)
				}
				q := Turns[int]{Ageing: 2e9}
				for i := range n {
					q.Push(&Place[int]{}, Class(i%3), keys[i%flows], int64(i))
				}
				b.ReportAllocs()
				i := n
				for b.Loop() {
					p := q.Next(int64(i))
					q.Take(p)
					q.Push(p, Class(i%3), keys[i%flows], int64(i))
					i++
				}
			})
		}
	}
}
