package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
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

// What a crowd has left behind when it is quiet again is given back to the
// system: the runtime would keep it for minutes.
const (
	quietFor       = 10 * time.Second
	worthReturning = 8 << 20
)

// tuneCollector sets GOGC to what the heap asks for, now and after each
// collection, and has memory given back after a crowd. An operator's own GOGC
// is left alone.
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
	var watched atomic.Bool
	var tune func(*sentinel)
	tune = func(s *sentinel) {
		now := readHeap()
		if p := percentFor(now.live); p != s.percent {
			s.percent = p
			debug.SetGCPercent(p)
		}
		if !watched.Swap(true) {
			returnWhenQuiet(now, func() { watched.Store(false) })
		}
		runtime.SetFinalizer(s, tune)
	}
	tune(new(sentinel))
}

// returnWhenQuiet looks every quietFor whether there has been quiet, gives back
// then what is worth it, and calls done.
func returnWhenQuiet(before heap, done func()) {
	time.AfterFunc(quietFor, func() {
		now := readHeap()
		if !now.quietSince(before) {
			returnWhenQuiet(now, done)
			return
		}
		done()
		if now.spare >= worthReturning {
			debug.FreeOSMemory()
		}
	})
}

// percentFor is the GOGC that lets about garbageAllowed pile up on a heap of
// live bytes. It is rounded, as setting it stops the world for a moment.
func percentFor(live uint64) int {
	p := garbageAllowed * 100 / max(live, 1)
	return int(min(max(p, leastPercent), mostPercent)) / 10 * 10
}

// A heap is how the runtime's stands.
type heap struct {
	live       uint64 // what the last collection left
	spare      uint64 // what is held beside that
	collection uint64 // how many there have been
}

// quietSince reports whether next to nothing has happened since.
func (h heap) quietSince(before heap) bool { return h.collection-before.collection <= 1 }

func readHeap() heap {
	sample := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(sample)
	value := func(i int) uint64 {
		if sample[i].Value.Kind() != metrics.KindUint64 {
			return 0 // a runtime that does not tell
		}
		return sample[i].Value.Uint64()
	}
	h := heap{live: value(0), collection: value(3)}
	if held := value(1) + value(2); held > h.live {
		h.spare = held - h.live
	}
	return h
}
