package shaping_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
	epoch  = 1000 * second
)

// fill lets n requests arrive at once and returns those that went and those
// that wait.
func fill(line *shaping.Line[int], now int64, n int) (went int, waiting []*shaping.Waiter[int]) {
	for i := range n {
		v, w := line.Arrive(now, i)
		switch {
		case w != nil:
			waiting = append(waiting, w)
		case v.Reason == limiter.ReasonNone:
			went++
		}
	}
	return went, waiting
}

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
		line := shaping.NewLine[int](rate, burst, 40, time.Hour)
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
			case op < 10 && line.Head() != nil: // the timer comes, and lets out all that is due
				late := []int64{0, int64(rnd.IntN(1000)), int64(rnd.IntN(int(3 * ms))), int64(rnd.IntN(20)) * interval}
				advance(max(now, line.Due(now)+late[rnd.IntN(4)]))
				for line.Leave(now) != nil {
					note()
				}
			case op < 11:
				advance(now + int64(rnd.IntN(300))*interval/100)
			case changes:
				rate, burst = rates[rnd.IntN(len(rates))], int64(1+rnd.IntN(5))
				line.Adopt(now, rate, burst, rnd.IntN(40), time.Hour)
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
		line := shaping.NewLine[int](rate, 1, 50, 1000*time.Hour)
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
		line := shaping.NewLine[int](mustRate(t, "2/s"), burst, 20, time.Hour)
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
	line := shaping.NewLine[int](mustRate(t, "1/s"), 1, 10, time.Minute)
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
	if line.Head() != nil {
		t.Fatal("somebody still waits")
	}
	if due := line.Due(now); due != now-2*ms+second {
		t.Fatalf("the next may go in %v", time.Duration(due-now))
	}
}

func TestCase10TokenBucketNeitherRefillsNorBlocks(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "1/s"), 5, 1, time.Minute)
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
		line := shaping.NewLine[int](rate, burst, 30, time.Hour)
		now, real := 100*3600*second, int64(0)
		var left []int64 // in real time, since the last step forward
		for range 500 {
			switch op := rnd.IntN(10); {
			case op < 4:
				if v, w := line.Arrive(now, 0); w == nil && v.Reason == limiter.ReasonNone {
					left = append(left, real)
				}
			case op < 8 && line.Head() != nil:
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

// Retry-After is true to the nanosecond: a request that comes then and is alone
// is not refused, and 1 ns before it is.
func TestRetryAfterIsTrue(t *testing.T) {
	refusals := 0
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		rate := []limiter.Rate{mustRate(t, "7/m"), mustRate(t, "1/s"), mustRate(t, "300/s")}[rnd.IntN(3)]
		interval := int64(rate.Interval())
		line := shaping.NewLine[int](rate, int64(1+rnd.IntN(3)), 1+rnd.IntN(6), time.Duration(interval*int64(rnd.IntN(60))/10))
		now := epoch
		drive := func(to int64) {
			for line.Head() != nil && line.Due(now) <= to {
				now = max(now, line.Due(now))
				line.Leave(now)
			}
			now = to
		}
		for range 40 {
			drive(now + int64(rnd.IntN(100))*interval/100)
			v, _ := line.Arrive(now, 0)
			if v.Reason == limiter.ReasonNone {
				continue
			}
			refusals++
			if rnd.IntN(4) == 0 { // fewer places: those who are too many must leave first
				line.Adopt(now, rate, 1, 1, time.Duration(interval))
				if v = line.Look(now); v.Reason == limiter.ReasonNone {
					continue
				}
			}
			at := now + int64(v.RetryAfter)
			if drive(at - 1); line.Look(now).Reason == limiter.ReasonNone {
				t.Fatalf("seed %d: %+v, and 1 ns earlier it is not refused", seed, v)
			}
			if drive(at); line.Look(now).Reason != limiter.ReasonNone {
				t.Fatalf("seed %d: %+v, and then %+v", seed, v, line.Look(now))
			}
		}
	}
	if refusals < 1000 {
		t.Fatalf("only %d refusals", refusals)
	}
}

// A rehearsed line says what a real one says whose timers are never late.
func TestRehearsalDecidesAsIfEnforced(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		rate := []limiter.Rate{mustRate(t, "7/m"), mustRate(t, "10/s"), mustRate(t, "1999/s")}[rnd.IntN(3)]
		burst, places := int64(1+rnd.IntN(4)), 1+rnd.IntN(8)
		maxWait := time.Duration(int64(rate.Interval()) * int64(1+rnd.IntN(8)))
		enforced := shaping.NewLine[int](rate, burst, places, maxWait)
		rehearsed := shaping.NewLine[int](rate, burst, places, maxWait)
		now := epoch
		for step := range 300 {
			to := now + int64(rnd.IntN(200))*int64(rate.Interval())/100
			for enforced.Head() != nil && enforced.Due(now) <= to {
				now = enforced.Due(now)
				enforced.Leave(now)
			}
			now = to
			if rnd.IntN(50) == 0 {
				rate, burst, places = mustRate(t, "13/s"), int64(1+rnd.IntN(4)), 1+rnd.IntN(8)
				enforced.Adopt(now, rate, burst, places, maxWait)
				rehearsed.Adopt(now, rate, burst, places, maxWait)
			}
			want, _ := enforced.Arrive(now, 0)
			if got := rehearsed.Rehearse(now); got != want {
				t.Fatalf("seed %d step %d: %+v, want %+v", seed, step, got, want)
			}
			if got, want := rehearsed.Depth(now), enforced.Depth(now); got != want {
				t.Fatalf("seed %d step %d: depth %d, want %d", seed, step, got, want)
			}
			gotN, gotMore := rehearsed.Remaining(now)
			wantN, wantMore := enforced.Remaining(now)
			if gotN != wantN || gotMore != wantMore {
				t.Fatalf("seed %d step %d: remaining %d, %v, want %d, %v", seed, step, gotN, gotMore, wantN, wantMore)
			}
		}
		idle := int64(rehearsed.Idle(now))
		if rehearsed.Depth(now+idle) != 0 || rehearsed.Idle(now+idle) != 0 || idle > 0 && rehearsed.Idle(now+idle-1) == 0 {
			t.Fatalf("seed %d: not as good as new after %v", seed, time.Duration(idle))
		}
	}
}

