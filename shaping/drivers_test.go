package shaping_test

import (
	"cmp"
	"container/heap"
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A visit is one request of a scenario: when it comes, and for how long it is
// ready to wait.
type visit struct{ comes, patience time.Duration }

// An outcome is how a visit ended.
type outcome struct {
	reason limiter.Reason
	at     time.Duration
	ahead  int
	remain int64
}

// events is a heap in order of time, as a replay in virtual time has it.
type events []event

type event struct {
	at   time.Duration
	kind int // 0: comes, 1: loses patience
	who  int
}

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return cmp.Less(e[i].at, e[j].at) }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// byHeap drives a line without any waiting.
func byHeap(p shaping.Policy, visits []visit) []outcome {
	line := shaping.NewLine[int](shaping.Terms{Rate: p.Rate, Burst: p.Burst, Queue: p.Queue, MaxWait: p.MaxWait})
	out := make([]outcome, len(visits))
	waiters := make([]*shaping.Waiter[int], len(visits))
	end := func(who int, reason limiter.Reason, now time.Duration, ahead int) {
		remain, _ := line.Remaining(int64(now), queue.High)
		out[who] = outcome{reason, now, ahead, remain}
	}
	var todo events
	for i, v := range visits {
		heap.Push(&todo, event{v.comes, 0, i})
		heap.Push(&todo, event{v.comes + v.patience, 1, i})
	}
	now := time.Duration(0)
	for len(todo) > 0 || line.Head(int64(now)) != nil {
		if line.Head(int64(now)) != nil {
			if due := time.Duration(line.Due(int64(now))); len(todo) == 0 || due <= todo[0].at {
				now = due
				w := line.Leave(int64(now))
				end(w.Value, limiter.ReasonNone, now, w.Ahead)
				continue
			}
		}
		e := heap.Pop(&todo).(event)
		now = e.at
		switch w := waiters[e.who]; {
		case e.kind == 1 && w != nil && line.Cancel(w):
			end(e.who, limiter.ReasonClientGone, e.at, w.Ahead)
		case e.kind == 0:
			v, w := line.Arrive(int64(e.at), e.who)
			if waiters[e.who] = w; w == nil {
				end(e.who, v.Reason, e.at, v.Ahead)
			}
		}
	}
	return out
}

// byShaper asks a Shaper, in a bubble.
func byShaper(t *testing.T, p shaping.Policy, visits []visit) []outcome {
	out := make([]outcome, len(visits))
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(p)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i, v := range visits {
			go func() {
				time.Sleep(v.comes)
				ctx, cancel := context.WithTimeout(t.Context(), v.patience)
				defer cancel()
				d, _ := s.Acquire(ctx, shaping.Request{})
				out[i] = outcome{d.Reason, time.Since(start), d.Ahead, d.Remaining}
			}()
		}
		time.Sleep(1000 * time.Hour)
		synctest.Wait()
	})
	return out
}

// The two drivers of a line, the heap of a replay and the timers of live
// requests, give every request the same fate at the same instant.
func TestDriversAgree(t *testing.T) {
	fates := map[limiter.Reason]int{}
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		rate := []string{"7/m", "10/s", "1999/s", "3/7ms"}[rnd.IntN(4)]
		p := tb(t, rate, int64(1+rnd.IntN(3)), 1+rnd.IntN(30), 0)
		interval := p.Rate.Interval()
		p.MaxWait = interval * time.Duration(1+rnd.IntN(30))
		visits := make([]visit, 300)
		at := time.Duration(0)
		for i := range visits {
			// Odd instants to the nanosecond, so that no two events fall together.
			at += 1 + time.Duration(rnd.Int64N(int64(interval)*[]int64{1, 1, 5}[rnd.IntN(3)]))
			visits[i] = visit{at, 1 + time.Duration(rnd.Int64N(int64(interval)*40))}
		}
		// The heap's clock starts at zero, where a line is new as well.
		want, got := byHeap(p, visits), byShaper(t, p, visits)
		for i := range visits {
			fates[want[i].reason]++
			if got[i] != want[i] {
				t.Fatalf("seed %d, request %d: %+v from the Shaper, %+v from the heap", seed, i, got[i], want[i])
			}
		}
	}
	for _, r := range []limiter.Reason{limiter.ReasonNone, limiter.ReasonQueueFull, limiter.ReasonMaxWait, limiter.ReasonClientGone} {
		if fates[r] < 200 {
			t.Errorf("only %d ended with %q", fates[r], r)
		}
	}
}
