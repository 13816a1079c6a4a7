package shaping

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func newBucket(t *testing.T, rate string, queue int) *bucket {
	t.Helper()
	r, err := limiter.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Policy{Rate: r, Burst: 1, Queue: queue, MaxWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b := s.lock("")
	b.mu.Unlock()
	return b
}

func (b *bucket) arrive() (limiter.Decision, *Waiter[turn]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.arriveLocked(b.now(), new(Request))
}

// armed reports whether the timer is set, and stops it.
func (b *bucket) armed() bool { return b.alarm != nil && b.alarm.Stop() }

func ended(w *Waiter[turn]) bool {
	select {
	case <-w.Value.done:
		return true
	default:
		return false
	}
}

func TestTimerRunsOnlyWhileSomebodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, "1/s", 5)
		if b.arrive(); b.alarm != nil {
			t.Fatal("a timer for one that passed")
		}
		_, w1 := b.arrive()
		_, w2 := b.arrive()
		time.Sleep(time.Second)
		synctest.Wait()
		if !ended(w1) || ended(w2) {
			t.Fatal("the first and only the first has its turn after 1 s")
		}
		b.giveUp(w2)
		if b.armed() {
			t.Fatal("a timer while nobody waits")
		}
		_, w3 := b.arrive()
		time.Sleep(time.Second)
		synctest.Wait()
		if !ended(w3) || b.armed() {
			t.Fatal("a timer after the last has left")
		}
	})
}

// The timer is late by three seconds, and an arrival comes before it: it lets
// out the one head that is due, and finds the queue as it then is.
func TestArrivalNeedsNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, "2/s", 3)
		b.arrive()
		_, w1 := b.arrive()
		_, w2 := b.arrive()
		_, w3 := b.arrive()
		if !b.armed() {
			t.Fatal("no timer")
		}
		time.Sleep(3 * time.Second)
		_, w4 := b.arrive()
		if w4 == nil || w4.Ahead != 2 || !ended(w1) || ended(w2) || ended(w3) {
			t.Fatal("the arrival should find the place of the head that was due, and nobody else gone")
		}
		if d := w1.Value.decision; d.Waited != 3*time.Second || d.Remaining != 1 {
			t.Fatalf("%+v", d)
		}
		time.Sleep(500*time.Millisecond - Slack - 1)
		synctest.Wait()
		if ended(w2) {
			t.Fatal("too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !ended(w2) || ended(w3) {
			t.Fatal("the next leaves an interval after the schedule that the stall has set")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !ended(w3) || !ended(w4) {
			t.Fatal("no timer after an arrival let somebody out")
		}
	})
}

// A wake-up that comes before its time finds nobody due, and the one that is
// needed still comes.
func TestEarlyWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, "1/s", 3)
		b.arrive()
		_, w := b.arrive()
		if !b.armed() {
			t.Fatal("no timer")
		}
		time.Sleep(time.Second - 1)
		b.wake()
		if ended(w) {
			t.Fatal("left 1 ns early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		var d limiter.Decision
		if err := b.wait(context.Background(), w, &d); err != nil || !d.Allowed || d.Waited != time.Second {
			t.Fatalf("%+v, %v", d, err)
		}
	})
}

// A change of the limit while the timer is late: who was due stays due, and
// only he.
func TestAdoptWithLateTimer(t *testing.T) {
	for _, rate := range []string{"1/h", "50/s"} {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket(t, "2/s", 3)
			b.arrive()
			_, w1 := b.arrive()
			_, w2 := b.arrive()
			if !b.armed() {
				t.Fatal("no timer")
			}
			time.Sleep(3 * time.Second)
			b.adopt(newBucket(t, rate, 3).rules)
			synctest.Wait()
			time.Sleep(time.Nanosecond) // a timer for now needs the clock to move
			synctest.Wait()
			if !ended(w1) || ended(w2) {
				t.Fatalf("%s: ended %v, %v", rate, ended(w1), ended(w2))
			}
			time.Sleep(b.rules.Rate.Interval())
			synctest.Wait()
			if !ended(w2) {
				t.Fatalf("%s: the next does not leave an interval later", rate)
			}
		})
	}
}
