//go:build linux

package main

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// What the scheduler of the kernel is told about the threads of this process.

// prepared does something to all threads that there are, and so to those that
// they start, before alarms are made.
func prepared(do func(tid int) error, then alarmFunc) alarmFunc {
	return func(wake func()) (func(time.Time), func(), error) {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return nil, nil, err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				return nil, nil, err
			}
			if err := do(tid); err != nil {
				return nil, nil, err
			}
		}
		return then(wake)
	}
}

// slack asks for the least timer slack; by default the kernel may end a sleep
// 50 µs late. By prctl(2) a thread sets only its own, so this writes to proc(5).
func slack(tid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(tid)+"/timerslack_ns", []byte("1"), 0)
}

// schedAttr is struct sched_attr of sched_setattr(2).
type schedAttr struct {
	size, policy              uint32
	flags                     uint64
	nice                      int32
	priority                  uint32
	runtime, deadline, period uint64
}

// slice asks for the shortest turns on the processor, 0.1 ms (Linux 6.12): of
// two threads that are owed as much, the one with the shorter turn goes first.
// It needs no privilege.
func slice(tid int) error {
	return setAttr(tid, schedAttr{runtime: uint64(100 * time.Microsecond)})
}

// fifo asks for real-time priority, which needs CAP_SYS_NICE. On all threads
// it would let a busy process lock everybody out of the machine.
func fifo(tid int) error {
	const schedFIFO = 1
	return setAttr(tid, schedAttr{policy: schedFIFO, priority: 1})
}

func setAttr(tid int, a schedAttr) error {
	a.size = uint32(unsafe.Sizeof(a))
	call, ok := map[string]uintptr{"amd64": 314, "arm64": 274}[runtime.GOARCH]
	if !ok {
		return errors.ErrUnsupported // package syscall does not know its number
	}
	if _, _, errno := syscall.Syscall(call, uintptr(tid), uintptr(unsafe.Pointer(&a)), 0); errno != 0 {
		return os.NewSyscallError("sched_setattr", errno)
	}
	return nil
}
