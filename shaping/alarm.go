package shaping

import (
	"math"
	"sync"
	"time"
)

// An alarm calls a function, its wake, once for each Reset that is not
// followed by another Reset or by Stop in time. Both report whether a call was
// still to come; if not, one may be on its way, and it is not waited for.
// A *time.Timer with a function is an alarm.
type alarm interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// Alarms wake queues at instants, on Linux more exactly than timers do: less
// than 0.1 ms after the instant instead of 0.6 ms, because the runtime's poller
// sleeps in whole milliseconds; see docs/design/0005-alarms.md. While nothing
// is due nothing runs. One Alarms is meant for all queues of a program: it
// holds a file descriptor, a goroutine, and an entry for each queue in which
// somebody waits.
//
// Wakes are called one at a time, in the order of their instants, so one that
// is slow delays others by the time it takes.
//
// A nil *Alarms is good to use and stands for timers. It is what belongs in a
// synctest bubble, whose time an Alarms from outside knows nothing about.
type Alarms struct {
	base time.Time

	// Two that call ring at the same instant, and whichever is first serves. An
	// idle program is woken by its poller, which is exact for the bell and rounds
	// for the timer. A busy one looks at timers whenever it turns from one
	// goroutine to another, and at the poller only when it has none to run.
	bell  bell
	timer *time.Timer

	mu      sync.Mutex
	pending []*pending // a heap, the earliest first
	setTo   int64      // what bell and timer are set to; unless ringing, not after the earliest
	ringing bool       // ring is at work, and will set them when it ends
	closed  bool
	rings   sync.WaitGroup // counts while ringing; not added to once closed
}

// A bell calls ring when the instant has come that it was last set to, and
// perhaps now and then for nothing. newBell makes one.
type bell struct {
	set   func(at int64) // nanoseconds since the base; not after close
	close func() error
}

// A pending is an alarm of an Alarms.
type pending struct {
	alarms *Alarms
	wake   func()

	// Guarded by alarms.mu.
	at    int64 // nanoseconds since alarms.base
	place int   // in alarms.pending, or nowhere
}

const (
	never   = math.MaxInt64
	nowhere = -1
)

// NewAlarms starts an Alarms. The error is one of the system, when there are no
// file descriptors left for instance; a caller may go on with nil.
func NewAlarms() (*Alarms, error) {
	a := &Alarms{base: time.Now(), setTo: never}
	a.timer = time.AfterFunc(never, a.ring)
	var err error
	if a.bell, err = newBell(a.base, a.ring); err != nil {
		a.timer.Stop()
		return nil, err
	}
	return a, nil
}

// Close ends it, and returns when no wake runs any more and none will. It must
// not be called by a wake. Whatever is pending is dropped, so queues that use
// a must have nobody waiting.
func (a *Alarms) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	closed := a.closed
	a.closed = true
	for _, p := range a.pending {
		p.place = nowhere
	}
	a.pending = nil
	a.mu.Unlock()
	a.rings.Wait()
	if closed {
		return nil
	}
	a.timer.Stop()
	return a.bell.close()
}

// newAlarm makes an alarm that is not set.
func (a *Alarms) newAlarm(wake func()) alarm {
	if a == nil {
		t := time.AfterFunc(never, wake)
		t.Stop()
		return t
	}
	return &pending{alarms: a, wake: wake, place: nowhere}
}

// Reset implements alarm. After Close nothing is set any more.
func (p *pending) Reset(d time.Duration) bool {
	a := p.alarms
	a.mu.Lock()
	defer a.mu.Unlock()
	was := p.place != nowhere
	if a.closed {
		return was
	}
	now := a.now()
	p.at = now + min(int64(max(d, 0)), never-now)
	if !was {
		p.place = len(a.pending)
		a.pending = append(a.pending, p)
	}
	a.moveLocked(p)
	a.setBellLocked()
	return was
}

// Stop implements alarm. The bell stays set if it was for p: to be rung once
// for nothing costs less than to set it anew for each queue that empties.
func (p *pending) Stop() bool {
	a := p.alarms
	a.mu.Lock()
	defer a.mu.Unlock()
	was := p.place != nowhere
	if was {
		a.removeLocked(p)
	}
	return was
}

// ring calls whom is due. Whoever calls it while it is at work may return: it
// goes on for as long as somebody is due, and then sets the bell.
func (a *Alarms) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ringing || a.closed {
		return
	}
	a.ringing = true
	a.rings.Add(1)
	defer a.rings.Done()
	now := a.now()
	for ; len(a.pending) > 0 && a.pending[0].at <= now; now = a.now() {
		p := a.pending[0]
		a.removeLocked(p)
		a.callLocked(p)
	}
	a.ringing = false
	if a.setTo <= now {
		a.setTo = never // it has rung
	}
	a.setBellLocked()
}

// callLocked calls p's wake without the lock: it takes the lock of a queue,
// under which others call Reset.
func (a *Alarms) callLocked(p *pending) {
	a.mu.Unlock()
	defer a.mu.Lock()
	p.wake()
}

// setBellLocked sees to it that ring is called for the earliest.
func (a *Alarms) setBellLocked() {
	if a.ringing || a.closed || len(a.pending) == 0 || a.pending[0].at >= a.setTo {
		return
	}
	a.setTo = a.pending[0].at
	a.bell.set(a.setTo)
	a.timer.Reset(time.Duration(a.setTo - a.now()))
}

func (a *Alarms) now() int64 { return int64(time.Since(a.base)) }

func (a *Alarms) removeLocked(p *pending) {
	last := len(a.pending) - 1
	moved := a.pending[last]
	a.pending[last] = nil
	a.pending = a.pending[:last]
	if moved != p {
		moved.place = p.place
		a.moveLocked(moved)
	}
	p.place = nowhere
}

// moveLocked puts p, which may be out of order at p.place, where it belongs.
// (container/heap would do it at three calls through an interface a step.)
func (a *Alarms) moveLocked(p *pending) {
	heap, i := a.pending, p.place
	for i > 0 {
		up := (i - 1) / 2
		if heap[up].at <= p.at {
			break
		}
		heap[i], heap[up].place = heap[up], i
		i = up
	}
	for {
		down := 2*i + 1
		if down+1 < len(heap) && heap[down+1].at < heap[down].at {
			down++
		}
		if down >= len(heap) || heap[down].at >= p.at {
			break
		}
		heap[i], heap[down].place = heap[down], i
		i = down
	}
	heap[i], p.place = p, i
}
