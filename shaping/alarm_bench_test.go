package shaping

import (
	"sync"
	"testing"
	"time"
)

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
