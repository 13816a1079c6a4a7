package shaping_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
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
						d, err := s.Acquire(t.Context(), shaping.Request{})
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
		if n := s.Snapshot().Depth; n != 1000 {
			t.Fatalf("%d of 1000 wait", n)
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
			d, err := s.Acquire(ctx, shaping.Request{})
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
