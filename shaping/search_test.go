package shaping_test

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func searching(least, most string) shaping.Policy {
	a, err := limiter.ParseRate(least)
	if err != nil {
		panic(err)
	}
	b, err := limiter.ParseRate(most)
	if err != nil {
		panic(err)
	}
	return shaping.Policy{Name: "search", MinRate: a, Rate: b, Burst: 1, Queue: 10_000, MaxWait: time.Hour}
}

func perSecond(r limiter.Rate) float64 { return float64(r.Count) / r.Per.Seconds() }

// A flow asks n times at once, and reports for each that leaves what is said of it.
func flow(t *testing.T, s *shaping.Shaper, n int, answer func(i int, at time.Duration) limiter.Answer) {
	start := time.Now()
	for i := range n {
		go func() {
			g, err := s.Acquire(t.Context(), shaping.Request{})
			if err != nil || !g.Allowed {
				return
			}
			a := answer(i, g.At.Sub(start))
			time.Sleep(a.Latency)
			g.Report(a)
			g.Release()
		}()
		synctest.Wait()
	}
}

// Departures under a rate that is searched for: it doubles each second while
// nothing is throttled, never leaves its bounds, and is lower right after a
// request was throttled. No change of it lets out a bunch.
func TestSearchForRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(searching("1/s", "50/s"))
		if err != nil {
			t.Fatal(err)
		}
		left := make(chan time.Duration, 1000)
		flow(t, s, 400, func(i int, at time.Duration) limiter.Answer {
			left <- at
			return limiter.Answer{Latency: 10 * time.Millisecond, Throttled: i == 300}
		})
		if got := perSecond(s.Snapshot().Rate); got != 1 {
			t.Errorf("begins at %v/s", got)
		}
		var last time.Duration
		for i := range 400 {
			at := <-left
			if i > 0 && at-last < 20*time.Millisecond-1 {
				t.Errorf("request %d leaves %v after the one before, which is more than the highest rate", i, at-last)
			}
			if i == 3 && at-last >= time.Second {
				t.Errorf("request 3 still leaves %v after the one before", at-last)
			}
			last = at
			switch i {
			case 299:
				if got := perSecond(s.Snapshot().Rate); got != 50 {
					t.Errorf("after %v it goes at %v/s, want the highest", at, got)
				}
			case 310:
				if got := perSecond(s.Snapshot().Rate); got < 45 || got > 47 {
					t.Errorf("%v/s after one of 50/s was throttled, want nine tenths", got)
				}
			}
		}
		if last > 15*time.Second {
			t.Errorf("400 have left after %v", last)
		}
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// Who comes when the search has just begun is not refused for a wait that will
// not be; who would wait too long even if the rate doubles on and on, is.
func TestSearchForRateForeseesItsRise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := searching("1/s", "100/s")
		p.MaxWait = 9 * time.Second
		s, err := shaping.New(p)
		if err != nil {
			t.Fatal(err)
		}
		var refused, left atomic.Int64
		for range 400 {
			go func() {
				g, err := s.Acquire(t.Context(), shaping.Request{})
				if err != nil {
					t.Error(err)
				}
				defer g.Release()
				switch {
				case g.Allowed:
					left.Add(1)
				case g.Waited > 0 || g.Reason != limiter.ReasonMaxWait:
					t.Errorf("refused with %q after %v", g.Reason, g.Waited)
				default:
					refused.Add(1)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := left.Load(); n < 150 || refused.Load() != 400-n {
			t.Errorf("%d have left, %d were refused", n, refused.Load())
		}
	})
}

