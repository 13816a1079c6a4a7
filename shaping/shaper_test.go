package shaping_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// traefik/traefik #5918: rates below one a second.
func TestCase01SlowRate(t *testing.T) {
	play(t, q(t, "6/m", 3, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(3)
		s.at(time.Hour)
		wantReleased(t, all, 0, 10*time.Second, 20*time.Second)
	})
}

// NGINX's integers make 116 of 7 requests a minute.
func TestCase04SevenAMinuteDoesNotDrift(t *testing.T) {
	play(t, q(t, "7/m", 1000, 2*time.Hour), func(t *testing.T, s *scene) {
		all := s.crowd(701)
		s.at(2 * time.Hour)
		for k, a := range all {
			want := time.Duration((int64(k)*int64(time.Minute) + 6) / 7) // rounded up
			if !a.decision.Allowed || a.ended != want {
				t.Fatalf("request %d ended at %v as %+v, want %v", k, a.ended, a.decision, want)
			}
		}
		if last := all[700].ended; last != 6000*time.Second {
			t.Fatalf("the last left at %v", last)
		}
	})
}

// envoyproxy/envoy #19474, #24282: 60 to 70 % of the limit.
func TestCase08LongRunRateUnderOverload(t *testing.T) {
	for _, c := range []struct {
		rate    string
		clients int
		gap     time.Duration
		want    int
	}{
		{"2000/s", 300, 500 * time.Microsecond, 60_000},
		{"100/s", 50, 10 * time.Millisecond, 3000},
	} {
		play(t, q(t, c.rate, 5000, 10*time.Second), func(t *testing.T, s *scene) {
			var mu sync.Mutex
			var left []time.Duration
			var clients sync.WaitGroup
			for range c.clients {
				clients.Go(func() {
					for {
						d, err := s.Acquire(t.Context(), "", nil)
						if err != nil || !d.Allowed {
							t.Errorf("%+v, %v", d, err)
							return
						}
						if s.since() >= 30*time.Second {
							return
						}
						mu.Lock()
						left = append(left, d.At.Sub(s.start))
						mu.Unlock()
					}
				})
			}
			clients.Wait()
			if len(left) != c.want {
				t.Errorf("%s: %d left in 30 s, want %d", c.rate, len(left), c.want)
			}
			slices.Sort(left)
			for k, at := range left {
				if at != time.Duration(k)*c.gap {
					t.Fatalf("%s: departure %d at %v", c.rate, k, at)
				}
			}
		})
	}
}

// golang/go #56924, cadence-workflow/cadence PR #6030.
func TestCase16LeaverGivesUpItsPlace(t *testing.T) {
	play(t, q(t, "1/s", 20, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(20)
		s.at(500 * time.Millisecond)
		if n := s.Snapshot().Depth; n != 19 {
			t.Fatalf("depth %d", n)
		}
		hungUp := errors.New("hung up")
		for _, a := range all[1:19] {
			a.cancel(hungUp)
		}
		synctest.Wait()
		if n := s.Snapshot().Depth; n != 1 {
			t.Fatalf("depth %d after 18 left", n)
		}
		for i, a := range all[1:19] {
			d := a.decision
			if a.err != hungUp || d.Reason != limiter.ReasonClientGone || !d.Queued ||
				d.Waited != 500*time.Millisecond || d.Ahead != i || a.ended != 500*time.Millisecond {
				t.Fatalf("leaver %d: %+v, %v", i, a, a.err)
			}
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second)
		if d := all[19].decision; d.Waited != time.Second || d.Ahead != 18 {
			t.Fatalf("%+v", d)
		}
	})
}

