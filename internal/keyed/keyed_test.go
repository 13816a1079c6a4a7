package keyed

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"
)

// until is a state that is as good as new from an instant on; forever is one
// that is Pinned.
type until int64

const forever until = -1

func rank(v *until, now int64) int64 {
	if *v == forever {
		return Pinned
	}
	return int64(*v) - now
}

// put sets the key's state, or reports that there was no place.
func put(m *Map[until], key string, now int64, v until) bool {
	s, h := m.Shard(key)
	s.Lock()
	defer s.Unlock()
	p, ok := s.Put(h, now)
	if ok {
		*p = v
	}
	return ok
}

func get(m *Map[until], key string) (until, bool) {
	s, h := m.Shard(key)
	s.Lock()
	defer s.Unlock()
	if p := s.Get(h); p != nil {
		return *p, true
	}
	return 0, false
}

// intact checks that every entry of every shard is found from its home, and
// that the counts are right.
func intact[V any](t *testing.T, m *Map[V]) {
	t.Helper()
	total := 0
	for i := range m.shards {
		s := &m.shards[i]
		n := 0
		for slot := range s.slots {
			h := s.slots[slot].hash
			if h == 0 {
				continue
			}
			n++
			if at, ok := s.find(h); !ok || at != slot || m.At(h) != s {
				t.Fatalf("shard %d: the entry in slot %d is not found", i, slot)
			}
		}
		if n != s.n || 4*n > 3*len(s.slots) {
			t.Fatalf("shard %d: %d of %d slots used, counted %d", i, n, len(s.slots), s.n)
		}
		total += n
	}
	if total != m.Len() {
		t.Fatalf("%d entries, counted %d", total, m.Len())
	}
}

// TestModel walks at random beside a plain map. Nothing is idle and there is
// room, so both must hold the same at all times.
func TestModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m, model := New(5000, rank), map[string]until{}
	for step := range 60_000 {
		key := fmt.Sprint(r.IntN(3000))
		switch r.IntN(5) {
		case 0, 1:
			v := until(1 + r.IntN(1000))
			put(m, key, 0, v)
			model[key] = v
		case 2:
			s, h := m.Shard(key)
			s.Lock()
			s.Delete(h)
			s.Unlock()
			delete(model, key)
		case 3:
			want, had := model[key]
			if v, ok := get(m, key); ok != had || v != want {
				t.Fatalf("step %d: %v %v, want %v %v", step, v, ok, want, had)
			}
		case 4:
			if step%500 != 0 {
				continue
			}
			// Drop the odd ones, meeting each exactly once.
			met := 0
			m.Each(func(v *until) bool { met++; return *v%2 == 0 })
			if met != len(model) {
				t.Fatalf("step %d: met %d of %d", step, met, len(model))
			}
			for k, v := range model {
				if v%2 != 0 {
					delete(model, k)
				}
			}
		}
		if m.Len() != len(model) {
			t.Fatalf("step %d: %d held, want %d", step, m.Len(), len(model))
		}
	}
	intact(t, m)
	if len(m.shards) == 1 || m.Evicted() != 0 {
		t.Errorf("%d shards, %d evicted", len(m.shards), m.Evicted())
	}
}

func TestPutKeepsTheState(t *testing.T) {
	m := New(10, rank)
	s, h := m.Shard("a")
	s.Lock()
	defer s.Unlock()
	p, _ := s.Put(h, 0)
	*p = 7
	if again, ok := s.Put(h, 0); !ok || *again != 7 || again != s.Get(h) {
		t.Error("a second Put made another state")
	}
	s.Delete(h)
	if p, _ := s.Put(h, 0); *p != 0 {
		t.Error("a state outlived its Delete")
	}
}

