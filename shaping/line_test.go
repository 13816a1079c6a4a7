package shaping_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
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

// Retry-After is true to the nanosecond: a request that comes then and is alone
// is not refused, and 1 ns before it is.
func TestRetryAfterIsTrue(t *testing.T) {
	refusals := 0
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		rate := []limiter.Rate{mustRate(t, "7/m"), mustRate(t, "1/s"), mustRate(t, "300/s")}[rnd.IntN(3)]
		interval := int64(rate.Interval())
		line := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: int64(1 + rnd.IntN(3)), Queue: 1 + rnd.IntN(6), MaxWait: time.Duration(interval * int64(rnd.IntN(60)) / 10)})
		now := epoch
		drive := func(to int64) {
			for line.Head(now) != nil && line.Due(now) <= to {
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
				line.Adopt(now, shaping.Terms{Rate: rate, Burst: 1, Queue: 1, MaxWait: time.Duration(interval)})
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
		enforced := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: burst, Queue: places, MaxWait: maxWait})
		rehearsed := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: burst, Queue: places, MaxWait: maxWait})
		now := epoch
		for step := range 300 {
			to := now + int64(rnd.IntN(200))*int64(rate.Interval())/100
			for enforced.Head(now) != nil && enforced.Due(now) <= to {
				now = enforced.Due(now)
				enforced.Leave(now)
			}
			now = to
			if rnd.IntN(50) == 0 {
				rate, burst, places = mustRate(t, "13/s"), int64(1+rnd.IntN(4)), 1+rnd.IntN(8)
				enforced.Adopt(now, shaping.Terms{Rate: rate, Burst: burst, Queue: places, MaxWait: maxWait})
				rehearsed.Adopt(now, shaping.Terms{Rate: rate, Burst: burst, Queue: places, MaxWait: maxWait})
			}
			want, _ := enforced.Arrive(now, 0)
			if got := rehearsed.Rehearse(now, shaping.Entrant{}); got != want {
				t.Fatalf("seed %d step %d: %+v, want %+v", seed, step, got, want)
			}
			if got, want := rehearsed.Depth(now), enforced.Depth(now); got != want {
				t.Fatalf("seed %d step %d: depth %d, want %d", seed, step, got, want)
			}
			gotN, gotMore := rehearsed.Remaining(now, queue.High)
			wantN, wantMore := enforced.Remaining(now, queue.High)
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
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 10, MaxWait: time.Minute})
	fill(&line, epoch, 2)
	if v := line.Rehearse(epoch, shaping.Entrant{}); v.Wait != 2*time.Second || v.Ahead != 1 {
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
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 100, MaxWait: time.Hour})
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
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 10, Queue: 1, MaxWait: time.Hour})
	passed, _ := fill(&line, epoch, 10)
	now := epoch
	for i := range 20 {
		now += 100 * ms
		line.Adopt(now, shaping.Terms{Rate: mustRate(t, []string{"1/s", "2/s"}[i%2]), Burst: int64(10 + 10*(i%2)), Queue: 1, MaxWait: time.Hour})
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
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/h"), Burst: 1, Queue: 10, MaxWait: 24 * time.Hour})
	fill(&line, epoch, 3)
	now := epoch + 1800*second
	line.Adopt(now, shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: 1, MaxWait: time.Hour})
	if due := line.Due(now); due != now+second/2 {
		t.Fatalf("due in %v", time.Duration(due-now))
	}
	if line.Depth(now) != 2 {
		t.Fatal("a shorter queue refused somebody who waited")
	}
	if n, more := line.Remaining(now, queue.High); n != 0 || more != 1500*time.Millisecond {
		t.Fatalf("remaining %d, %v more; the second place of a queue of one frees at 1.5 s", n, more)
	}

	line = shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 10, Queue: 5, MaxWait: time.Hour})
	fill(&line, epoch, 4)
	for _, c := range []struct{ burst, free int64 }{{20, 6}, {10, 6}, {3, 3}, {8, 3}} {
		line.Adopt(epoch, shaping.Terms{Rate: mustRate(t, "1/s"), Burst: c.burst, Queue: 5, MaxWait: time.Hour})
		if n, _ := line.Remaining(epoch, queue.High); n != c.free+5 {
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
		line := shaping.NewLine[int](shaping.Terms{Rate: c.rate, Burst: c.burst, Queue: shaping.MaxQueue, MaxWait: limiter.MaxPeriod})
		if n, more := line.Remaining(now, queue.High); n != c.burst+shaping.MaxQueue || more != 0 {
			t.Fatalf("%v: %d remain, %v", c.rate, n, more)
		}
		if v, _ := line.Arrive(now, 0); v != (shaping.Verdict{}) {
			t.Fatalf("%v: %+v", c.rate, v)
		}
		if n, more := line.Remaining(now, queue.High); n != c.burst-1+shaping.MaxQueue || more != c.rate.Interval() {
			t.Fatalf("%v: %d remain, one more in %v", c.rate, n, more)
		}
		// Emptied by a smaller burst, or by an hour's step back, and given the
		// other extremes.
		line.Adopt(now, shaping.Terms{Rate: century, Burst: 1, Queue: 5, MaxWait: time.Second})
		line.Adopt(now, shaping.Terms{Rate: c.rate, Burst: c.burst, Queue: 5, MaxWait: time.Second})
		line.Adopt(now-3600*second, shaping.Terms{Rate: mustRate(t, "7/m"), Burst: 1, Queue: 5, MaxWait: limiter.MaxPeriod})
		if v := line.Look(now); v.Wait > limiter.MaxPeriod || v.Wait < 0 {
			t.Fatalf("%v: %+v", c.rate, v)
		}
	}
	line := shaping.NewLine[int](shaping.Terms{Rate: century, Burst: 1, Queue: 1000, MaxWait: limiter.MaxPeriod})
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
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "10/s"), Burst: 3, Queue: 0, MaxWait: 0})
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
