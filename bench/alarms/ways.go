//go:build linux

package main

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A way makes an alarm that is not set. arm sets it to another instant, under a
// lock that wake takes as well.
type way struct {
	name  string
	alarm func(wake func()) (arm func(at time.Time), end func(), err error)
}

func (w way) String() string { return w.name }

var ways = []way{
	{"timer", timer},
	{"timer/slack", prepared(slack, timer)},
	{"timer+spin", timerAndSpin},
	{"read", readThroughPoller},
	{"edge", edge},
	{"edge/go", goEdge},
	{"edge+timer", edgeAndTimer(0)},
	{"edge+timer1ms", edgeAndTimer(time.Millisecond)},
	{"thread", threadWith(nil)},
	{"edge+timer/slice", prepared(slice, edgeAndTimer(0))},
	{"thread/fifo", threadWith(fifo)},
}

type alarmFunc = func(wake func()) (func(time.Time), func(), error)

// timer is what a Go program does that thinks no further.
func timer(wake func()) (func(time.Time), func(), error) {
	t := time.AfterFunc(1<<62, wake)
	return func(at time.Time) { t.Reset(time.Until(at)) }, func() { t.Stop() }, nil
}

// timerAndSpin has a timer end before the poller's rounding can make it late,
// and burns the rest.
func timerAndSpin(wake func()) (func(time.Time), func(), error) {
	var due atomic.Int64
	base := time.Now()
	t := time.AfterFunc(1<<62, func() {
		for int64(time.Since(base)) < due.Load() {
			runtime.Gosched()
		}
		wake()
	})
	arm := func(at time.Time) {
		due.Store(int64(at.Sub(base)))
		t.Reset(time.Until(at) - 1100*time.Microsecond)
	}
	return arm, func() { t.Stop() }, nil
}

// readThroughPoller reads a timerfd as one reads a file: each wait costs a read
// that finds nothing and one that finds the number of expirations.
func readThroughPoller(wake func()) (func(time.Time), func(), error) {
	fd, err := newTimerfd(syscall.O_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd.fd), "timerfd")
	var all sync.WaitGroup
	all.Go(func() {
		var n [8]byte
		for {
			if _, err := f.Read(n[:]); err != nil {
				return
			}
			wake()
		}
	})
	return fd.set, func() { f.Close(); all.Wait() }, nil
}

// edge never reads: the poller tells of each expiration by itself, because it
// registers for edges.
func edge(wake func()) (func(time.Time), func(), error) {
	fd, err := newTimerfd(syscall.O_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd.fd), "timerfd")
	c, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	first := true
	var all sync.WaitGroup
	all.Go(func() {
		_ = c.Read(func(uintptr) bool {
			if !first {
				wake()
			}
			first = false
			return false
		})
	})
	return fd.set, func() { f.Close(); all.Wait() }, nil
}

func goEdge(wake func()) (func(time.Time), func(), error) {
	return edge(func() { go wake() })
}

// edgeAndTimer has both call. The scheduler looks at timers whenever it takes a
// goroutine, and at the poller only when it has none to run.
func edgeAndTimer(later time.Duration) alarmFunc {
	return func(wake func()) (func(time.Time), func(), error) {
		arm, end, err := edge(wake)
		if err != nil {
			return nil, nil, err
		}
		set, stop, err := timer(wake)
		both := func(at time.Time) { arm(at); set(at.Add(later)) }
		return both, func() { end(); stop() }, err
	}
}

// threadWith has a thread of its own, in a blocking read. prepare, if any, is
// called with the thread's id.
func threadWith(prepare func(tid int) error) alarmFunc {
	return func(wake func()) (func(time.Time), func(), error) {
		fd, err := newTimerfd(0)
		if err != nil {
			return nil, nil, err
		}
		ready := make(chan error)
		go func() {
			runtime.LockOSThread()
			var err error
			if prepare != nil {
				err = prepare(syscall.Gettid())
			}
			ready <- err
			var n [8]byte
			for {
				if _, err := syscall.Read(fd.fd, n[:]); err != nil && err != syscall.EINTR {
					return
				}
				wake()
			}
		}()
		return fd.set, func() {}, <-ready // ends with the process
	}
}

type timerfd struct {
	fd    int
	start time.Time
	clock int64 // CLOCK_MONOTONIC at start
}

const clockMonotonic = 1

func newTimerfd(flags int) (*timerfd, error) {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, uintptr(flags|syscall.O_CLOEXEC), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("timerfd_create", errno)
	}
	t := &timerfd{fd: int(fd)}
	for best := time.Hour; best > 0; {
		before := time.Now()
		var ts syscall.Timespec
		if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
			return nil, os.NewSyscallError("clock_gettime", errno)
		}
		if took := time.Since(before); took < best {
			t.start, t.clock, best = before, ts.Nano(), took
			continue
		}
		break
	}
	return t, nil
}

func (t *timerfd) set(at time.Time) {
	spec := struct{ interval, value syscall.Timespec }{
		value: syscall.NsecToTimespec(max(1, t.clock+int64(at.Sub(t.start)))),
	}
	const absolute = 1
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(t.fd), absolute,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0); errno != 0 {
		panic(os.NewSyscallError("timerfd_settime", errno))
	}
}
