package shaping

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The bell alone is never early by the clock that queues read, and each
// expiration rings although nobody reads the descriptor.
func TestBellIsNeverEarly(t *testing.T) {
	base := time.Now()
	rung := make(chan int64)
	var expect atomic.Bool
	b, err := newBell(base, func() {
		if expect.Load() {
			rung <- int64(time.Since(base))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	settled := make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() { close(settled) })
	<-settled // a first call for nothing is over
	expect.Store(true)
	for i := range 300 {
		at := int64(time.Since(base)) + int64(i)*1000 - 20_000 // the first are past already
		b.set(at + int64(time.Hour))
		b.set(at)
		if got := <-rung; got < at {
			t.Fatalf("set to %d, rung at %d", at, got)
		}
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
}

// TestAlarmsAreTimers has no bell; this has no timer.
func TestBellAlone(t *testing.T) {
	a := newAlarms(t)
	a.timer.Stop()
	a.timer = time.AfterFunc(never, func() {})
	called := make(chan struct{})
	var alarm alarm
	left := 20
	alarm = a.newAlarm(func() {
		if left--; left == 0 {
			close(called)
			return
		}
		alarm.Reset(time.Duration(left%3) * time.Millisecond)
	})
	alarm.Reset(time.Millisecond)
	<-called
	checkHeap(t, a)
}

// Close returns when the wake at work has returned, and then there is no other.
func TestCloseAlarms(t *testing.T) {
	before := timerfds(t)
	a, err := NewAlarms()
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	entered, leave := make(chan struct{}), make(chan struct{})
	working := a.newAlarm(func() { close(entered); <-leave; calls.Add(1) })
	next := a.newAlarm(func() { calls.Add(100) })
	far := a.newAlarm(func() { calls.Add(100) })
	far.Reset(time.Hour)
	working.Reset(0)
	<-entered
	next.Reset(0)
	closed := make(chan error)
	go func() { closed <- a.Close() }()
	for done := false; !done; { // until next is dropped
		a.mu.Lock()
		done = a.closed
		a.mu.Unlock()
	}
	close(leave)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if next.Reset(0) || far.Reset(0) || next.Stop() || far.Stop() {
		t.Error("something is set after Close")
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("calls add up to %d, want 1", n)
	}
	if err := a.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if n := timerfds(t); n != before {
		t.Errorf("%d descriptors of timers, %d before", n, before)
	}
}

// timerfds counts this process's, where they can be seen.
func timerfds(t *testing.T) (n int) {
	t.Helper()
	all, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range all {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "[timerfd]") {
			n++
		}
	}
	return n
}
