package admin

import (
	"math"
	"testing"
	"time"
)

// Whatever a wait is, it is told to a sixteenth.
func TestWaitBucketsAreRight(t *testing.T) {
	last := -1
	for d := time.Microsecond; d < time.Hour; d += d/40 + 1 {
		b := waitBucket(d)
		if b < last || b > last+1 {
			t.Fatalf("%v is in bucket %d after %d", d, b, last)
		}
		last = b
		got, want := waitOf(b), d.Seconds()
		if d < 1024*time.Microsecond {
			want = 0
		}
		if math.Abs(got-want) > want/16+1e-9 {
			t.Errorf("%v is told as %v s", d, got)
		}
	}
	if waitBucket(-1) != 0 || waitBucket(math.MaxInt64) != waitBuckets-1 {
		t.Error("the ends have no bucket")
	}
	if waitBuckets > math.MaxUint8 {
		t.Error("a bucket has no number in newWaits")
	}
}

func TestWaitsOfTheLastMinute(t *testing.T) {
	var m waitMinute
	var counts [waitBuckets]uint64
	second := func(waits ...time.Duration) {
		for _, d := range waits {
			counts[waitBucket(d)]++
		}
		m.add(&counts)
	}
	second()
	if m.percentiles() != nil {
		t.Error("nobody waited, and there are percentiles")
	}
	for range 9 {
		second(0, 0, 0, 0, 0, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, time.Second)
	}
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/16 }
	if p := m.percentiles(); p.P50 != 0 || !near(p.P90, .1) || !near(p.P99, 1) {
		t.Errorf("%+v", *p)
	}
	second(time.Minute, time.Minute) // 92
	if p := m.percentiles(); !near(p.P99, 60) {
		t.Errorf("%+v", *p)
	}
	for range samplesKept - 1 {
		second()
	}
	if p := m.percentiles(); p == nil || !near(p.P50, 60) {
		t.Errorf("after 59 s, %+v", p)
	}
	second()
	if p := m.percentiles(); p != nil {
		t.Errorf("after a minute, %+v", *p)
	}
	// A limit that was removed and is back counts from nothing.
	counts = [waitBuckets]uint64{}
	second(time.Second)
	if p := m.percentiles(); p == nil || !near(p.P50, 1) {
		t.Errorf("after it was away, %+v", p)
	}
}
