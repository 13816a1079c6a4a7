package shaping

import (
	"math"
	"os"
	"syscall"
	"time"
	"unsafe"
)

const clockMonotonic = 1 // which is the runtime's clock, too

// newBell returns a bell that is a timerfd (timerfd_create(2)), watched by the
// runtime's poller as sockets are.
//
// It is never read. The poller watches for edges, and each expiration is one;
// so all that an alarm costs is the system call that sets it.
func newBell(base time.Time, ring func()) (bell, error) {
	clock, err := clockAt(base)
	if err != nil {
		return bell{}, err
	}
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return bell{}, os.NewSyscallError("timerfd_create", errno)
	}
	file := os.NewFile(fd, "timerfd")
	conn, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // an error if the poller has not taken it
	}
	if err != nil {
		file.Close()
		return bell{}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Read ends when the file is closed, with an error that says so.
		_ = conn.Read(func(uintptr) bool {
			ring()
			return false // wait for the next edge
		})
	}()
	return bell{
		set: func(at int64) { setTimerfd(fd, clock+min(at, lastInstant-clock)) },
		close: func() error {
			err := file.Close()
			<-done
			return err
		},
	}, nil
}

// clockAt is what CLOCK_MONOTONIC was at base. A reading lies between two of
// the runtime's and is taken to be the earlier, so that no bell is early; the
// closest of a few makes it late by some 100 ns.
func clockAt(base time.Time) (int64, error) {
	var clock int64
	closest := time.Duration(math.MaxInt64)
	for range 10 {
		var ts syscall.Timespec
		before := time.Since(base)
		_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0)
		took := time.Since(base) - before
		if errno != 0 {
			return 0, os.NewSyscallError("clock_gettime", errno)
		}
		if took < closest {
			closest, clock = took, ts.Nano()-int64(before)
		}
	}
	return clock, nil
}

// lastInstant is the last that a Timespec of 32 bits holds, after 68 years.
const lastInstant = math.MaxInt32 * int64(time.Second)

// setTimerfd has fd expire at an instant of its clock, once, and forget what it
// was set to before.
func setTimerfd(fd uintptr, at int64) {
	spec := struct{ interval, value syscall.Timespec }{value: syscall.NsecToTimespec(at)}
	const absolute = 1
	// Raw, because it does not block. With these arguments it cannot fail.
	syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, fd, absolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}
