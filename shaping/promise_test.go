package shaping_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A departure is what left, when, and the limit under which it did.
type departure struct {
	at, budget float64 // ns; the integral of the rate until then
	rate       float64 // per ns
	burst      float64
}

// The promise of the package comment, for all pairs of departures: under random
// arrivals, cancellations, timers late by microseconds to seconds, and changes
// of rate, burst and places.
func TestPromise(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		rates := []limiter.Rate{
			mustRate(t, "2/s"), mustRate(t, "7/s"), mustRate(t, "100/s"),
			mustRate(t, "1999/s"), mustRate(t, "50000/s"),
		}
		rate, burst := rates[rnd.IntN(len(rates))], int64(1+rnd.IntN(5))
		line := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: burst, Queue: 40, MaxWait: time.Hour})
		changes := seed%2 == 1
		now, budget := epoch, 0.0
		perNS := func() float64 { return float64(rate.Count) / float64(rate.Per) }
		advance := func(to int64) {
			budget += float64(to-now) * perNS()
			now = to
		}
		var left []departure
		note := func() { left = append(left, departure{float64(now), budget, perNS(), float64(burst)}) }
		var waiting []*shaping.Waiter[int]
		for range 600 {
			interval := int64(rate.Interval())
			switch op := rnd.IntN(12); {
			case op < 4:
				for range 1 + rnd.IntN(4) {
					if v, w := line.Arrive(now, 0); w != nil {
						waiting = append(waiting, w)
					} else if v.Reason == limiter.ReasonNone {
						note()
					}
				}
			case op < 5 && len(waiting) > 0:
				line.Cancel(waiting[rnd.IntN(len(waiting))])
			case op < 10 && line.Head(now) != nil: // the timer comes, and lets out all that is due
				late := []int64{0, int64(rnd.IntN(1000)), int64(rnd.IntN(int(3 * ms))), int64(rnd.IntN(20)) * interval}
				advance(max(now, line.Due(now)+late[rnd.IntN(4)]))
				for line.Leave(now) != nil {
					note()
				}
			case op < 11:
				advance(now + int64(rnd.IntN(300))*interval/100)
			case changes:
				rate, burst = rates[rnd.IntN(len(rates))], int64(1+rnd.IntN(5))
				line.Adopt(now, shaping.Terms{Rate: rate, Burst: burst, Queue: rnd.IntN(40), MaxWait: time.Hour})
			}
		}
		if len(left) < 50 {
			t.Fatalf("seed %d: only %d left, which proves nothing", seed, len(left))
		}
		for i := range left {
			rate, burst := left[i].rate, left[i].burst
			for j := i; j < len(left); j++ {
				rate, burst = max(rate, left[j].rate), max(burst, left[j].burst)
				most := left[j].budget - left[i].budget + float64(shaping.Slack)*rate + burst
				if n := float64(j - i + 1); n > most+1e-6 {
					t.Fatalf("seed %d: %v left within %v, at most %.3f may", seed, n, time.Duration(left[j].at-left[i].at), most)
				}
			}
		}
	}
}

// With somebody waiting at all times and timers never later than Slack, each
// departure is scheduled at exactly its own instant for ever: nothing is lost.
func TestCase08ScheduleOfLateTimersDoesNotDrift(t *testing.T) {
	for _, text := range []string{"2000/s", "100/s", "7/m", "1999/s", "3/7ms"} {
		rate := mustRate(t, text)
		rnd := rand.New(rand.NewPCG(3, 3))
		line := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: 1, Queue: 50, MaxWait: 1000 * time.Hour})
		now := epoch
		fill(&line, now, 51)
		for k := int64(1); k <= 60_000; k++ {
			// The k-th after the first is due at k intervals, rounded up.
			due := epoch + (k*int64(rate.Per)+rate.Count-1)/rate.Count
			if got := line.Due(now); got != due {
				t.Fatalf("%s: departure %d is due at %d, want %d", text, k, got, due)
			}
			now = max(now, due+int64(rnd.IntN(int(shaping.Slack))))
			if line.Leave(now) == nil {
				t.Fatalf("%s: departure %d did not leave", text, k)
			}
			line.Arrive(now, 0)
		}
	}
}