// uber-go/ratelimit #73: a waiter that cannot be interrupted.
func TestCase18AllHangUp(t *testing.T) {
	play(t, q(t, "1/s", 1000, time.Hour), func(t *testing.T, s *scene) {
		goroutines := runtime.NumGoroutine()
		all := s.crowd(1001)
		s.at(300 * time.Millisecond)
		if n := runtime.NumGoroutine(); n < goroutines+1000 {
			t.Fatalf("%d of 1000 wait", n-goroutines)
		}
		for _, a := range all {
			a.cancel(context.Canceled)
		}
		synctest.Wait()
		for i, a := range all[1:] {
			if !a.over || a.ended != 300*time.Millisecond {
				t.Fatalf("request %d did not end as it hung up: %+v", i+1, a)
			}
		}
		// The runtime may have started a few of its own.
		if n, depth := runtime.NumGoroutine(), s.Snapshot().Depth; n > goroutines+10 || depth != 0 {
			t.Fatalf("%d goroutines and %d places are left over", n-goroutines, depth)
		}
		next := s.ask("", nil)
		s.at(time.Hour)
		wantReleased(t, []*asked{next}, time.Second)
	})
}

// songzhibin97/gkit PR #134.
func TestCase18CancelledContextUsesNothing(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Hour), func(t *testing.T, s *scene) {
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		for range 10 {
			d, err := s.Acquire(ctx, "", nil)
			if err != why || d.Allowed || d.Queued || d.Reason != limiter.ReasonClientGone {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if n := s.Snapshot().Keys; n != 0 {
			t.Fatalf("%d keys", n)
		}
		wantReleased(t, s.crowd(1), 0)
	})
}

// limithit/ngx_dynamic_limit_req_module #22: a delay that does not.
func TestCase19DelayDelays(t *testing.T) {
	play(t, q(t, "1/s", 5, 10*time.Second), func(t *testing.T, s *scene) {
		all := s.crowd(3)
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second, 2*time.Second)
	})
}

// openresty/lua-resty-limit-traffic #11, BerriAI/litellm PR #14450.
func TestCase20NumberAtTheBrim(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(20)
		for i, a := range all[6:] {
			d := a.decision
			if !a.over || d.Reason != limiter.ReasonQueueFull || d.Status != 429 || d.RetryAfter != time.Second || d.Remaining != 0 {
				t.Fatalf("request %d: %+v", i+6, a)
			}
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second, 2*time.Second, 3*time.Second, 4*time.Second, 5*time.Second)
	})
}

// haproxy/haproxy #3290: a lost wake-up keeps a request until its timeout.
func TestCase22NoLostWakeUp(t *testing.T) {
	play(t, q(t, "200/s", 500, 5*time.Second), func(t *testing.T, s *scene) {
		rnd := rand.New(rand.NewPCG(22, 22))
		for round := range 20 {
			from := len(s.asked)
			for range 200 { // really at once: they race for the places
				a := s.start1("", nil)
				if rnd.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rnd.Int64N(int64(time.Second))), func() { a.cancel(context.Canceled) })
				}
			}
			s.at(time.Duration(round+1) * 2 * time.Second)
			var left []time.Duration
			for _, a := range s.asked[from:] {
				if !a.over {
					t.Fatalf("round %d: somebody still waits", round)
				}
				if a.decision.Waited > 995*time.Millisecond { // 199 intervals
					t.Fatalf("round %d: waited %v", round, a.decision.Waited)
				}
				if a.decision.Allowed {
					left = append(left, a.ended)
				}
			}
			slices.Sort(left)
			if len(left) < 100 || left[0] != s.asked[from].came {
				t.Fatalf("round %d: %d left, the first at %v", round, len(left), left[0])
			}
			for i := 1; i < len(left); i++ {
				if gap := left[i] - left[i-1]; gap < 5*time.Millisecond {
					t.Fatalf("round %d: two left within %v", round, gap)
				}
			}
		}
	})
}

