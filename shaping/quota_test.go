package shaping_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// heard says that the last request sent had this answer.
func (s *scene) heard(remaining int64, reset time.Duration) {
	s.t.Helper()
	if !s.gate.Heard(s.gate.Sent(), remaining, time.Now().Add(reset), time.Hour) {
		s.t.Error("it is old")
	}
	synctest.Wait()
}

func millis(n ...int) (all []time.Duration) {
	for _, n := range n {
		all = append(all, time.Duration(n)*time.Millisecond)
	}
	return all
}

// What remains lasts until the reset: a tenth may be ahead of an even spread.
// From the reset on it is the limit's own pace again.
func TestQuotaLastsUntilTheReset(t *testing.T) {
	play(t, q(t, "10/s", 100, time.Minute), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.heard(9, 9*time.Second)
		if pace, ok := s.gate.Pace(); !ok || pace != 1 {
			t.Errorf("a pace of %v, %v", pace, ok)
		}
		for range 13 {
			s.start1("", nil)
			synctest.Wait()
		}
		s.at(time.Minute)
		// With a reset at 9 s, the nth has n s before it that are paid for, and
		// leaves at n − (9 − n) ÷ 9 s.
		var want []time.Duration
		for n := range 9 {
			want = append(want, max(0, time.Duration(n)*time.Second-time.Duration(9-n)*time.Second/9))
		}
		got := released(s.asked)
		for i, w := range append(want, millis(9000, 9100, 9200, 9300)...) {
			if d := got[i] - w; d < 0 || d > 1 { // the part of a nanosecond
				t.Errorf("request %d left at %v, want %v", i, got[i], w)
			}
		}
		if _, ok := s.gate.Pace(); ok {
			t.Error("the quota binds after its reset")
		}
	})
}

// A quota that is larger than the limit changes nothing.
func TestQuotaNeverSpeedsUp(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.heard(100, 10*time.Second)
		all := s.crowd(4)
		s.at(time.Minute)
		wantReleased(t, all, millis(0, 1000, 2000, 3000)...)
	})
}

// A few requests are not spread over a day of which much is left.
func TestQuotaOfADay(t *testing.T) {
	play(t, q(t, "10/s", 10, 5*time.Second), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.heard(1000, 24*time.Hour)
		all := s.crowd(10)
		s.at(time.Minute)
		if got := released(all); len(got) != 10 || got[9] != 900*time.Millisecond {
			t.Errorf("released at %v", got)
		}
	})
}

// An absurd reset leaves a pace of one in slowest.
func TestQuotaSlowest(t *testing.T) {
	play(t, q(t, "10/s", 10, time.Hour), func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.gate.Heard(s.gate.Sent(), 1, time.Now().Add(50*365*24*time.Hour), time.Minute)
		for range 600 {
			s.start1("", nil)
			s.at(s.since() + 10*time.Second)
		}
		s.at(3 * time.Hour)
		n := 0
		for _, at := range released(s.asked) {
			if at <= time.Hour {
				n++
			}
		}
		if n < 60 {
			t.Errorf("%d left in an hour", n)
		}
	})
}

// Lines of one gate take turns, whatever their own paces would allow, and none
// waits for one that cannot go.
func TestQuotaIsShared(t *testing.T) {
	p := q(t, "10/s", 100, time.Minute)
	p.MaxInFlight = 50
	play(t, p, func(t *testing.T, s *scene) {
		s.gate = shaping.NewGate()
		s.heard(40, 40*time.Second)
		lines := map[string][]*asked{}
		for range 12 {
			for _, key := range []string{"x", "y", "z"} {
				lines[key] = append(lines[key], s.start1(key, nil))
			}
		}
		s.at(30 * time.Second)
		lines["y"][11].cancel(context.Canceled) // of those that wait
		s.at(2 * time.Minute)
		for key, all := range lines {
			n := 0
			for _, at := range released(all) {
				if at < 20*time.Second {
					n++
				}
			}
			if n < 6 || n > 10 { // of 24 that may be gone: 20, and a tenth of 40
				t.Errorf("%d of %s left in the first half", n, key)
			}
		}
	})
}

