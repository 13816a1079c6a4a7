package shaping_test

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// inUse is how much is in use after a collection, and in how many objects.
func inUse() (bytes, objects uint64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.HeapObjects
}

// crowds are the two ways to be many: in one queue, or each in its own.
var crowds = []struct {
	name string
	key  func(i int) string
	flow func(i int) string
}{
	{"one queue", func(int) string { return "" }, func(int) string { return "" }},
	{"a queue each", strconv.Itoa, func(int) string { return "" }},
	{"one queue and a flow each", func(int) string { return "" }, strconv.Itoa},
}

// A hundred thousand wait, in one queue or in as many; a third leaves, the rest is let out at the pace, and
// nothing is left of them.
func TestManyWait(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand goroutines")
	}
	const n = many
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := q(t, "10000/s", n, time.Hour)
				if c.key(0) != c.key(1) {
					p = q(t, "1/s", 2, time.Hour)
				}
				p.MaxKeys = 2 * n
				s := mustShaper(t, p)
				if c.key(0) != c.key(1) {
					for i := range n {
						s.Acquire(t.Context(), shaping.Request{Key: c.key(i)})
					}
				} else {
					s.Acquire(t.Context(), shaping.Request{Flow: "first"})
				}
				leaves, leave := context.WithCancel(t.Context())
				released, gone := make([]bool, n), make([]bool, n)
				start := time.Now()
				for i := range n {
					ctx := t.Context()
					if i%3 == 0 {
						ctx = leaves
					}
					go func() {
						g, err := s.Acquire(ctx, shaping.Request{Key: c.key(i), Flow: c.flow(i), Class: queue.Class(i % 2)})
						g.Release()
						released[i], gone[i] = g.Allowed, err != nil
					}()
				}
				synctest.Wait()
				if depth := s.Snapshot().Depth; depth != n {
					t.Fatalf("%d wait", depth)
				}
				leave()
				synctest.Wait()
				if depth := s.Snapshot().Depth; depth != n-(n+2)/3 {
					t.Fatalf("%d wait after a third has left", depth)
				}
				time.Sleep(time.Duration(n) * time.Second / 5_000)
				synctest.Wait()
				for i := range n {
					if released[i] == gone[i] || gone[i] != (i%3 == 0) {
						t.Fatalf("request %d: released %v, gone %v after %v", i, released[i], gone[i], time.Since(start))
					}
				}
				if snap := s.Snapshot(); snap.Depth != 0 {
					t.Fatalf("%+v", snap)
				}
			})
		})
	}
}

// What one that waits takes of the heap, beyond its goroutine.
func BenchmarkMemoryOfAWaiter(b *testing.B) {
	const n = many
	for _, c := range crowds {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				p := q(b, "1/h", n, 100*365*24*time.Hour)
				p.MaxKeys = 2 * n
				s := mustShaper(b, p)
				keys, flows := make([]string, n), make([]string, n)
				for i := range n {
					keys[i], flows[i] = c.key(i), c.flow(i)
				}
				before, _ := inUse()
				for i := range n {
					if i == 0 || keys[i] != keys[0] {
						s.Acquire(b.Context(), shaping.Request{Key: keys[i]})
					}
				}
				known, _ := inUse()
				ctx, cancel := context.WithCancel(b.Context())
				gate, ready, done := make(chan bool), make(chan bool, n), make(chan bool, n)
				for i := range n {
					go func() {
						ready <- true
						<-gate
						s.Acquire(ctx, shaping.Request{Key: keys[i], Flow: flows[i]})
						done <- true
					}()
				}
				for range n {
					<-ready
				}
				idle, idleObjects := inUse()
				close(gate)
				for s.Snapshot().Depth < n {
					runtime.Gosched()
				}
				waiting, objects := inUse()
				b.ReportMetric(float64(waiting-idle)/n, "B/waiter")
				b.ReportMetric(float64(objects-idleObjects)/n, "objects/waiter")
				if keys[0] != keys[1] {
					b.ReportMetric(float64(known-before)/n, "B/idle-key")
				}
				cancel()
				for range n {
					<-done
				}
				after, _ := inUse()
				b.ReportMetric(float64(int64(after)-int64(idle))/n, "B/left-over")
				runtime.KeepAlive(s)
				runtime.KeepAlive(keys)
				runtime.KeepAlive(flows)
			}
			b.ReportMetric(float64(unsafe.Sizeof(shaping.Waiter[struct{}]{})), "B/place")
		})
	}
}

// Entering, leaving and giving up in a line with flows, classes and deadlines,
// however many wait.
func BenchmarkLine(b *testing.B) {
	for _, flows := range []int{1, 1000} {
		for _, n := range []int{100, 10_000, 1_000_000} {
			line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(b, "1000000/s"), Burst: 1, Queue: 2 * n, MaxWait: time.Hour, PromoteAfter: time.Minute})
			now := epoch
			entrant := func(i int) shaping.Entrant {
				return shaping.Entrant{Class: queue.Class(i % 3), Flow: strconv.Itoa(i % flows), MaxWait: time.Hour - time.Duration(i*7919%100_000)*time.Millisecond}
			}
			for i := range n + 1 {
				line.Enter(now, entrant(i), i)
			}
			name := "flows=" + strconv.Itoa(flows) + "/waiting=" + strconv.Itoa(n)
			b.Run("EnterCancel/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					_, w, _ := line.Enter(now, entrant(i), i)
					line.Cancel(w)
				}
			})
			b.Run("EnterLeave/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					line.Enter(now, entrant(i), i)
					now = max(now, line.Due(now))
					line.Leave(now)
				}
			})
		}
	}
}