// express-rate-limit/express-slow-down #6: a wait without a bound.
func TestCase24RefusedOnEntry(t *testing.T) {
	p := q(t, "1/s", 1000, 0)
	play(t, p, func(t *testing.T, s *scene) {
		if got := s.Policy().MaxWait; got != 30*time.Second {
			t.Fatalf("default max_wait %v", got)
		}
		all := s.crowd(40)
		for i, a := range all[31:] {
			d := a.decision
			if !a.over || d.Reason != limiter.ReasonMaxWait || d.RetryAfter != time.Second || d.Remaining != 970 || d.Queued {
				t.Fatalf("request %d: %+v", i+31, d)
			}
		}
		s.at(time.Hour)
		if got := released(all); len(got) != 31 || got[30] != 30*time.Second {
			t.Fatalf("released at %v", got)
		}
	})
}

func TestCase26Order(t *testing.T) {
	play(t, q(t, "20/s", 300, time.Minute), func(t *testing.T, s *scene) {
		for i := range 200 {
			s.at(time.Duration(i) * 10 * time.Millisecond)
			s.ask("", nil)
		}
		s.at(time.Minute)
		got := released(s.asked)
		if len(got) != 200 {
			t.Fatalf("%d were released", len(got))
		}
		for i, at := range got {
			if at != time.Duration(i)*50*time.Millisecond {
				t.Fatalf("request %d was released at %v", i, at)
			}
		}
	})
}

// nginx's limit_req.t: burst=1 nodelay, then after 1/rate one passes.
func TestScenarioN2N4(t *testing.T) {
	p := tb(t, "2/s", 2, 1, time.Nanosecond) // nobody waits so short a time
	p.Status = 501
	play(t, p, func(t *testing.T, s *scene) {
		all := s.crowd(7)
		wantReleased(t, all, 0, 0)
		for _, a := range all[2:] {
			if d := a.decision; d.Reason != limiter.ReasonMaxWait || d.Status != 501 || d.RetryAfter != time.Second/2-1 {
				t.Fatalf("%+v", d)
			}
		}
		s.at(500 * time.Millisecond)
		wantReleased(t, s.crowd(2), 500*time.Millisecond)
	})
}

// nginx's limit_req_delay.t: delay=1 burst=2.
func TestScenarioN13toN17(t *testing.T) {
	play(t, tb(t, "30/m", 2, 1, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(4)
		if d := all[3].decision; d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 2*time.Second {
			t.Fatalf("the fourth: %+v", d)
		}
		s.at(time.Minute)
		wantReleased(t, all, 0, 0, 2*time.Second)
		if d := all[2].decision; !d.Queued || d.Waited != 2*time.Second {
			t.Fatalf("the third: %+v", d)
		}
	})
}

// nginx's N6: leaky 1000/s, idle for 100 ms, no credit and no underflow.
func TestScenarioN6(t *testing.T) {
	play(t, q(t, "1000/s", 5, time.Minute), func(t *testing.T, s *scene) {
		s.crowd(1)
		s.at(100 * time.Millisecond)
		all := s.crowd(2)
		s.at(time.Second)
		wantReleased(t, all, 100*time.Millisecond, 101*time.Millisecond)
	})
}

// Traefik: 100/s, one after the other.
func TestScenarioT1(t *testing.T) {
	play(t, tb(t, "100/s", 1, 10, time.Minute), func(t *testing.T, s *scene) {
		for range 101 {
			if d, err := s.Acquire(t.Context(), "", nil); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		if took := s.since(); took != time.Second {
			t.Fatalf("101 requests took %v", took)
		}
	})
}

// Traefik: the first requests of a new key at once admit exactly the burst.
func TestScenarioT5(t *testing.T) {
	play(t, tb(t, "1/h", 7, 1, time.Second), func(t *testing.T, s *scene) {
		for range 100 {
			s.start1("new", nil)
		}
		synctest.Wait()
		if n := len(released(s.asked)); n != 7 {
			t.Fatalf("%d passed", n)
		}
	})
}

// x/time/rate on reservations: what a leaver gives back.
func TestScenarioX5X6(t *testing.T) {
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(5) // waiting for 1, 2, 3, 4 s
		s.at(1500 * time.Millisecond)
		all[1].cancel(nil) // after its turn: gives nothing back
		all[2].cancel(nil) // before: those behind move up
		s.at(3500 * time.Millisecond)
		wantReleased(t, all, 0, time.Second, 2*time.Second, 3*time.Second)
		late := s.ask("", nil)
		s.at(3600 * time.Millisecond)
		late.cancel(nil) // nobody behind: the next has its turn
		synctest.Wait()
		next := s.ask("", nil)
		s.at(time.Minute)
		wantReleased(t, []*asked{next}, 4*time.Second)
	})
}

