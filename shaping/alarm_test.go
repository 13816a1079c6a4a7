package shaping

import (
	"fmt"
	"math/rand/v2"
	"slices"
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
