package rig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of the times in /proc/PID/stat: USER_HZ, which is 100 on
// every architecture that Go runs on.
const tick = 10 * time.Millisecond

// CPU is the time that the program and the children it runs now have spent,
// user and system, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	return sum(p, cpuOf)
}

// Memory is the resident memory of the program and the children it runs now, in
// bytes. What they share counts for each.
func (p *Process) Memory() (int64, error) {
	return sum(p, memoryOf)
}

// sum is what of says of the program and the children it runs now.
func sum[T time.Duration | int64](p *Process, of func(pid int) (T, error)) (T, error) {
	pid := p.Cmd.Process.Pid
	total, err := of(pid)
	if err != nil {
		return 0, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	for _, child := range strings.Fields(string(children)) {
		n, err := strconv.Atoi(child)
		if err != nil {
			return 0, err
		}
		one, err := of(n)
		if err != nil {
			return 0, err
		}
		total += one
	}
	return total, nil
}

// memoryOf reads VmRSS of proc_pid_status(5).
func memoryOf(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "\nVmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
	}
	kB, err := strconv.ParseInt(fields[0], 10, 64)
	return kB << 10, err
}

// cpuOf reads fields 14 and 15 of proc_pid_stat(5). The name in field 2 may
// hold spaces, so they are counted from its closing bracket.
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has an unknown form: %q", pid, b)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/%d/stat has an unknown form: %q", pid, b)
	}
	return time.Duration(user+system) * tick, nil
}