// NGINX's limit_req sends six at once after a stall of 3 s at 2/s.
func TestStallLetsOutOneNotSix(t *testing.T) {
	for _, burst := range []int64{1, 10} {
		line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "2/s"), Burst: burst, Queue: 20, MaxWait: time.Hour})
		went, waiting := fill(&line, epoch, int(burst)+20)
		if went != int(burst) || len(waiting) != 20 {
			t.Fatalf("%d went, %d wait", went, len(waiting))
		}
		now := epoch + 3*second
		n := 0
		for line.Leave(now) != nil {
			n++
		}
		if n != 1 {
			t.Fatalf("burst %d: %d left after the stall", burst, n)
		}
		if got, want := line.Due(now), now-2*ms+second/2; got != want {
			t.Fatalf("burst %d: the next is due at %d, want %d", burst, got, want)
		}
	}
}

// sethvargo/go-limiter PR #42, SandeepVashishtha/Eventra #6488.
func TestCase10ClockSetBackAndForward(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 10, MaxWait: time.Minute})
	now := 5 * 3600 * second
	fill(&line, now, 6) // one goes, five wait
	leave := func(want int64) {
		t.Helper()
		due := line.Due(now)
		if due-now != want {
			t.Fatalf("due in %v, want %v", time.Duration(due-now), time.Duration(want))
		}
		now = due
		if line.Leave(now) == nil || line.Leave(now) != nil {
			t.Fatal("exactly one leaves")
		}
	}
	leave(second)
	now -= 3600 * second // right after a departure: spacing stays 1 s
	if v := line.Look(now); v.Wait != 5*time.Second {
		t.Fatalf("after the step back one that comes would wait %v", v.Wait)
	}
	leave(second)
	leave(second)
	now += second / 2
	now -= 3600 * second // half way: an interval from now, not an hour
	leave(second)
	now += 3600 * second // forward: the head goes, and nobody with it
	if line.Leave(now) == nil || line.Leave(now) != nil {
		t.Fatal("exactly one leaves after the step forward")
	}
	if line.Head(now) != nil {
		t.Fatal("somebody still waits")
	}
	if due := line.Due(now); due != now-2*ms+second {
		t.Fatalf("the next may go in %v", time.Duration(due-now))
	}
}

func TestCase10TokenBucketNeitherRefillsNorBlocks(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 5, Queue: 1, MaxWait: time.Minute})
	now := 5 * 3600 * second
	if went, _ := fill(&line, now, 6); went != 5 {
		t.Fatalf("%d went", went)
	}
	now -= 3600 * second
	v := line.Look(now)
	if v.Reason != limiter.ReasonQueueFull || v.RetryAfter != time.Second {
		t.Fatalf("after the step back: %+v", v)
	}
}

// Clock steps both ways at random: no wait of the head is ever longer than an
// interval, and between two steps forward the promise holds.
func TestRandomClockSteps(t *testing.T) {
	rate := mustRate(t, "10/s")
	interval := int64(rate.Interval())
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		burst := int64(1 + rnd.IntN(4))
		line := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: burst, Queue: 30, MaxWait: time.Hour})
		now, real := 100*3600*second, int64(0)
		var left []int64 // in real time, since the last step forward
		for range 500 {
			switch op := rnd.IntN(10); {
			case op < 4:
				if v, w := line.Arrive(now, 0); w == nil && v.Reason == limiter.ReasonNone {
					left = append(left, real)
				}
			case op < 8 && line.Head(now) != nil:
				wait := max(0, line.Due(now)-now)
				if wait > interval {
					t.Fatalf("seed %d: the head waits %v", seed, time.Duration(wait))
				}
				now, real = now+wait, real+wait
				n := 0
				for line.Leave(now) != nil {
					left = append(left, real)
					n++
				}
				if n != 1 {
					t.Fatalf("seed %d: %d left together", seed, n)
				}
			case op < 9:
				now -= int64(rnd.IntN(int(3600 * second)))
				if now < 3600*second {
					now += 100 * 3600 * second
					left = left[:0]
				}
			default:
				now += int64(rnd.IntN(int(3600 * second)))
				left = left[:0]
			}
			for i := range left {
				n, length := int64(len(left)-i), left[len(left)-1]-left[i]
				if (n-burst)*interval > length+int64(shaping.Slack) {
					t.Fatalf("seed %d: %d left within %v", seed, n, time.Duration(length))
				}
			}
		}
	}
}