// Rehearsed requests stand behind those who wait, also while a timer is late.
func TestRehearsedDoNotOvertake(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "1/s"), 1, 10, time.Minute)
	fill(&line, epoch, 2)
	if v := line.Rehearse(epoch); v.Wait != 2*time.Second || v.Ahead != 1 {
		t.Fatalf("%+v", v)
	}
	now := epoch + 5*second
	if n := line.Depth(now); n != 2 {
		t.Fatalf("depth %d before the head has left", n)
	}
	if line.Leave(now) == nil || line.Depth(now) != 1 || line.Depth(now+second) != 0 {
		t.Fatalf("depth %d, then %d", line.Depth(now), line.Depth(now+second))
	}
}

func TestAllCancelAndTheNextStillWaits(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "1/s"), 1, 100, time.Hour)
	_, waiting := fill(&line, epoch, 101)
	for _, w := range waiting {
		line.Cancel(w)
	}
	v, w := line.Arrive(epoch+second/4, 0)
	if w == nil || v.Wait != 750*time.Millisecond || v.Ahead != 0 {
		t.Fatalf("%+v", v)
	}
	if line.Leave(epoch+second-1) != nil || line.Leave(epoch+second) != w {
		t.Fatal("did not leave at 1 s")
	}
}

// milvus-io/milvus #35675: a change of limit filled the bucket.
func TestCase11ChangeOfLimitDoesNotFill(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "1/s"), 10, 1, time.Hour)
	passed, _ := fill(&line, epoch, 10)
	now := epoch
	for i := range 20 {
		now += 100 * ms
		line.Adopt(now, mustRate(t, []string{"1/s", "2/s"}[i%2]), int64(10+10*(i%2)), 1, time.Hour)
		if v := line.Look(now); !v.Queued {
			if _, w := line.Arrive(now, 0); w != nil {
				t.Fatal("Look and Arrive differ")
			}
			passed++
		}
	}
	if passed < 10+2 || passed > 10+2*2+1 {
		t.Fatalf("%d passed", passed)
	}
}

