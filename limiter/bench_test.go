package limiter_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// BenchmarkTake is one decision of one limit, from all processors at once:
// with one key, which all contend for, and with a million, of which each
// goroutine asks for 4096 random ones in turn. B/key is the heap
// that a million keys take, of which each has been charged once.
func BenchmarkTake(b *testing.B) {
	for _, a := range limiter.Algorithms {
		for _, n := range []int{1, 1_000_000} {
			b.Run(fmt.Sprintf("%s/keys=%d", a, n), func(b *testing.B) {
				p := policy(a, 100, time.Hour)
				p.MaxKeys = n
				before := heap()
				m := limiter.NewMemory()
				l, err := m.NewLimit(p)
				if err != nil {
					b.Fatal(err)
				}
				for i := range n {
					l.Take(string(benchKey(make([]byte, 8), i)), 1)
				}
				perKey := float64(heap()-before) / float64(n)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					var into []limiter.Decision
					charge := []limiter.Charge{{Limit: l, Cost: 1}}
					r := rand.New(rand.NewPCG(rand.Uint64(), 0))
					keys := make([]string, 4096)
					for i := range keys {
						keys[i] = string(benchKey(make([]byte, 8), r.IntN(n)))
					}
					for i := 0; pb.Next(); i++ {
						charge[0].Key = keys[i%len(keys)]
						into = m.Take(into[:0], charge)
					}
				})
				if n > 1 {
					b.ReportMetric(perKey, "B/key")
				}
				runtime.KeepAlive(l)
			})
		}
	}
}

// BenchmarkTakeOfThree is a route with three limits, the same key at each.
func BenchmarkTakeOfThree(b *testing.B) {
	m := limiter.NewMemory()
	var charges []limiter.Charge
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowCounter} {
		l, err := m.NewLimit(policy(a, 100, time.Hour))
		if err != nil {
			b.Fatal(err)
		}
		charges = append(charges, limiter.Charge{Limit: l, Key: "known", Cost: 1})
	}
	var into []limiter.Decision
	b.ReportAllocs()
	for b.Loop() {
		into = m.Take(into[:0], charges)
	}
}

// BenchmarkTakeNewKeys is a flood of invented keys on a full limit.
func BenchmarkTakeNewKeys(b *testing.B) {
	l := open(b, policy(limiter.TokenBucket, 100, time.Hour))
	key := make([]byte, 8)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Take(string(benchKey(key, i)), 1)
	}
}

func benchKey(into []byte, i int) []byte {
	binary.LittleEndian.PutUint64(into, uint64(i))
	return into
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
