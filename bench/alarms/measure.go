//go:build linux

package main

import (
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A line lets its waiters out at equal intervals, by a schedule that does not
// move when it is late.
type line struct {
	start    time.Time
	interval time.Duration
	departs  int

	mu      sync.Mutex
	left    int
	waiters []chan struct{}
	arm     func(at time.Time)
}

func (l *line) turn(i int) time.Time { return l.start.Add(time.Duration(i+1) * l.interval) }

func (l *line) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for now := time.Now(); l.left < l.departs && !l.turn(l.left).After(now); l.left++ {
		close(l.waiters[l.left])
	}
	if l.left < l.departs {
		l.arm(l.turn(l.left))
	}
}

// measure lets departs of max(waiting, departs) waiters out, one each interval.
func measure(w way, interval time.Duration, departs, waiting int) (result, error) {
	l := &line{interval: interval, departs: departs}
	late := make([]time.Duration, departs)
	var out, rest sync.WaitGroup
	for i := range max(waiting, departs) {
		c := make(chan struct{})
		l.waiters = append(l.waiters, c)
		if i >= departs {
			rest.Go(func() { <-c })
			continue
		}
		out.Go(func() {
			<-c
			late[i] = time.Since(l.turn(i))
		})
	}
	arm, end, err := w.alarm(l.wake)
	if err != nil {
		return result{}, err
	}
	time.Sleep(100 * time.Millisecond) // until all are parked and the load is on

	began := spent()
	l.start, l.arm = time.Now(), arm
	l.mu.Lock()
	arm(l.turn(0))
	l.mu.Unlock()
	out.Wait()
	cpu := 100 * float64(spent()-began) / float64(time.Since(l.start))
	slices.Sort(late)
	r := result{Median: late[departs/2], P99: late[departs*99/100], Max: late[departs-1], CPU: cpu}

	end()
	for _, c := range l.waiters[departs:] {
		close(c)
	}
	rest.Wait()
	return r, nil
}

// spent is the processor time of this process.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// suspend stops cmd's process for a while.
func suspend(cmd *exec.Cmd, after, length time.Duration) {
	time.Sleep(after)
	if cmd.Process == nil || cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return
	}
	time.Sleep(length)
	_ = cmd.Process.Signal(syscall.SIGCONT)
}