// x/time/rate: a wait that is longer than it may be is refused at once.
func TestScenarioX7(t *testing.T) {
	play(t, q(t, "1/s", 10, 2500*time.Millisecond), func(t *testing.T, s *scene) {
		s.crowd(3)
		a := s.ask("", nil)
		d := a.decision
		if !a.over || a.ended != 0 || d.Reason != limiter.ReasonMaxWait || d.RetryAfter != 500*time.Millisecond {
			t.Fatalf("%+v", a)
		}
		if d.ResetAfter != d.RetryAfter {
			t.Fatalf("more is free after %v, and trying again is worth it after %v", d.ResetAfter, d.RetryAfter)
		}
	})
}

// x/time/rate: a change of rate and burst keeps the order of who waits.
func TestScenarioX10(t *testing.T) {
	play(t, q(t, "1/h", 10, 24*time.Hour), func(t *testing.T, s *scene) {
		all := s.crowd(6)
		s.at(30 * time.Minute)
		adopt(t, s, tb(t, "1/s", 3, 2, time.Second)) // the timer stood at an hour
		if snap := s.Snapshot(); snap.Depth != 5 || snap.Capacity != 2 || snap.OldestWait != 30*time.Minute {
			t.Fatalf("%+v", snap)
		}
		refused := s.ask("", nil)
		if d := refused.decision; d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 4500*time.Millisecond {
			t.Fatalf("%+v", d) // until the fourth of five has left, and the wait is short enough
		}
		s.at(30*time.Minute + 2*time.Second)
		adopt(t, s, q(t, "2/s", 10, time.Minute))
		s.at(time.Hour)
		half := 30*time.Minute + 500*time.Millisecond
		wantReleased(t, all, 0, half, half+time.Second, half+1750*time.Millisecond,
			half+2250*time.Millisecond, half+2750*time.Millisecond)
	})
}

func adopt(t *testing.T, s *scene, p shaping.Policy) {
	t.Helper()
	if err := s.Adopt(p); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// milvus-io/milvus #35675.
func TestCase11AdoptDoesNotFill(t *testing.T) {
	play(t, tb(t, "1/s", 10, 1, time.Nanosecond), func(t *testing.T, s *scene) {
		for i := range 21 {
			s.at(time.Duration(i) * 100 * time.Millisecond)
			adopt(t, s, tb(t, []string{"1/s", "2/s"}[i%2], 10, 1, time.Nanosecond))
			s.crowd(12)
		}
		// 10 at once; of the 3 tokens of 2 s, half of them at 1/s, all whole.
		if n := len(released(s.asked)); n != 13 {
			t.Fatalf("%d passed", n)
		}
	})
}

func TestAdoptRefusesWhatIsWrong(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		before := s.Policy()
		if err := s.Adopt(shaping.Policy{}); err == nil || s.Policy() != before {
			t.Fatalf("%v, %+v", err, s.Policy())
		}
	})
}

// Kubernetes' priority and fairness: a request cancelled in the queue.
func TestScenarioK2(t *testing.T) {
	play(t, q(t, "1/m", 5, time.Hour), func(t *testing.T, s *scene) {
		s.ask("", nil)
		a := s.ask("", func() bool { t.Error("asked about a request that had left"); return false })
		if n := s.Snapshot().Depth; n != 1 {
			t.Fatalf("depth %d", n)
		}
		s.at(7 * time.Second)
		a.cancel(context.DeadlineExceeded)
		synctest.Wait()
		if n := s.Snapshot().Depth; n != 0 || !a.over || a.ended != 7*time.Second || a.err != context.DeadlineExceeded {
			t.Fatalf("depth %d, %+v", n, a)
		}
	})
}

