package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

func TestPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 1600, 1 << 20: 1600, 4 << 20: 800, 32 << 20: 100, 64 << 20: 50, 1 << 40: 50} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d %%, want %d", live, got, want)
		}
	}
}

func TestTuneCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(100)
	tuneCollector()
	// Read, not set and set back: that could undo what is tuned meanwhile.
	current := func() int {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	if p := current(); p < 100 {
		t.Fatalf("%d %% for a small heap", p)
	}
	ballast := make([]byte, 256<<20)
	until(t, "a lower GOGC for a larger heap", func() bool { runtime.GC(); return current() == leastPercent })
	runtime.KeepAlive(ballast)
	until(t, "a higher GOGC for a small heap", func() bool { runtime.GC(); return current() > 100 })
}

func TestQuietSince(t *testing.T) {
	before := heap{collection: 10}
	for collections, want := range map[uint64]bool{10: true, 11: true, 12: false} {
		if got := (heap{collection: collections}).quietSince(before); got != want {
			t.Errorf("%d collections: %v, want %v", collections-10, got, want)
		}
	}
	if h := readHeap(); h.live == 0 && h.spare == 0 {
		t.Errorf("the runtime tells nothing: %+v", h)
	}
}

// What a crowd left behind is given back when it has been quiet.
func TestReturnWhenQuiet(t *testing.T) {
	released := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapIdle - m.HeapReleased
	}
	synctest.Test(t, func(t *testing.T) {
		crowd := make([]byte, 64<<20)
		crowd[0] = 1
		runtime.KeepAlive(crowd)
		crowd = nil
		runtime.GC()
		done := false
		returnWhenQuiet(readHeap(), func() { done = true })
		time.Sleep(quietFor + time.Second)
		synctest.Wait()
		if !done || released() > worthReturning {
			t.Errorf("done %v, %d bytes not given back", done, released())
		}
	})
}
