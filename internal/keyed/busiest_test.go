package keyed

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func notice(m *Map[until], key string, now int64) {
	s, h := m.Shard(key)
	s.Lock()
	s.Notice(h, key, now)
	s.Unlock()
}

// Those that are asked for most are found among ten thousand others that are
// not, their counts are not far off, and never below what was counted by more
// than the sample explains.
func TestBusiest(t *testing.T) {
	m := New(100_000, rank)
	r := rand.New(rand.NewPCG(1, 9))
	const asked = 1_000_000
	for range asked {
		switch n := r.IntN(100); {
		case n < 20:
			notice(m, "first", 0)
		case n < 30:
			notice(m, "second", 0)
		case n < 35:
			notice(m, "third", 0)
		default:
			notice(m, fmt.Sprint("other", r.IntN(10_000)), 0)
		}
	}
	top := m.Busiest(3, 0)
	for i, want := range []struct {
		key   string
		share uint64
	}{{"first", 20}, {"second", 10}, {"third", 5}} {
		count := asked * want.share / 100
		// The sample of count/64 is off by some of its roots.
		if b := top[i]; b.Key != want.key || b.Count < count*8/10 || b.Count-b.Error > count*12/10 {
			t.Errorf("%d: %+v, want %s with about %d", i, b, want.key, count)
		}
	}
	if all := m.Busiest(1000, 0); len(all) != namesKept {
		t.Errorf("%d names are kept", len(all))
	}
}

// Whatever is asked for, no more is kept than so many names of so many bytes, and
// nothing is allocated for one that takes the place of another.
func TestBusiestIsBounded(t *testing.T) {
	m := New(1000, rank)
	long := strings.Repeat("x", 1000)
	s, h := m.Shard("0")
	for i := range 64 * namesKept {
		m.busy.count(h+uint64(i), fmt.Sprint(i, long), 0, 16)
	}
	held := 0
	for _, name := range m.busy.names {
		held += cap(name)
	}
	if len(m.busy.names) != namesKept || held > namesKept*nameBytes {
		t.Errorf("%d names in %d bytes", len(m.busy.names), held)
	}
	if b := m.Busiest(1, 0)[0]; !b.Clipped || len(b.Key) != nameBytes {
		t.Errorf("%d bytes, clipped %v", len(b.Key), b.Clipped)
	}
	i := uint64(0)
	if n := testing.AllocsPerRun(1000, func() { i++; m.busy.count(i, long, 0, 16) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	s.Lock() // and it is called under the lock of a shard
	s.Notice(h, "0", 0)
	s.Unlock()
}

// What is no more asked for fades.
func TestBusiestFades(t *testing.T) {
	m := New(1000, rank)
	minute := int64(time.Minute)
	for range 100 {
		m.busy.count(1, "before", 0, 16)
	}
	for at, want := range map[int64]uint64{minute - 1: 1600, minute: 800, 3*minute + 1: 200} {
		fresh := New(1000, rank)
		for range 100 {
			fresh.busy.count(1, "before", 0, 16)
		}
		if got := fresh.Busiest(1, at)[0].Count; got != want {
			t.Errorf("after %v: %d, want %d", time.Duration(at), got, want)
		}
	}
	for range 10 {
		m.busy.count(2, "now", 4*minute, 16)
	}
	if top := m.Busiest(2, 4*minute); top[0].Key != "now" || top[1].Count != 100 {
		t.Errorf("%+v", top)
	}
	if top := m.Busiest(2, 1000*minute); len(top) != 0 {
		t.Errorf("after a day: %+v", top)
	}
}

// Where decisions are few each is counted, and where they are many, few of them.
func TestBusiestCountsWhatItCan(t *testing.T) {
	m := New(1000, rank)
	now := int64(0)
	ask := func(n int, each time.Duration) {
		for range n {
			now += int64(each)
			notice(m, "key", now)
		}
	}
	ask(10_000, time.Millisecond)
	if top := m.Busiest(1, now); top[0].Count != 10_000 || m.busy.oneIn.Load() > 1 {
		t.Errorf("%+v", top)
	}
	ask(100_000, 100*time.Nanosecond)
	if n := m.busy.oneIn.Load(); n != 64 {
		t.Errorf("of 10 million a second one in %d is counted", n)
	}
	if top := m.Busiest(1, now); top[0].Count < 95_000 || top[0].Count > 125_000 {
		t.Errorf("%+v", top)
	}
	ask(200_000, time.Millisecond)
	if n := m.busy.oneIn.Load(); n != 1 {
		t.Errorf("of a thousand a second one in %d is counted", n)
	}
}

// A map of one key names none.
func TestBusiestOfOneKey(t *testing.T) {
	m := New(1, rank)
	for range 100 {
		notice(m, "", 0)
	}
	if top := m.Busiest(1, 0); top != nil || unsafe.Sizeof(*m) > 256 {
		t.Errorf("%+v", top)
	}
}

func BenchmarkNotice(b *testing.B) {
	for _, keys := range []int{1, 1_000_000} {
		b.Run(fmt.Sprint(keys), func(b *testing.B) {
			m := New(keys+1, rank)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("client", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				notice(m, names[i], 0)
				if i++; i == keys {
					i = 0
				}
			}
		})
	}
}
