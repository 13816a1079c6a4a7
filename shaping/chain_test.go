package shaping

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// chainOf builds a Chain of policies: limiter.Policy or shaping.Policy.
func chainOf(t *testing.T, policies ...any) *Chain {
	t.Helper()
	store := limiter.NewMemory()
	var links []Link
	for _, p := range policies {
		switch p := p.(type) {
		case limiter.Policy:
			l, err := store.NewLimit(p)
			if err != nil {
				t.Fatal(err)
			}
			links = append(links, Link{Reject: l})
		case Policy:
			s, err := New(p)
			if err != nil {
				t.Fatal(err)
			}
			links = append(links, Link{Queue: s})
		}
	}
	return NewChain(store, links...)
}

func tokens(name string, perSecond, burst int64) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: perSecond, Per: time.Second}, Burst: burst}
}

func line(name string, perSecond int64, places int, maxWait time.Duration) Policy {
	return Policy{Name: name, Rate: limiter.Rate{Count: perSecond, Per: time.Second}, Burst: 1, Queue: places, MaxWait: maxWait}
}

func keys(values ...string) limiter.Request {
	var req limiter.Request
	for _, v := range values {
		switch v {
		case "SKIP":
			req.Keys = append(req.Keys, limiter.Key{Skip: true})
		case "MISSING":
			req.Keys = append(req.Keys, limiter.Key{Missing: true})
		default:
			req.Keys = append(req.Keys, limiter.Key{Value: v})
		}
	}
	return req
}

func acquire(t *testing.T, c *Chain, values ...string) limiter.Permit {
	t.Helper()
	p, err := c.Acquire(t.Context(), keys(values...))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (c *Chain) peek(i int, key string) limiter.Decision {
	if q := c.links[i].Queue; q != nil {
		return q.Peek(key)
	}
	return c.store.Peek(c.links[i].Reject, key, 1)
}

func TestChainRefusedByOneIsChargedToNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, order := range [][]any{
			{tokens("wide", 1, 10), tokens("narrow", 1, 1)},
			{tokens("narrow", 1, 1), tokens("wide", 1, 10)},
		} {
			c := chainOf(t, order...)
			wide := 0
			if order[1].(limiter.Policy).Name == "wide" {
				wide = 1
			}
			if p := acquire(t, c, "k", "k"); !p.Allowed || p.Policy != "narrow" || len(p.All) != 2 {
				t.Fatalf("first: %+v", p)
			}
			for range 3 {
				p := acquire(t, c, "k", "k")
				if p.Allowed || p.Policy != "narrow" || p.Reason != limiter.ReasonLimit {
					t.Fatalf("refused by %q, %q", p.Policy, p.Reason)
				}
				if d := p.All[wide]; !d.Allowed || d.Peeked || d.Remaining != 9 {
					t.Fatalf("the limit that agreed says %+v", d)
				}
			}
			if r := c.peek(wide, "k").Remaining; r != 9 {
				t.Errorf("wide has %d left, want 9", r)
			}
		}
	})
}

func TestChainRejectsBeforeAnythingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, line("q", 1, 5, time.Minute), tokens("t", 1, 1))
		acquire(t, c, "", "k")
		p := acquire(t, c, "", "k")
		if p.Allowed || p.Policy != "t" || p.TotalWait() != 0 {
			t.Fatalf("%+v", p)
		}
		// The queue was not reached: it is named in the fields and not counted.
		if d := p.All[0]; d.Policy != "q" || !d.Peeked || d.Limit != 6 {
			t.Errorf("the queue's decision is %+v", d)
		}
	})
}

func TestChainQueueThatRefusesGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dry := tokens("dry", 1, 10)
		dry.DryRun = true
		c := chainOf(t, tokens("t", 1, 10), line("q", 1, 1, time.Minute), dry)
		var wg sync.WaitGroup
		for range 2 { // one goes, one waits
			wg.Go(func() { acquire(t, c, "k", "", "k") })
		}
		synctest.Wait()
		p := acquire(t, c, "k", "", "k")
		if p.Allowed || p.Reason != limiter.ReasonQueueFull || p.Policy != "q" || p.RetryAfter != time.Second {
			t.Fatalf("%+v", p.Decision)
		}
		for _, i := range []int{0, 2} {
			if r := c.peek(i, "k").Remaining; r != 8 {
				t.Errorf("limit %d has %d left, want 8", i, r)
			}
		}
		wg.Wait()
	})
}

