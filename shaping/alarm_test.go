package shaping

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newAlarms(t testing.TB) *Alarms {
	t.Helper()
	a, err := NewAlarms()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// virtualAlarms are Alarms for a bubble: with the timer alone.
func virtualAlarms(t *testing.T) *Alarms {
	a := &Alarms{base: time.Now(), setTo: never}
	a.timer = time.AfterFunc(never, a.ring)
	a.bell = bell{set: func(int64) {}, close: func() error { return nil }}
	t.Cleanup(func() { a.Close() })
	return a
}

// checkHeap reports what is wrong with the order that a keeps, or with its bell.
func checkHeap(t *testing.T, a *Alarms) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range a.pending {
		if p.place != i {
			t.Fatalf("%d believes to be at %d", i, p.place)
		}
		if up := a.pending[max(0, i-1)/2]; up.at > p.at {
			t.Fatalf("%d at %d is above %d at %d", max(0, i-1)/2, up.at, i, p.at)
		}
	}
	if len(a.pending) > 0 && !a.ringing && a.setTo > a.pending[0].at {
		t.Fatalf("the bell is set to %d, and the earliest is at %d", a.setTo, a.pending[0].at)
	}
}

// Any sequence of Reset and Stop has the same calls, at the same instants, from
// Alarms as from timers. Some wakes set or stop alarms themselves.
func TestAlarmsAreTimers(t *testing.T) {
	for seed := range uint64(50) {
		run := func(kind func(t *testing.T) *Alarms) (calls []string) {
			synctest.Test(t, func(t *testing.T) {
				a, start := kind(t), time.Now()
				r := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				logLocked := func(format string, args ...any) {
					calls = append(calls, fmt.Sprint(time.Since(start), " ", fmt.Sprintf(format, args...)))
				}
				log := func(format string, args ...any) {
					mu.Lock()
					defer mu.Unlock()
					logLocked(format, args...)
				}
				// What comes first at one instant, of two alarms or of an alarm and a
				// sleeper in whole milliseconds, is nobody's promise: nothing coincides.
				taken := map[time.Duration]bool{}
				soon := func(d time.Duration) time.Duration {
					mu.Lock()
					defer mu.Unlock()
					at := time.Since(start) + d
					for taken[at] || at%time.Millisecond == 0 {
						at++
					}
					taken[at] = true
					d = at - time.Since(start)
					return d
				}
				alarms := make([]alarm, 20)
				for i := range alarms {
					alarms[i] = a.newAlarm(func() {
						log("alarm %d", i)
						switch i {
						case 3, 4:
							log("again: %v", alarms[i].Reset(soon(7*time.Millisecond)))
						case 5:
							log("stops itself: %v", alarms[i].Stop())
						case 6:
							log("stops the next: %v", alarms[7].Stop())
						}
					})
				}
				for range 400 {
					i := r.IntN(len(alarms))
					switch r.IntN(4) {
					case 0:
						log("stop %d: %v", i, alarms[i].Stop())
					case 1:
						time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
						synctest.Wait()
					default:
						d := soon(time.Duration(1+r.IntN(20)) * time.Millisecond)
						switch r.IntN(20) {
						case 0:
							d = time.Duration(r.IntN(3)-2) * time.Second
						case 1:
							d = never
						}
						mu.Lock() // so that a call at once comes after this line
						logLocked("reset %d: %v", i, alarms[i].Reset(d))
						mu.Unlock()
						if d <= 0 {
							synctest.Wait()
						}
					}
					if a != nil {
						checkHeap(t, a)
					}
				}
				alarms[3].Stop()
				alarms[4].Stop()
				time.Sleep(time.Second)
				synctest.Wait()
				for _, alarm := range alarms {
					alarm.Stop()
				}
			})
			return calls
		}
		timers := run(func(*testing.T) *Alarms { return nil })
		got := run(virtualAlarms)
		for i := range min(len(timers), len(got)) {
			if timers[i] != got[i] {
				t.Fatalf("seed %d, after %q: timers have %q, Alarms have %q", seed, timers[max(0, i-3):i], timers[i], got[i])
			}
		}
		if len(timers) != len(got) {
			t.Fatalf("seed %d: %d lines with timers, %d with Alarms", seed, len(timers), len(got))
		}
	}
}