// The grant comes first and the client leaves before it has heard of it: the
// departure is used, and nobody gets it a second time.
func TestGrantThenCancel(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		s.ask("", nil)
		var first *asked
		first = s.ask("", func() bool {
			first.cancel(context.Canceled)
			return false
		})
		second := s.ask("", nil)
		s.at(time.Minute)
		if d := first.decision; first.err != context.Canceled || d.Reason != limiter.ReasonClientGone || d.Waited != time.Second {
			t.Fatalf("%+v, %v", d, first.err)
		}
		wantReleased(t, []*asked{first, second}, 2*time.Second)
	})
}

// The client leaves one nanosecond before its turn: that is the next one's.
func TestCancelThenGrant(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(3)
		s.at(time.Second - 1)
		all[1].cancel(context.Canceled)
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second)
	})
}

// Both at the same instant, in whatever order the scheduler takes them: one
// departure a second, none lost, none doubled.
func TestGrantAndCancelAtOneInstant(t *testing.T) {
	for range 100 {
		play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
			all := s.crowd(3)
			time.AfterFunc(time.Second, func() { all[1].cancel(context.Canceled) })
			s.at(time.Minute)
			switch first, second := all[1], all[2].ended; {
			case first.ended != time.Second:
				t.Fatalf("ended at %v", first.ended)
			case first.decision.Allowed && second != 2*time.Second:
				t.Fatalf("one departure for two: the second left at %v", second)
			case second != time.Second && second != 2*time.Second:
				t.Fatalf("the second left at %v", second)
			}
		})
	}
}

// A client that is found gone just before its release ends at once, and the
// same departure goes to the first that is still there.
func TestGoneIsAskedBeforeRelease(t *testing.T) {
	play(t, q(t, "1/s", 5, time.Minute), func(t *testing.T, s *scene) {
		asks := 0
		left := func() bool { asks++; return true }
		stays := func() bool { asks++; return false }
		all := []*asked{s.ask("", left), s.ask("", left), s.ask("", left), s.ask("", stays), s.ask("", nil), s.ask("", left)}
		s.at(time.Minute)
		wantReleased(t, all, 0, time.Second, 2*time.Second)
		for _, i := range []int{1, 2, 5} {
			want := time.Second
			if i == 5 {
				want = 3 * time.Second
			}
			a := all[i]
			if a.err != shaping.ErrClientGone || a.decision.Reason != limiter.ReasonClientGone || a.decision.Waited != want || a.ended != want {
				t.Fatalf("request %d: %+v", i, a)
			}
		}
		if asks != 4 {
			t.Fatalf("asked %d times; once for each that waited, never for one that passed", asks)
		}
		// The last one's departure at 3 s was not used.
		wantReleased(t, s.crowd(1), time.Minute)
	})
}

func TestKeysHaveQueuesOfTheirOwn(t *testing.T) {
	play(t, q(t, "1/s", 2, time.Minute), func(t *testing.T, s *scene) {
		a := []*asked{s.ask("a", nil), s.ask("a", nil), s.ask("a", nil), s.ask("a", nil)}
		s.at(500 * time.Millisecond)
		b := []*asked{s.ask("b", nil), s.ask("b", nil)}
		if snap := s.Snapshot(); snap != (shaping.Snapshot{Depth: 3, Capacity: 2, OldestWait: 500 * time.Millisecond, Keys: 2}) {
			t.Fatalf("%+v", snap)
		}
		s.at(time.Minute)
		wantReleased(t, a, 0, time.Second, 2*time.Second)
		wantReleased(t, b, 500*time.Millisecond, 1500*time.Millisecond)
	})
}