// A request that waits in a first queue uses its departure there, also when the
// second queue refuses it.
func TestChainQueuesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c := chainOf(t, line("first", 10, 5, time.Minute), line("second", 5, 1, time.Minute))
		var mu sync.Mutex
		left := map[time.Duration]limiter.Permit{}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				p := acquire(t, c, "", "")
				mu.Lock()
				defer mu.Unlock()
				left[time.Since(start)] = p
			})
		}
		wg.Wait()
		// first lets go at 0, 100, 200, 300 ms. second passes the one at 0,
		// holds that of 100 until 200, is then free for that of 200 (until
		// 400), and full at 300.
		for at, want := range map[time.Duration]limiter.Reason{
			0: "", 200 * time.Millisecond: "", 400 * time.Millisecond: "", 300 * time.Millisecond: limiter.ReasonQueueFull,
		} {
			p, ok := left[at]
			if !ok {
				t.Errorf("nothing ended at %v: %v", at, left)
			} else if p.Reason != want {
				t.Errorf("at %v: reason %q, want %q", at, p.Reason, want)
			}
		}
		if p := left[400*time.Millisecond]; p.TotalWait() != 400*time.Millisecond || p.Departed().Sub(start) != 400*time.Millisecond {
			t.Errorf("waited %v, departed at %v", p.TotalWait(), p.Departed().Sub(start))
		}
	})
}

func TestChainClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("t", 1, 10), line("q", 1, 5, time.Minute))
		acquire(t, c, "k", "")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		p, err := c.Acquire(ctx, keys("k", ""))
		if !errors.Is(err, context.DeadlineExceeded) || p.Allowed {
			t.Fatalf("%v, %+v", err, p)
		}
		if d := p.All[1]; d.Reason != limiter.ReasonClientGone || d.Waited != 300*time.Millisecond || d.Outcome() != limiter.OutcomeGone {
			t.Errorf("%+v", d)
		}
		// Leaving is no way round the limits before the queue.
		if r := c.peek(0, "k").Remaining; r != 8 {
			t.Errorf("%d left, want 8", r)
		}
	})
}

// At shutdown who waits is refused, not gone.
func TestChainShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("t", 1, 10), line("q", 1, 5, time.Minute))
		acquire(t, c, "k", "")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { stop(limiter.ErrShutdown) })
		p, err := c.Acquire(ctx, keys("k", ""))
		if err != nil || p.Allowed || p.Reason != limiter.ReasonShutdown || p.Status != 503 || p.RetryAfter != time.Second {
			t.Fatalf("%v, %+v", err, p.Decision)
		}
		if p.Outcome() != limiter.OutcomeRejected {
			t.Errorf("counts as %s", p.Outcome())
		}
		if r := c.peek(0, "k").Remaining; r != 9 {
			t.Errorf("%d left, want 9", r)
		}
	})
}

func TestChainKeysMissingAndSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("a", 1, 1), tokens("b", 1, 1))
		p := acquire(t, c, "k", "MISSING")
		if p.Allowed || p.Reason != limiter.ReasonMissingKey || p.Status != 400 || p.Policy != "b" {
			t.Fatalf("%+v", p.Decision)
		}
		if d := p.All[0]; !d.Peeked || d.Remaining != 1 {
			t.Errorf("the other limit was asked: %+v", d)
		}
		for range 3 {
			if p := acquire(t, c, "SKIP", "SKIP"); !p.Allowed || len(p.All) != 0 || p.Policy != "" {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// Of several that refuse, the one is told whose time is longest: a client that
// comes back sooner is refused again.
func TestChainTellsTheLongestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("short", 1, 1),
			limiter.Policy{Name: "long", Algorithm: limiter.FixedWindow, Limit: 1, Window: time.Hour})
		acquire(t, c, "k", "k")
		p := acquire(t, c, "k", "k")
		if p.Policy != "long" || p.All[0].Allowed || p.All[1].Allowed {
			t.Fatalf("%+v", p)
		}
		time.Sleep(p.RetryAfter)
		if p := acquire(t, c, "k", "k"); !p.Allowed {
			t.Errorf("refused after Retry-After: %+v", p.Decision)
		}
	})
}

// N18, N19, E6: a dry run decides and counts, delays nobody, and is charged
// only for what goes on.
func TestChainDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		dryTokens, dryLine := tokens("t", 1, 2), line("q", 1, 1, time.Minute)
		dryTokens.DryRun, dryLine.DryRun = true, true
		c := chainOf(t, dryTokens, dryLine, tokens("real", 1, 3))
		want := []struct {
			t, q limiter.Outcome
			wait time.Duration
			all  bool
		}{
			{limiter.OutcomeAdmitted, limiter.OutcomeAdmitted, 0, true},
			{limiter.OutcomeAdmitted, limiter.OutcomeQueued, time.Second, true},
			{limiter.OutcomeRejected, limiter.OutcomeRejected, 0, true},
			{"", "", 0, false},
		}
		for i, w := range want {
			p := acquire(t, c, "k", "", "k")
			if p.Allowed != w.all {
				t.Fatalf("request %d: %+v", i, p)
			}
			if !w.all {
				if d := p.All[0]; !d.Peeked {
					t.Errorf("the dry run counts a request that was refused: %+v", d)
				}
				continue
			}
			if d := p.All[0]; d.Outcome() != w.t || !d.DryRun {
				t.Errorf("request %d: tokens %+v", i, d)
			}
			if d := p.All[1]; d.Outcome() != w.q || d.Waited != w.wait || !d.DryRun {
				t.Errorf("request %d: queue %+v", i, d)
			}
			if p.TotalWait() != 0 || p.Policy != "real" {
				t.Errorf("request %d: waited %v, headers for %q", i, p.TotalWait(), p.Policy)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a dry run took %v", d)
		}
	})
}