// TestFullCapacity: a map takes exactly max, whatever the hashes, and then
// drops one for each that comes.
func TestFullCapacity(t *testing.T) {
	for _, max := range []int{1, 2, 10, 1000, 5000, 20_000} {
		m := New(max, rank)
		for i := range max {
			put(m, fmt.Sprint(i), 0, 100)
		}
		if m.Len() != max || m.Evicted() != 0 {
			t.Errorf("max %d: %d held, %d evicted", max, m.Len(), m.Evicted())
		}
		for i := range max {
			if !put(m, fmt.Sprint("more", i), 0, 100) {
				t.Fatalf("max %d: no place", max)
			}
		}
		if m.Len() != max || m.Evicted() != uint64(max) {
			t.Errorf("max %d: %d held, %d evicted after twice as many", max, m.Len(), m.Evicted())
		}
		intact(t, m)
	}
}

func TestBoundUnderConcurrency(t *testing.T) {
	for _, max := range []int{1, 10, 3000} {
		m := New(max, rank)
		var all sync.WaitGroup
		for g := range 4 {
			all.Go(func() {
				for i := range 4000 {
					put(m, fmt.Sprint(g, "/", i), int64(i), until(i+1000))
					if n := m.Len(); n > max {
						t.Errorf("%d held, at most %d", n, max)
						return
					}
				}
			})
		}
		all.Go(func() {
			for range 20 {
				m.Lock()
				n := 0
				m.EachLocked(func(*until) bool { n++; return true })
				if n > max || n != m.Len() {
					t.Errorf("%d held, counted %d, at most %d", n, m.Len(), max)
				}
				m.Unlock()
				m.Each(func(v *until) bool { return *v%3 != 0 })
			}
		})
		all.Wait()
		intact(t, m)
	}
}

func TestExhaustedSurvivesAFlood(t *testing.T) {
	const max = 3000
	m := New(max, rank)
	put(m, "exhausted", 0, 1_000_000)
	for i := range 10 * max {
		put(m, fmt.Sprint(i), int64(i), until(i+10_000))
	}
	if _, ok := get(m, "exhausted"); !ok {
		t.Error("a flood of fresh keys dropped the exhausted one")
	}
}

// TestIdleGoesFirst: of a map mostly of idle states, none with debt is dropped
// while there are idle ones, and the map shrinks though keys are added.
func TestIdleGoesFirst(t *testing.T) {
	const max = 4000
	m := New(max, rank)
	for i := range max {
		v := until(1)
		if i%4 == 0 {
			v = 1001
		}
		put(m, fmt.Sprint(i), 0, v)
	}
	for i := range max / 4 {
		put(m, fmt.Sprint("more", i), 500, 2000)
	}
	if m.Evicted() != 0 {
		t.Errorf("%d with debt evicted while idle ones were there", m.Evicted())
	}
	if m.Len() > max-max/20 {
		t.Errorf("%d held: new keys did not sweep", m.Len())
	}
	intact(t, m)
}

func TestPinned(t *testing.T) {
	const max = 3000
	m := New(max, rank)
	for i := range max {
		put(m, fmt.Sprint(i), 0, forever)
	}
	if put(m, "one more", 0, 1) || m.Len() != max || m.Evicted() != 0 {
		t.Errorf("a map full of pinned states took another: %d held", m.Len())
	}
	for i := range max {
		if _, ok := get(m, fmt.Sprint(i)); !ok {
			t.Fatalf("pinned state %d is gone", i)
		}
	}
	// What one shard alone could drop makes place for keys of the others.
	may := &m.shards[0]
	may.Lock()
	may.each(func(v *until) bool { *v = 5; return true })
	n := may.n
	may.Unlock()
	placed := 0
	for i := 0; placed < n/2 && i < max; i++ {
		key := fmt.Sprint("more", i)
		if s, _ := m.Shard(key); s != may && put(m, key, 0, forever) {
			placed++
		}
	}
	if placed < n/2 || m.Len() != max {
		t.Errorf("%d of %d found a place, %d held", placed, n/2, m.Len())
	}
	intact(t, m)
}

