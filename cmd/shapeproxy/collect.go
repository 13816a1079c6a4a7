package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The garbage that may pile up before the collector runs. Next to that, the heap
// of a proxy that holds few requests is nothing, and GOGC's default, twice the
// heap, would have the collector run some ten times a second. With many
// requests waiting, what piles up must stay small beside them.
const (
	garbageAllowed = 32 << 20
	leastPercent   = 50
	mostPercent    = 1600
)

// tuneCollector sets GOGC to what the heap asks for, now and after each
// collection. An operator's own GOGC is left alone.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	// A sentinel that nothing holds is finalized by the next collection. Without
	// the pointer it would share a block with other small objects, and be kept as
	// long as the last of them.
	type sentinel struct {
		percent int
		_       *byte
	}
	var tune func(*sentinel)
	tune = func(s *sentinel) {
		if p := percentFor(liveHeap()); p != s.percent {
			s.percent = p
			debug.SetGCPercent(p)
		}
		runtime.SetFinalizer(s, tune)
	}
	tune(new(sentinel))
}

// percentFor is the GOGC that lets about garbageAllowed pile up on a heap of
// live bytes. It is rounded, as setting it stops the world for a moment.
func percentFor(live uint64) int {
	p := garbageAllowed * 100 / max(live, 1)
	return int(min(max(p, leastPercent), mostPercent)) / 10 * 10
}

// liveHeap is what the last collection left.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return garbageAllowed // a runtime that does not tell
	}
	return sample[0].Value.Uint64()
}