// After a wait, the fields tell what is left now, not what was on arrival.
func TestChainFieldsAreFreshAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, tokens("t", 1, 2), line("q", 1, 100, time.Hour))
		acquire(t, c, "k", "")
		p := acquire(t, c, "k", "")
		if p.TotalWait() != time.Second {
			t.Fatalf("waited %v", p.TotalWait())
		}
		if d := p.All[0]; d.Remaining != 1 || d.At.IsZero() || d.Waited != 0 {
			t.Errorf("%+v: want 1 remaining, a second after two of two were taken", d)
		}
	})
}

// A closed gate has no limit charged in vain, and binds nobody whom no limit
// binds.
func TestChainToAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dry := tokens("dry", 1, 3)
		dry.DryRun = true
		gates := NewGates()
		gates.Of("").Close("throttled", time.Now().Add(1500*time.Millisecond))

		c := chainOf(t, dry, tokens("t", 1, 3), tokens("u", 1, 3)).To(gates)
		p := acquire(t, c, "k", "k", "k")
		if p.Allowed || p.Policy != "t" || p.Reason != limiter.ReasonPaused || p.RetryAfter != 1500*time.Millisecond || p.Status != 429 {
			t.Errorf("reject mode: %+v", p.Decision)
		}
		if n := c.peek(1, "k").Remaining; n != 3 {
			t.Errorf("the refusal was charged: %d are left", n)
		}
		if p := acquire(t, c, "k", "SKIP", "k"); p.Policy != "u" || p.Allowed {
			t.Errorf("with a limit that does not ask: %+v", p.Decision)
		}
		if p := acquire(t, c, "k", "SKIP", "SKIP"); !p.Allowed {
			t.Errorf("with no limit that asks: %+v", p.Decision)
		}

		c = chainOf(t, tokens("t", 1, 3), line("a", 1, 5, time.Minute), line("b", 1, 5, time.Minute)).To(gates)
		if d := c.Foresee(keys("k", "", "")); d != 1500*time.Millisecond {
			t.Errorf("it would wait %v in both queues together", d)
		}
		begun := time.Now()
		for i, want := range []time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond} {
			if p := acquire(t, c, "k", "", ""); !p.Allowed || time.Since(begun) != want {
				t.Errorf("request %d left at %v: %+v", i, time.Since(begun), p.Decision)
			}
		}
	})
}

func TestChainToKeyedGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := NewKeyedGates(2)
		c := chainOf(t, tokens("t", 100, 100)).To(gates)
		gates.Of("a").Close("throttled", time.Now().Add(time.Minute))
		if p := acquire(t, c, "k", "a"); p.Reason != limiter.ReasonPaused {
			t.Errorf("a passes: %+v", p.Decision)
		}
		// Inventing keys frees none that is closed, and takes no more room.
		for _, key := range []string{"b", "c", "d", "e"} {
			if p := acquire(t, c, "k", key); !p.Allowed {
				t.Errorf("%s is held back: %+v", key, p.Decision)
			}
		}
		if p := acquire(t, c, "k", "a"); p.Reason != limiter.ReasonPaused {
			t.Errorf("a was forgotten: %+v", p.Decision)
		}
		n := 0
		gates.Each(func(*Gate) { n++ })
		if n != 2 {
			t.Errorf("%d gates are remembered", n)
		}
	})
}

// A limit that a request costs nothing lets it by, so it is another that has to
// hold it to what the upstream has left.
func TestCostOfNothingIsHeldToAGateElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := NewGates()
		c := chainOf(t, line("first", 100, 50, time.Hour), line("second", 100, 50, time.Hour)).To(gates)
		gates.Of("").Heard(0, 10, time.Now().Add(100*time.Second), time.Hour)
		start := time.Now()
		var left atomic.Int64
		for range 20 {
			go func() {
				p, err := c.Acquire(t.Context(), limiter.Request{Keys: []limiter.Key{{}, {Free: true}}})
				if err == nil && p.Allowed && time.Since(start) < 99*time.Second {
					left.Add(1)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		if n := left.Load(); n < 9 || n > 10 {
			t.Errorf("%d left before the reset, of which 10 remained", n)
		}
	})
}
