package limiter

import (
	"testing"
	"time"
)

// TestLogMemory: the ring grows with what it holds, never past the limit, folds
// equal instants, shrinks and is freed.
func TestLogMemory(t *testing.T) {
	m := slidingLog{limit: 100, window: 1000}
	var s logState
	take := func(now, cost int64) {
		m.settle(&s, now)
		if m.wait(s, now, cost) == 0 {
			m.take(&s, now, cost)
		}
		if len(s.ring) > 100 || s.n > len(s.ring) {
			t.Fatalf("%d entries in a ring of %d", s.n, len(s.ring))
		}
	}
	for range 50 {
		take(epoch, 1)
	}
	if s.n != 1 || s.used != 50 || len(s.ring) > 4 {
		t.Errorf("50 at one instant: %d entries in a ring of %d", s.n, len(s.ring))
	}
	for i := range int64(300) {
		take(epoch+i, 1)
	}
	if s.n != 50 || s.used != 100 {
		t.Errorf("%d entries for %d used", s.n, s.used)
	}
	for i := range int64(5000) {
		take(epoch+2000+i, 1)
	}
	if s.n != 100 {
		t.Errorf("%d entries at one a tick", s.n)
	}
	for i := range int64(30) {
		take(epoch+10_000+i*300, 1)
	}
	if len(s.ring) > 16 {
		t.Errorf("a ring of %d for %d entries", len(s.ring), s.n)
	}
	if m.settle(&s, epoch+100_000); s.log != nil {
		t.Errorf("idle, and keeps a ring of %d", len(s.ring))
	}
	take(epoch+100_000, 3)
	take(epoch+100_001, 1)
	m.giveBack(&s, epoch+100_000, epoch+100_001, 3)
	if s.n != 1 || s.used != 1 {
		t.Errorf("%d entries of %d after giving back", s.n, s.used)
	}
	m.giveBack(&s, epoch+100_001, epoch+100_001, 1)
	if s.log != nil {
		t.Error("all given back, and keeps a ring")
	}
}

// TestAdoptKeepsTheLog: the entries live on, so that the limit holds in any
// window across the change.
func TestAdoptKeepsTheLog(t *testing.T) {
	k := newKey(testPolicy(SlidingWindowLog, 10, time.Minute))
	for i := range int64(10) {
		k.take(epoch+i*sec, 1)
	}
	k.adopt(testPolicy(SlidingWindowLog, 4, time.Minute), epoch+20*sec)
	if w := k.peek(epoch+20*sec, 1); w != 46*sec {
		t.Errorf("to wait for %v, want 46s: when the seventh leaves", time.Duration(w))
	}
	k.adopt(testPolicy(SlidingWindowLog, 4, 10*time.Second), epoch+20*sec)
	if n := k.remaining(epoch + 20*sec); n != 4 {
		t.Errorf("%d left of 4 after the shorter window", n)
	}
	// What has left a window does not come back with a longer one.
	k.take(epoch+20*sec, 3)
	k.adopt(testPolicy(SlidingWindowLog, 4, time.Hour), epoch+40*sec)
	if n := k.remaining(epoch + 40*sec); n != 4 {
		t.Errorf("%d left of 4 after the longer window", n)
	}
	// An entry of many is cut.
	k.take(epoch+40*sec, 4)
	k.adopt(testPolicy(SlidingWindowLog, 3, time.Hour), epoch+40*sec)
	k.adopt(testPolicy(SlidingWindowLog, 5, time.Hour), epoch+41*sec)
	k.take(epoch+41*sec, 1)
	if n := k.remaining(epoch + 40*sec + hour); n != 4 {
		t.Errorf("%d left of 5 when an entry that was cut has left", n)
	}
	k.take(epoch+40*sec+hour, 1)
	if n := k.remaining(epoch + 40*sec + hour); n != 3 {
		t.Errorf("%d left of 5 one later", n)
	}
}