// A line in which somebody waits is never forgotten, one that is as good as new
// goes first.
func TestFullOfWaitersRefusesNewKeys(t *testing.T) {
	p := q(t, "1/s", 5, 20*time.Second)
	p.MaxKeys = 2
	play(t, p, func(t *testing.T, s *scene) {
		old := []*asked{s.ask("a", nil), s.ask("a", nil), s.ask("b", nil), s.ask("b", nil)}
		refused := s.ask("c", nil)
		d := refused.decision
		if d.Reason != limiter.ReasonQueueFull || d.RetryAfter != 20*time.Second || d.Status != 429 || d.Limit != 6 || d.Remaining != 0 {
			t.Fatalf("%+v", d)
		}
		s.at(time.Second)
		wantReleased(t, old, 0, time.Second, 0, time.Second)
		s.at(1500 * time.Millisecond) // a and b still have half a second to pay
		wantReleased(t, []*asked{s.ask("c", nil)}, 1500*time.Millisecond)
		if snap := s.Snapshot(); snap.Keys != 2 || snap.Evicted != 1 {
			t.Fatalf("%+v", snap)
		}
		s.at(3 * time.Second)
		s.ask("d", nil)
		s.ask("e", nil)
		if snap := s.Snapshot(); snap.Keys > 2 || snap.Evicted != 1 {
			t.Fatalf("%+v: forgetting an idle key was counted", snap)
		}
		p.MaxKeys = 1
		s.at(10 * time.Second)
		adopt(t, s, p)
		if n := s.Snapshot().Keys; n != 1 {
			t.Fatalf("%d keys", n)
		}
	})
}

// What a decision says about the budget, through the life of a queue.
func TestDecisionFields(t *testing.T) {
	play(t, tb(t, "2/s", 2, 3, time.Minute), func(t *testing.T, s *scene) {
		base := limiter.Decision{Policy: "test", Status: 429, Limit: 5, Window: time.Second}
		check := func(what string, got limiter.Decision, change func(d *limiter.Decision)) {
			t.Helper()
			want := base
			want.At = s.start.Add(s.since())
			change(&want)
			if !got.At.Equal(want.At) {
				t.Errorf("%s: at %v, want %v", what, got.At.Sub(s.start), want.At.Sub(s.start))
			}
			got.At = want.At
			if got != want {
				t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
			}
		}
		check("peek at a new key", s.Peek("k"), func(d *limiter.Decision) { d.Allowed, d.Remaining, d.Peeked = true, 5, true })
		if n := s.Snapshot().Keys; n != 0 {
			t.Fatal("Peek made a key")
		}
		check("first", s.ask("k", nil).decision, func(d *limiter.Decision) { d.Allowed, d.Remaining, d.ResetAfter = true, 4, time.Second/2 })
		s.at(100 * time.Millisecond)
		check("second", s.ask("k", nil).decision, func(d *limiter.Decision) { d.Allowed, d.Remaining, d.ResetAfter = true, 3, 400*time.Millisecond })
		check("peek with the burst used", s.Peek("k"), func(d *limiter.Decision) {
			d.Allowed, d.Remaining, d.ResetAfter, d.Peeked = true, 3, 400*time.Millisecond, true
		})
		third, fourth, fifth := s.ask("k", nil), s.ask("k", nil), s.ask("k", nil)
		check("refused", s.ask("k", nil).decision, func(d *limiter.Decision) {
			d.Reason, d.RetryAfter, d.ResetAfter, d.Ahead = limiter.ReasonQueueFull, 400*time.Millisecond, 400*time.Millisecond, 3
		})
		check("peek when full", s.Peek("k"), func(d *limiter.Decision) {
			d.Reason, d.RetryAfter, d.ResetAfter, d.Ahead, d.Peeked = limiter.ReasonQueueFull, 400*time.Millisecond, 400*time.Millisecond, 3, true
		})
		s.at(500 * time.Millisecond)
		check("third", third.decision, func(d *limiter.Decision) {
			d.Allowed, d.Queued, d.Waited, d.Remaining, d.ResetAfter = true, true, 400*time.Millisecond, 1, time.Second/2
		})
		s.at(700 * time.Millisecond)
		fourth.cancel(context.Canceled)
		synctest.Wait()
		check("fourth", fourth.decision, func(d *limiter.Decision) {
			d.Reason, d.Queued, d.Waited, d.Ahead, d.Remaining, d.ResetAfter = limiter.ReasonClientGone, true, 600*time.Millisecond, 1, 2, 300*time.Millisecond
		})
		s.at(time.Second)
		check("fifth", fifth.decision, func(d *limiter.Decision) {
			d.Allowed, d.Queued, d.Waited, d.Ahead, d.Remaining, d.ResetAfter = true, true, 900*time.Millisecond, 2, 3, time.Second/2
		})
		s.at(2 * time.Second)
		check("peek when idle", s.Peek("k"), func(d *limiter.Decision) { d.Allowed, d.Remaining, d.Peeked = true, 5, true })
	})
}