// A rate that nobody waits for does not rise, and a wait that something else than
// the rate is to blame for does not count.
func TestSearchForRateOnlyInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := searching("10/s", "1000/s")
		p.MaxInFlight = 1
		s, err := shaping.New(p)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 { // one at a time, none of which waits
			flow(t, s, 1, func(int, time.Duration) limiter.Answer { return limiter.Answer{Latency: 50 * time.Millisecond} })
			time.Sleep(200 * time.Millisecond)
		}
		if got := perSecond(s.Snapshot().Rate); got != 10 {
			t.Errorf("%v/s with nobody waiting", got)
		}
		// They wait for the one place.
		flow(t, s, 100, func(int, time.Duration) limiter.Answer { return limiter.Answer{Latency: 150 * time.Millisecond} })
		time.Sleep(20 * time.Second)
		if got := perSecond(s.Snapshot().Rate); got > 11 {
			t.Errorf("%v/s where the place held them up", got)
		}
	})
}

// What was found outlives other terms, within the new bounds, and a quiet time,
// but not for ever.
func TestSearchIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(searching("1/s", "50/s"))
		if err != nil {
			t.Fatal(err)
		}
		rate := func() float64 { return perSecond(s.Snapshot().Rate) }
		flow(t, s, 300, func(int, time.Duration) limiter.Answer { return limiter.Answer{} })
		time.Sleep(59 * time.Minute)
		if rate() != 50 {
			t.Errorf("%v/s after less than an hour", rate())
		}
		for _, tt := range []struct {
			p    shaping.Policy
			want float64
		}{
			{searching("1/s", "30/s"), 30},
			{searching("40/s", "100/s"), 40},
			{q(t, "20/s", 10, time.Second), 20},
			{searching("1/s", "100/s"), 20}, // what was known is where it begins
		} {
			if err := s.Adopt(tt.p); err != nil {
				t.Fatal(err)
			}
			if rate() != tt.want {
				t.Errorf("between %v and %v: %v/s, want %v", tt.p.MinRate, tt.p.Rate, rate(), tt.want)
			}
		}
	})
}

// Places that are searched for: as many as wait may go while answers do not get
// slower, and fewer at once when they are late.
func TestSearchForPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(shaping.Policy{Name: "places", MinInFlight: 2, MaxInFlight: 40, Queue: 10_000, MaxWait: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		flow(t, s, 2000, func(i int, _ time.Duration) limiter.Answer {
			return limiter.Answer{Latency: 100 * time.Millisecond, Late: i == 1500}
		})
		if snap := s.Snapshot(); snap.Places != 2 || snap.InFlight != 2 {
			t.Errorf("begins with %d places, of which %d are taken", snap.Places, snap.InFlight)
		}
		if d := s.Peek(""); d.Limit != 2 || d.Remaining != 0 {
			t.Errorf("a client is told of %d places, of which %d are left", d.Limit, d.Remaining)
		}
		fell := false
		most := 0
		for range 200 {
			time.Sleep(100 * time.Millisecond)
			snap := s.Snapshot()
			if snap.InFlight > snap.Places && !fell {
				fell = true // those that were under way
			} else if snap.Places < most {
				fell = true
			}
			most = max(most, snap.Places)
		}
		if most != 40 || !fell {
			t.Errorf("at most %d places, and they fell: %v", most, fell)
		}
		time.Sleep(time.Minute)
	})
}

func TestSearchPolicies(t *testing.T) {
	p := searching("1/s", "50/s")
	for want, change := range map[string]func(*shaping.Policy){
		"min_rate must not be above":                func(p *shaping.Policy) { p.MinRate.Count = 51 },
		"min_rate needs rate":                       func(p *shaping.Policy) { p.Rate, p.Burst, p.MaxInFlight = limiter.Rate{}, 0, 1 },
		"min_in_flight must be between 1 and 4":     func(p *shaping.Policy) { p.MaxInFlight, p.MinInFlight = 4, 5 },
		"dry_run lets everything pass":              func(p *shaping.Policy) { p.DryRun = true },
		"a rate must be at least 1 in 100 years":    func(p *shaping.Policy) { p.MinRate.Per = math.MaxInt64 },
		"min_in_flight must be between 1 and 0, th": func(p *shaping.Policy) { p.MinInFlight = 1 },
	} {
		bad := p
		change(&bad)
		if _, err := shaping.New(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