// With the real bell: while one wake is at work, hundreds are set, moved and
// stopped; then exactly those that remain are called, once, in order.
func TestAlarmsOrder(t *testing.T) {
	a := newAlarms(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	slow := a.newAlarm(func() { close(entered); <-leave })
	slow.Reset(0)
	<-entered

	var called []int
	alarms := make([]*pending, 500)
	for i := range alarms {
		alarms[i] = a.newAlarm(func() { called = append(called, i) }).(*pending)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		p := alarms[r.IntN(len(alarms))]
		armed := p.place != nowhere
		var was bool
		if r.IntN(3) == 0 {
			was = p.Stop()
		} else {
			was = p.Reset(time.Duration(r.IntN(int(20 * time.Millisecond))))
		}
		if was != armed {
			t.Fatalf("was armed: %v, said %v", armed, was)
		}
	}
	var want []int
	var last time.Duration
	for i, p := range alarms {
		if p.place != nowhere {
			want = append(want, i)
			last = max(last, time.Duration(p.at))
		}
	}
	slices.SortStableFunc(want, func(i, j int) int { return int(alarms[i].at - alarms[j].at) })
	checkHeap(t, a)

	over := make(chan struct{})
	end := a.newAlarm(func() { close(over) }).(*pending)
	end.Reset(last + time.Millisecond) // counted from now, so after the last
	close(leave)
	<-over
	if !slices.Equal(called, want) {
		t.Errorf("called %v\nwant   %v", called, want)
	}
}

// The bell alone is never early by the clock that queues read, and each
// expiration rings although nobody reads the descriptor.
func TestBellIsNeverEarly(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no bell but on Linux")
	}
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
	if runtime.GOOS != "linux" {
		t.Skip("no bell but on Linux")
	}
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

func TestAlarmAtOnceAndNever(t *testing.T) {
	a := newAlarms(t)
	called := make(chan string)
	far := a.newAlarm(func() { called <- "far" })
	for _, d := range []time.Duration{never, never - 1, 100 * 365 * 24 * time.Hour} {
		far.Reset(d)
		for _, d := range []time.Duration{0, -1, -never, -never - 1} {
			a.newAlarm(func() { called <- "at once" }).Reset(d)
			if got := <-called; got != "at once" {
				t.Fatalf("%v after %v is %s", d, time.Duration(0), got)
			}
		}
	}
	if !far.Stop() || far.Stop() {
		t.Error("what is set can be stopped once")
	}
}

// wake takes the lock under which others set the alarm, as a bucket's does, and
// sets it again.
func TestAlarmsUnderTheLockOfAQueue(t *testing.T) {
	const lines, departures = 50, 20
	a := newAlarms(t)
	var over sync.WaitGroup
	for range lines {
		var mu sync.Mutex
		left := departures
		var line alarm
		over.Add(1)
		line = a.newAlarm(func() {
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				over.Done()
			} else if left > 0 {
				line.Reset(time.Duration(left%3) * 100 * time.Microsecond)
			}
		})
		over.Go(func() {
			for range 100 {
				mu.Lock()
				if left > 0 {
					line.Stop()
					line.Reset(time.Millisecond)
				}
				mu.Unlock()
			}
		})
	}
	over.Wait()
	checkHeap(t, a)
}