// An upstream with a window that it tells of: offered three times as much, over
// several lines, it is used up in each window and hardly ever refuses. It is also
// used by somebody else, of whom nobody here knows but by what is left.
func TestQuotaAgainstAnUpstream(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 11))
			size := int64(20 + rng.IntN(200))
			window := time.Duration(5+rng.IntN(20)) * time.Second
			perSecond := float64(size) / window.Seconds()
			lines := 1 + rng.IntN(4)
			rate := mustRate(t, fmt.Sprintf("%d/m", max(1, int64(perSecond*60*3/float64(lines)))))
			s, err := shaping.New(shaping.Policy{Rate: rate, Burst: 1, Queue: 20, MaxWait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			gate := shaping.NewGate()

			var mu sync.Mutex
			var ends time.Time // of the upstream's window, which begins with a request
			var used, served, refused int64
			serve := func() (left int64, reset time.Time) {
				mu.Lock()
				defer mu.Unlock()
				if now := time.Now(); !now.Before(ends) {
					ends, used = now.Add(window), 0
				}
				if used == size {
					refused++
					return 0, ends
				}
				used++
				served++
				return size - used, ends
			}
			latency := time.Duration(1+rng.IntN(150)) * time.Millisecond
			var all sync.WaitGroup
			const windows = 12
			begun := time.Now()
			for n := 0; time.Since(begun) < windows*window; n++ {
				delay := latency/2 + time.Duration(rng.Int64N(int64(latency)))
				all.Go(func() {
					g, err := s.Acquire(t.Context(), shaping.Request{Key: fmt.Sprint(n % lines), Gate: gate, Paced: true})
					if err != nil || !g.Allowed {
						return
					}
					number := gate.Sent()
					time.Sleep(delay / 2)
					left, reset := serve()
					time.Sleep(delay / 2)
					if left == 0 {
						gate.Close("quota", reset)
					}
					gate.Heard(number, left, reset, time.Hour)
					g.Release()
				})
				time.Sleep(time.Duration(float64(time.Second) / perSecond / 3))
			}
			all.Wait()
			capacity := int64(windows) * size
			if served < capacity*9/10 || refused > served/100 {
				t.Errorf("seed %d: of %d in %v over %d lines, %d were served of %d, and %d refused", seed, size, window, lines, served, capacity, refused)
			}
		})
	}
}

// A line whose next waits for its own tokens has no turn at a quota, that others
// would have to wait for.
func TestQuotaTurnOfOneThatCannotGo(t *testing.T) {
	play(t, tb(t, "1/s", 3, 100, time.Minute), func(t *testing.T, s *scene) {
		gate := shaping.NewGate()
		gate.Heard(gate.Sent(), 10, time.Now().Add(100*time.Second), time.Hour)
		to := func(key string, cost int64) *asked {
			return s.hold(shaping.Request{Key: key, Cost: cost, Gate: gate, Paced: true}, 0)
		}
		s.hold(shaping.Request{Key: "x", Cost: 3}, 0)
		dear := s.hold(shaping.Request{Key: "x", Cost: 3}, 0)
		s.at(1500 * time.Millisecond)
		behind := to("x", 1)
		s.at(1600 * time.Millisecond)
		alone := to("y", 1)
		s.at(time.Minute)
		dear.want(t, "what costs three", 3*time.Second, limiter.ReasonNone)
		alone.want(t, "who finds a free line", 1600*time.Millisecond, limiter.ReasonNone)
		if !behind.over || !behind.decision.Allowed || behind.ended < 4*time.Second {
			t.Errorf("who stands behind: over %v at %v, %+v", behind.over, behind.ended, behind.decision)
		}
	})
}