func TestPolicyValidate(t *testing.T) {
	good := q(t, "1/s", 1, time.Second)
	for _, c := range []struct {
		what string // in the message
		make func(p *shaping.Policy)
	}{
		{"", func(p *shaping.Policy) {}},
		{"", func(p *shaping.Policy) { p.MaxWait, p.MaxKeys, p.Status = 0, 0, 0 }},
		{"rate", func(p *shaping.Policy) { p.Rate = limiter.Rate{} }},
		{"burst", func(p *shaping.Policy) { p.Burst = 0 }},
		{"queue", func(p *shaping.Policy) { p.Queue = 0 }},
		{"queue", func(p *shaping.Policy) { p.Queue = shaping.MaxQueue + 1 }},
		{"max_wait", func(p *shaping.Policy) { p.MaxWait = -1 }},
		{"max_wait", func(p *shaping.Policy) { p.MaxWait = limiter.MaxPeriod + 1 }},
		{"max_keys", func(p *shaping.Policy) { p.MaxKeys = -1 }},
	} {
		p := good
		c.make(&p)
		_, err := shaping.New(p)
		if (err == nil) != (c.what == "") || err != nil && !strings.HasPrefix(err.Error(), c.what) {
			t.Errorf("%+v: %v, want one about %q", p, err, c.what)
		}
	}
}

// Everything at once, for the race detector: many keys, few places, clients
// that leave, changes, looks.
func TestRace(t *testing.T) {
	p := q(t, "500/s", 20, 100*time.Millisecond)
	p.MaxKeys = 8
	play(t, p, func(t *testing.T, s *scene) {
		var all sync.WaitGroup
		for worker := range 16 {
			rnd := rand.New(rand.NewPCG(uint64(worker), 7))
			all.Go(func() {
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.Int64N(int64(40*time.Millisecond))))
					gone := rnd.IntN(10) == 0
					d, err := s.Acquire(ctx, fmt.Sprint(rnd.IntN(12)), func() bool { return gone })
					if d.Allowed != (d.Reason == limiter.ReasonNone) || (err != nil) != (d.Reason == limiter.ReasonClientGone) {
						t.Errorf("%+v, %v", d, err)
					}
					cancel()
				}
			})
		}
		all.Go(func() {
			for i := range 100 {
				time.Sleep(3 * time.Millisecond)
				p.Queue, p.DryRun, p.MaxKeys = 5+i%20, i%5 == 0, 4+i%8
				if err := s.Adopt(p); err != nil {
					t.Error(err)
				}
				s.Peek(fmt.Sprint(i % 12))
				if snap := s.Snapshot(); snap.Depth < 0 || snap.Keys > 12 {
					t.Errorf("%+v", snap)
				}
			}
		})
		all.Wait()
	})
}