// Many goroutines set and stop alarms while they ring: no more calls than were
// asked for, and the last of each alarm comes.
func TestAlarmsStress(t *testing.T) {
	a := newAlarms(t)
	var over sync.WaitGroup
	for g := range 8 {
		over.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			const alarms = 100
			var asked, calls [alarms]atomic.Int64
			last := make([]chan struct{}, alarms)
			var final atomic.Bool
			all := make([]alarm, alarms)
			for i := range all {
				last[i] = make(chan struct{}, 1)
				all[i] = a.newAlarm(func() {
					if calls[i].Add(1) > asked[i].Load() {
						t.Errorf("called more often than asked")
					}
					if final.Load() {
						select {
						case last[i] <- struct{}{}:
						default:
						}
					}
				})
			}
			for range 3000 {
				i := r.IntN(alarms)
				if r.IntN(4) == 0 {
					all[i].Stop()
					continue
				}
				asked[i].Add(1)
				all[i].Reset(time.Duration(r.IntN(3_000_000) - 1_000_000))
			}
			final.Store(true)
			for i := range all {
				asked[i].Add(1)
				all[i].Reset(time.Duration(r.IntN(2_000_000)))
			}
			for i := range all {
				<-last[i]
			}
		})
	}
	over.Wait()
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

// The same of a wake that the timer called.
func TestCloseAlarmsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := virtualAlarms(t)
		leave := make(chan struct{})
		a.newAlarm(func() { <-leave }).Reset(0)
		synctest.Wait()
		closed := false
		go func() { a.Close(); closed = true }()
		synctest.Wait()
		if closed {
			t.Error("closed while a wake is at work")
		}
		close(leave)
		synctest.Wait()
		if !closed {
			t.Error("not closed when it has returned")
		}
	})
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

func TestNilAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a *Alarms
		calls := 0
		alarm := a.newAlarm(func() { calls++ })
		time.Sleep(100 * 365 * 24 * time.Hour)
		if alarm.Stop() || calls != 0 {
			t.Error("it was set without being asked")
		}
		start := time.Now()
		alarm.Reset(time.Second)
		time.Sleep(time.Second)
		synctest.Wait()
		if calls != 1 || time.Since(start) != time.Second {
			t.Errorf("%d calls by %v", calls, time.Since(start))
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestResetAllocatesNothing(t *testing.T) {
	a := newAlarms(t)
	alarms := make([]alarm, 1000)
	for i := range alarms {
		alarms[i] = a.newAlarm(func() {})
		alarms[i].Reset(time.Hour)
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		alarms[i%1000].Stop()
		alarms[i%1000].Reset(time.Hour - time.Duration(i)*time.Second)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAlarmReset(b *testing.B) {
	for kind, a := range kinds(b) {
		b.Run(kind, func(b *testing.B) {
			alarms := make([]alarm, 100_000)
			for i := range alarms {
				alarms[i] = a.newAlarm(func() {})
				alarms[i].Reset(time.Hour + time.Duration(i)*time.Millisecond)
			}
			i := 0
			for b.Loop() {
				i = (i + 7919) % len(alarms)
				alarms[i].Reset(time.Hour + time.Duration(i*31%len(alarms))*time.Millisecond)
			}
			for _, alarm := range alarms {
				alarm.Stop()
			}
		})
	}
}

// 100,000 queues at one instant, a waiter in each: how long until the last waiter
// runs, and how long another queue's that is due 1 ms after them.
func BenchmarkAlarmsAtOnce(b *testing.B) {
	for kind, a := range kinds(b) {
		b.Run(kind, func(b *testing.B) {
			const n = 100_000
			var all, other time.Duration
			for b.Loop() {
				var out sync.WaitGroup
				at := time.Now().Add(2 * time.Second)
				for range n {
					var mu sync.Mutex
					done := make(chan struct{})
					out.Go(func() { <-done })
					a.newAlarm(func() { mu.Lock(); close(done); mu.Unlock() }).Reset(time.Until(at))
				}
				done := make(chan struct{})
				later := at.Add(time.Millisecond)
				a.newAlarm(func() { close(done) }).Reset(time.Until(later))
				<-done
				other += time.Since(later)
				out.Wait()
				all += time.Since(at)
			}
			b.ReportMetric(float64(all.Milliseconds())/float64(b.N), "ms/all")
			b.ReportMetric(float64(other.Milliseconds())/float64(b.N), "ms/other")
		})
	}
}

func kinds(b *testing.B) map[string]*Alarms {
	return map[string]*Alarms{"timers": nil, "Alarms": newAlarms(b)}
}