// A request that has waited for half an interval has half of the new one before
// it, and the tokens left are kept up to the new burst.
func TestAdoptKeepsProgressAndTokens(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "1/h"), 1, 10, 24*time.Hour)
	fill(&line, epoch, 3)
	now := epoch + 1800*second
	line.Adopt(now, mustRate(t, "1/s"), 1, 1, time.Hour)
	if due := line.Due(now); due != now+second/2 {
		t.Fatalf("due in %v", time.Duration(due-now))
	}
	if line.Depth(now) != 2 {
		t.Fatal("a shorter queue refused somebody who waited")
	}
	if n, more := line.Remaining(now); n != 0 || more != 1500*time.Millisecond {
		t.Fatalf("remaining %d, %v more; the second place of a queue of one frees at 1.5 s", n, more)
	}

	line = shaping.NewLine[int](mustRate(t, "1/s"), 10, 5, time.Hour)
	fill(&line, epoch, 4)
	for _, c := range []struct{ burst, free int64 }{{20, 6}, {10, 6}, {3, 3}, {8, 3}} {
		line.Adopt(epoch, mustRate(t, "1/s"), c.burst, 5, time.Hour)
		if n, _ := line.Remaining(epoch); n != c.free+5 {
			t.Fatalf("burst %d: %d remain, want %d", c.burst, n, c.free+5)
		}
	}
}

// The extremes of what a policy may say: no overflow, no division fault.
func TestPaceExtremes(t *testing.T) {
	century := limiter.Rate{Count: 1, Per: limiter.MaxPeriod}
	for _, c := range []struct {
		rate  limiter.Rate
		burst int64
	}{
		{century, 1},
		{mustRate(t, "1000000000/s"), int64(limiter.MaxPeriod)},
		{mustRate(t, "999999999/s"), 3_000_000_000_000_000_000},
		{limiter.Rate{Count: 999_999_999, Per: limiter.MaxPeriod}, 999_999_999},
	} {
		if err := limiter.ValidateBucket(c.rate, c.burst); err != nil {
			t.Fatal(err)
		}
		now := int64(1) << 61 // the year 2043
		line := shaping.NewLine[int](c.rate, c.burst, shaping.MaxQueue, limiter.MaxPeriod)
		if n, more := line.Remaining(now); n != c.burst+shaping.MaxQueue || more != 0 {
			t.Fatalf("%v: %d remain, %v", c.rate, n, more)
		}
		if v, _ := line.Arrive(now, 0); v != (shaping.Verdict{}) {
			t.Fatalf("%v: %+v", c.rate, v)
		}
		if n, more := line.Remaining(now); n != c.burst-1+shaping.MaxQueue || more != c.rate.Interval() {
			t.Fatalf("%v: %d remain, one more in %v", c.rate, n, more)
		}
		// Emptied by a smaller burst, or by an hour's step back, and given the
		// other extremes.
		line.Adopt(now, century, 1, 5, time.Second)
		line.Adopt(now, c.rate, c.burst, 5, time.Second)
		line.Adopt(now-3600*second, mustRate(t, "7/m"), 1, 5, limiter.MaxPeriod)
		if v := line.Look(now); v.Wait > limiter.MaxPeriod || v.Wait < 0 {
			t.Fatalf("%v: %+v", c.rate, v)
		}
	}
	line := shaping.NewLine[int](century, 1, 1000, limiter.MaxPeriod)
	now := int64(1) << 61
	if _, waiting := fill(&line, now, 10); len(waiting) != 1 {
		t.Fatalf("%d wait for a turn within a century", len(waiting))
	}
	if v := line.Look(now); v.Reason != limiter.ReasonMaxWait || v.RetryAfter != limiter.MaxPeriod {
		t.Fatalf("%+v", v)
	}
}

// The table of x/time/rate's TestLimiterBurst3, as far as nobody waits (X1),
// and the clock set back in it (X2).
func TestScenarioX1X2(t *testing.T) {
	line := shaping.NewLine[int](mustRate(t, "10/s"), 3, 0, 0)
	for i, c := range []struct {
		tenths int64
		ok     bool
	}{
		{0, true}, {0, true}, {0, true}, {0, false},
		{1, true}, {1, false}, {2, true}, {2, false},
		{9, true}, {9, true}, {9, true}, {9, false},
		{5, false}, {6, true}, {6, false}, // set back: nothing invented, nothing lost for good
	} {
		v, w := line.Arrive(epoch+c.tenths*100*ms, 0)
		if ok := v.Reason == limiter.ReasonNone; ok != c.ok || w != nil {
			t.Fatalf("row %d: %+v, want ok %v", i, v, c.ok)
		}
	}
}
