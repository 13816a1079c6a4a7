package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
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
