package admin

import (
	"math/bits"
	"time"
)

// Waits are counted by length: all below a millisecond together, and from there
// eight to the octave, so that what is told of them is right to a sixteenth.
const (
	perOctave   = 8
	octaves     = 22 // to more than an hour
	waitBuckets = 1 + perOctave*octaves
	leastWait   = 10 // 2¹⁰ µs begin the second bucket
)

func waitBucket(d time.Duration) int {
	µs := uint64(max(0, d.Microseconds()))
	octave := bits.Len64(µs) - 1
	if octave < leastWait {
		return 0
	}
	eighth := int(µs>>(octave-3)) & (perOctave - 1)
	return min(1+(octave-leastWait)*perOctave+eighth, waitBuckets-1)
}

// waitOf is the middle of a bucket in seconds; that of the first is none.
func waitOf(bucket int) float64 {
	if bucket == 0 {
		return 0
	}
	octave := leastWait + (bucket-1)/perOctave
	eighth := (bucket - 1) % perOctave
	return (float64(perOctave+eighth) + .5) * float64(uint64(1)<<(octave-3)) / 1e6
}

// A waitMinute is what was waited in the last minute, second by second.
type waitMinute struct {
	before  [waitBuckets]uint64 // the counts as of the last second
	sum     [waitBuckets]uint64
	seconds [][]newWaits // oldest first, at most samplesKept
}

type newWaits struct {
	bucket uint8
	n      uint64
}

// add closes a second; counts are those since the start.
func (m *waitMinute) add(counts *[waitBuckets]uint64) {
	var second []newWaits
	for b, n := range counts {
		if n < m.before[b] { // the limit was removed, and is back
			m.before[b] = 0
		}
		if n -= m.before[b]; n > 0 {
			second = append(second, newWaits{uint8(b), n})
			m.sum[b] += n
		}
	}
	m.before = *counts
	if m.seconds = append(m.seconds, second); len(m.seconds) > samplesKept {
		for _, old := range m.seconds[0] {
			m.sum[old.bucket] -= old.n
		}
		m.seconds = m.seconds[1:]
	}
}

// waitsJSON are the waits, in seconds, that a share of the requests released in
// the last minute did not exceed; those that passed at once waited none.
type waitsJSON struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// percentiles are nil when nobody was released.
func (m *waitMinute) percentiles() *waitsJSON {
	var total uint64
	for _, n := range m.sum {
		total += n
	}
	if total == 0 {
		return nil
	}
	at := func(percent uint64) float64 {
		rank, seen := (total*percent+99)/100, uint64(0)
		for b, n := range m.sum {
			if seen += n; seen >= rank {
				return waitOf(b)
			}
		}
		return 0
	}
	return &waitsJSON{at(50), at(90), at(99)}
}
