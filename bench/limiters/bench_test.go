package limiters

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const (
	million = 1_000_000
	spread  = 0x9e3779b97f4a7c15 // odd, so that multiples are all different, and in no order
)

var (
	// endless refuses nothing, however often one key is asked for.
	endless = quota{1_000_000_000, time.Second}
	// slow lets each key pass a thousand times and remembers what it has used
	// for 36 s a request, which is longer than anything here takes: no state is
	// as good as new, and so none can be dropped for nothing.
	slow = quota{1000, 10 * time.Hour}
)

// A text is keys of 16 bytes, one after the other in memory in the order in
// which they will be asked for, so that reading them is no part of what is
// measured.
type text string

func keys(n int) text {
	var s strings.Builder
	s.Grow(16 * n)
	var raw [8]byte
	for i := range n {
		binary.BigEndian.PutUint64(raw[:], uint64(i)*spread)
		s.WriteString(hex.EncodeToString(raw[:]))
	}
	return text(s.String())
}

func (t text) len() int         { return len(t) / 16 }
func (t text) key(i int) string { return string(t[16*i : 16*i+16]) }

// fill asks for each key once, in another order, and says by how much the heap
// grew for each. Whoever keeps a key's text keeps a copy.
func fill(t text, allow func(string) bool) (bytes float64) {
	before := heap()
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(t.len()) {
		allow(strings.Clone(t.key(i)))
	}
	return float64(heap()-before) / float64(t.len())
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// measure asks for the keys of t in turn, from all processors, each from a
// place of its own. cpu-ns/op is the processors' time that one decision takes,
// which is what to compare on a machine that others use too: about ns/op times
// the processors where nobody does.
func measure(b *testing.B, t text, allow func(string) bool) {
	var refused, goroutines atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	used := cpu()
	b.RunParallel(func(pb *testing.PB) {
		n, no := t.len(), int64(0)
		i := int(goroutines.Add(1)) * n / 2 % n
		for pb.Next() {
			if !allow(t.key(i)) {
				no++
			}
			if i++; i == n {
				i = 0
			}
		}
		refused.Add(no)
	})
	b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
	if n := refused.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "refused/op")
	}
}

// cpu is the processors' time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOneKey is a decision on one key, that all processors contend for.
func BenchmarkOneKey(b *testing.B) {
	t := keys(1)
	for _, s := range subjects {
		allow := s.open(b, 1, endless)
		b.Run(s.name, func(b *testing.B) { measure(b, t, allow) })
	}
}

// BenchmarkMillionKeys is a decision on any of a million known keys, and the
// heap that each takes.
func BenchmarkMillionKeys(b *testing.B) {
	t := keys(million)
	for _, s := range subjects {
		parent := b
		var allow func(string) bool
		var bytes float64
		b.Run(s.name, func(b *testing.B) {
			if allow == nil {
				open := s.open(parent, million, slow)
				bytes = fill(t, open)
				allow = open
			}
			measure(b, t, allow)
			b.ReportMetric(bytes, "B/key")
		})
	}
}

// BenchmarkAlgorithms is BenchmarkMillionKeys for each of shapeproxy's
// algorithms, each key's second request in its window at the earliest.
func BenchmarkAlgorithms(b *testing.B) {
	t := keys(million)
	for _, a := range limiter.Algorithms {
		var l *limiter.Limit
		var bytes float64
		b.Run(string(a), func(b *testing.B) {
			if l == nil {
				l = openOurs(b, a, million, slow)
				bytes = fill(t, l.Allow)
			}
			measure(b, t, l.Allow)
			b.ReportMetric(bytes, "B/key")
		})
	}
}

// BenchmarkGrowth is what a decision costs as the keys become more, beside the
// same for the sketch and for going from one place to another anywhere in a
// table of the size of the keys' states: a cache miss. The fewer keys, the oftener each is
// asked for: so below a million their limit is such that none is refused.
func BenchmarkGrowth(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000, million, 10 * million} {
		q := slow
		if n < million {
			q = endless
		}
		t := keys(n)
		table := make([]int, 5*n) // 40 bytes a key
		at := rand.New(rand.NewPCG(1, 1)).Perm(n)
		for i, from := range at {
			table[5*from] = at[(i+1)%n]
		}
		b.Run(fmt.Sprintf("miss/keys=%d", n), func(b *testing.B) {
			var goroutines, sum atomic.Int64
			used := cpu()
			b.RunParallel(func(pb *testing.PB) {
				i := at[int(goroutines.Add(1))*n/2%n]
				for pb.Next() {
					i = table[5*i]
				}
				sum.Add(int64(i))
			})
			b.ReportMetric(float64(cpu()-used)/float64(b.N), "cpu-ns/op")
		})
		for _, s := range subjects[:3] {
			var allow func(string) bool
			b.Run(fmt.Sprintf("%s/keys=%d", s.name, n), func(b *testing.B) {
				if allow == nil {
					open := s.open(b, n, q)
					fill(t, open)
					allow = open
				}
				measure(b, t, allow)
			})
		}
	}
}

// BenchmarkFlood is a full table of a million keys that have all used
// something, while one goroutine invents keys without end. Timed is each
// decision of another on keys of its own, known and forgotten ones. The
// longest, the 99.99th percentile and how many took more than a millisecond
// stand beside those of timing nothing at all, which only the machine and the
// runtime are to blame for.
func BenchmarkFlood(b *testing.B) {
	p := limiter.Policy{Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 10, Per: time.Hour}, Burst: 10, MaxKeys: million}
	l, err := limiter.New(p)
	if err != nil {
		b.Fatal(err)
	}
	t := keys(million)
	fill(t, l.Allow)
	for _, of := range []struct {
		name  string
		allow func(string) bool
	}{{"decision", l.Allow}, {"nothing", func(string) bool { return true }}} {
		b.Run(of.name, func(b *testing.B) {
			var stop atomic.Bool
			done := make(chan int)
			go func() {
				key, n := make([]byte, 16), 0
				for ; !stop.Load(); n++ {
					binary.LittleEndian.PutUint64(key, uint64(n))
					l.Allow(string(key))
				}
				done <- n
			}()
			took := newTally()
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				of.allow(t.key(i % million))
				took.add(time.Since(start))
			}
			stop.Store(true)
			b.ReportMetric(float64(<-done)/b.Elapsed().Seconds(), "flood/s")
			b.ReportMetric(took.quantile(0.9999).Seconds()*1e6, "p99.99-us")
			b.ReportMetric(took.most.Seconds()*1e6, "max-us")
			b.ReportMetric(float64(took.long)*1e6/float64(took.n), "over-1ms/million")
		})
	}
	if l.Keys() > million || l.Evicted() == 0 {
		b.Errorf("%d keys, %d evicted", l.Keys(), l.Evicted())
	}
}

// A tally counts durations by the microsecond.
type tally struct {
	n    int
	long int // above a millisecond
	most time.Duration
	by   []int // the last counts all that are longer
}

func newTally() *tally { return &tally{by: make([]int, 100_000)} }

func (t *tally) add(d time.Duration) {
	t.n++
	if t.most = max(t.most, d); d > time.Millisecond {
		t.long++
	}
	t.by[min(int(d/time.Microsecond), len(t.by)-1)]++
}

func (t *tally) quantile(q float64) time.Duration {
	left := int(float64(t.n) * (1 - q))
	for i := len(t.by) - 1; i > 0; i-- {
		if left -= t.by[i]; left < 0 {
			return time.Duration(i+1) * time.Microsecond
		}
	}
	return time.Microsecond
}
