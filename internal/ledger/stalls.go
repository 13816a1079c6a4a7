package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stalls are the times in which the machine ran nobody who wanted to run, as
// far as can be seen: a goroutine that sleeps a millisecond at a time notes when
// it was woken late by more than Notable, and on Linux the proxy's threads say
// how long they were ready and did not run.
type Stalls struct {
	now  func() time.Time
	stop chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	stalls  []span
	delays  []delay
	longest time.Duration
	total   time.Duration // of stalls
	starved time.Duration // of the delays
}

// Notable is how late a timer may be without the machine having stalled; the
// promise of the queue makes up for as much.
const Notable = 2 * time.Millisecond

// A span is a time, from and to.
type span struct{ from, to time.Time }

// A delay is how long the threads of the proxy waited for a processor between
// two looks, all together.
type delay struct {
	span
	d time.Duration
}

// between is the interval of the looks at the proxy's threads.
const between = 5 * time.Millisecond

// Watch begins to watch the machine and the process, until Stop.
func (l *Ledger) Watch(pid int) *Stalls {
	s := &Stalls{now: l.Now, stop: make(chan struct{})}
	s.done.Go(s.sleep)
	s.done.Go(func() { s.look(pid) })
	return s
}

func (s *Stalls) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

func (s *Stalls) sleep() {
	for !s.stopped() {
		asked := s.now().Add(time.Millisecond)
		time.Sleep(time.Millisecond)
		if woken := s.now(); woken.Sub(asked) > Notable {
			s.Add(asked, woken)
		}
	}
}

// Add notes a stall that is known otherwise, such as a process that was stopped.
func (s *Stalls) Add(from, to time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalls = append(s.stalls, span{from, to})
	s.total += to.Sub(from)
	s.longest = max(s.longest, to.Sub(from))
}

func (s *Stalls) look(pid int) {
	before, at := runDelays(pid), s.now()
	for !s.stopped() {
		time.Sleep(between)
		after, now := runDelays(pid), s.now()
		var d time.Duration
		for thread, total := range after {
			d += total - before[thread]
		}
		if d > 0 {
			s.mu.Lock()
			s.delays = append(s.delays, delay{span{at, now}, d})
			s.starved += d
			s.mu.Unlock()
		}
		before, at = after, now
	}
}

// runDelays is, by thread, how long it was ready to run and did not; see
// Documentation/scheduler/sched-stats.rst of Linux. Elsewhere there is nothing
// to read.
func runDelays(pid int) map[string]time.Duration {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	all := make(map[string]time.Duration, len(threads))
	for _, thread := range threads {
		b, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		if fields := strings.Fields(string(b)); len(fields) == 3 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			all[thread] = time.Duration(ns)
		}
	}
	return all
}

// Stop ends the watching.
func (s *Stalls) Stop() {
	close(s.stop)
	s.done.Wait()
}

// During is for how long, between two instants, the machine or the proxy was
// stalled, at most all of it.
func (s *Stalls) During(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var d time.Duration
	for _, stall := range s.stalls {
		d += stall.overlap(from, to)
	}
	for _, delay := range s.delays {
		// When within the look it was is not known. What is below Notable, the
		// schedule makes up for.
		if delay.d > Notable && delay.overlap(from, to) > 0 {
			d += delay.d
		}
	}
	return min(d, max(0, to.Sub(from)))
}

func (s span) overlap(from, to time.Time) time.Duration {
	if s.from.After(from) {
		from = s.from
	}
	if s.to.Before(to) {
		to = s.to
	}
	return max(0, to.Sub(from))
}

// String tells how much there was.
func (s *Stalls) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d stalls above %v, %v in all, the longest %v; the proxy's threads waited %v for a processor",
		len(s.stalls), Notable, s.total.Round(time.Millisecond), s.longest.Round(time.Millisecond), s.starved.Round(time.Millisecond))
}

// Longest is the longest stall.
func (s *Stalls) Longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest
}