func TestResize(t *testing.T) {
	m := New(5000, rank)
	for i := range 5000 {
		v := until(10)
		if i < 50 {
			v = forever
		}
		put(m, fmt.Sprint(i), 0, v)
	}
	resize := func(max int) {
		t.Helper()
		m.Lock()
		m.ResizeLocked(max, 0)
		m.Unlock()
		intact(t, m)
	}
	resize(500)
	least, most := 500, 0
	for i := range m.shards {
		least, most = min(least, m.shards[i].n), max(most, m.shards[i].n)
	}
	if m.Len() != 500 || most-least > 2 {
		t.Errorf("%d held, from %d to %d in a shard", m.Len(), least, most)
	}
	resize(60)
	if m.Len() != 60 {
		t.Errorf("%d held, want 60", m.Len())
	}
	resize(20)
	if m.Len() != 50 {
		t.Errorf("%d held, want the 50 pinned", m.Len())
	}
	if put(m, "more", 0, 1) {
		t.Error("there was a place above the bound")
	}
	resize(100)
	for i := range 200 {
		put(m, fmt.Sprint("more", i), 0, 1)
	}
	if m.Len() != 100 {
		t.Errorf("%d held, want 100", m.Len())
	}
}

// TestOrder: shards of all maps have one order, and each its own place.
func TestOrder(t *testing.T) {
	seen := map[uint64]bool{}
	for range 5 {
		m := New(10_000, rank)
		for i := range m.shards {
			if o := m.shards[i].Order; seen[o] || i > 0 && o <= m.shards[i-1].Order {
				t.Fatalf("order %d of shard %d", o, i)
			} else {
				seen[o] = true
			}
		}
	}
}

// TestMemoryIsBounded: keys that come and go leave nothing behind.
func TestMemoryIsBounded(t *testing.T) {
	const max = 20_000
	m := New(max, rank)
	slots := func() (n int) {
		for i := range m.shards {
			n += len(m.shards[i].slots)
		}
		return n
	}
	for i := range 5 * max {
		put(m, fmt.Sprint(i), int64(i), until(i+1_000_000))
	}
	// The fullest shard holds some more than the mean, and growing adds a quarter.
	if n := slots(); n > 2*max {
		t.Errorf("%d slots for %d states", n, max)
	}
	intact(t, m)
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{1, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := New(n, rank)
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprint(i)
				put(m, keys[i], 0, 1)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				get(m, keys[i])
				if i += 7919; i >= n {
					i %= n
				}
			}
		})
	}
}

// BenchmarkFlood is what a new key costs that pushes another out.
func BenchmarkFlood(b *testing.B) {
	m := New(100_000, rank)
	i := 0
	key := make([]byte, 8)
	b.ReportAllocs()
	for b.Loop() {
		i++
		for j := range key {
			key[j] = byte(i >> (8 * j))
		}
		put(m, string(key), int64(i), until(i+1_000_000))
	}
}

// TestTidy: what has faded goes, whichever keys are asked for and whatever locks
// are held, and nothing else does.
func TestTidy(t *testing.T) {
	m := New(100_000, rank)
	for i := range 20_000 {
		put(m, fmt.Sprint(i), 0, until(10+10*(i%2)))
	}
	s, _ := m.Shard("held")
	s.Lock()
	for range 40_000 * tidyEach {
		m.Tidy(15)
	}
	left := s.n
	s.Unlock()
	if n := m.Len() - left; n > 10_000 || n < 10_000-left {
		t.Errorf("%d states left of 10 000, and %d under the lock that is held", n, left)
	}
	for range 40_000 * tidyEach {
		m.Tidy(15)
	}
	if m.Len() != 10_000 {
		t.Errorf("%d states left of 10 000", m.Len())
	}
	intact(t, m)
}

// TestShardIsACacheLine: neighbours share none.
func TestShardIsACacheLine(t *testing.T) {
	if n := unsafe.Sizeof(Shard[[3]int64]{}); n != 64 {
		t.Errorf("a shard has %d bytes", n)
	}
}
