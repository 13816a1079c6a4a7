package shaping_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// nginx's limit_req_dry_run.t: what would wait and what would be refused passes
// at once and is reported as such.
func TestScenarioN18N19(t *testing.T) {
	p := q(t, "1/s", 5, time.Minute)
	p.DryRun = true
	play(t, p, func(t *testing.T, s *scene) {
		all := s.crowd(10)
		for i, a := range all {
			d := a.decision
			want := limiter.Decision{
				Policy: "test", Status: 429, Limit: 6, Window: time.Second, At: d.At, DryRun: true,
				Allowed: true, ResetAfter: time.Second, Remaining: int64(max(0, 5-i)),
			}
			switch {
			case i > 5:
				want.Allowed, want.Reason, want.RetryAfter, want.Ahead = false, limiter.ReasonQueueFull, time.Second, 5
			case i > 0:
				want.Queued, want.Waited, want.Ahead = true, time.Duration(i)*time.Second, i-1
			}
			if !a.over || a.ended != 0 || d != want {
				t.Fatalf("request %d:\n got %+v\nwant %+v", i, d, want)
			}
		}
	})
}

// envoyproxy/ratelimit #218: the limit's state is as if it were enforced, and
// fades as if it were, though nothing wakes it.
func TestCase68DryRunKeepsState(t *testing.T) {
	p := q(t, "1/s", 5, time.Minute)
	p.DryRun, p.MaxKeys = true, 1
	play(t, p, func(t *testing.T, s *scene) {
		depth := func(want int) {
			t.Helper()
			if snap := s.Snapshot(); snap.Depth != want || snap.OldestWait != 0 {
				t.Fatalf("%+v, want depth %d and nobody waiting", snap, want)
			}
		}
		s.crowd(100)
		depth(5)
		s.at(time.Second - 1)
		depth(5)
		s.at(time.Second)
		depth(4)
		s.at(3500 * time.Millisecond)
		depth(2)
		if d := s.ask("", nil).decision; !d.Queued || d.Waited != 2500*time.Millisecond || d.Ahead != 2 {
			t.Fatalf("%+v", d)
		}
		// Its key is not held for ever by requests that are long through.
		if d := s.ask("other", nil).decision; !d.Allowed || d.Queued {
			t.Fatalf("%+v", d)
		}
		if snap := s.Snapshot(); snap.Keys != 1 || snap.Evicted != 1 {
			t.Fatalf("%+v", snap)
		}
		s.at(time.Minute)
		s.ask("another", nil)
		if snap := s.Snapshot(); snap.Keys != 1 || snap.Evicted != 1 {
			t.Fatalf("%+v: an idle key counted as evicted", snap)
		}
	})
}

func TestDryRunSwitchedOnAndOff(t *testing.T) {
	enforced := q(t, "1/s", 5, time.Minute)
	dry := enforced
	dry.DryRun = true
	play(t, enforced, func(t *testing.T, s *scene) {
		all := s.crowd(3)
		s.at(500 * time.Millisecond)
		adopt(t, s, dry) // who waits goes on waiting: letting all out would be a bunch
		through := s.ask("", nil)
		if d := through.decision; !through.over || !d.DryRun || d.Waited != 2500*time.Millisecond || d.Ahead != 2 {
			t.Fatalf("%+v", d)
		}
		if n := s.Snapshot().Depth; n != 3 {
			t.Fatalf("depth %d", n)
		}
		s.at(5 * time.Second)
		wantReleased(t, all, 0, time.Second, 2*time.Second)
		if d := all[2].decision; d.DryRun || d.Waited != 2*time.Second {
			t.Fatalf("it did wait: %+v", d)
		}

		rehearsed := s.crowd(4)
		if d := rehearsed[3].decision; d.Waited != 3*time.Second {
			t.Fatalf("%+v", d)
		}
		s.at(5500 * time.Millisecond)
		adopt(t, s, enforced) // nobody waits behind one that is not there
		if n := s.Snapshot().Depth; n != 0 {
			t.Fatalf("depth %d", n)
		}
		next := s.crowd(2)
		s.at(time.Minute)
		wantReleased(t, next, 6*time.Second, 7*time.Second)
	})
}

// A dry run of a long queue takes no memory for it.
func TestDryRunAllocatesNothingForItsQueue(t *testing.T) {
	p := q(t, "1/h", 1_000_000, 200*365*24*time.Hour/2)
	p.DryRun = true
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(p)
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if n := testing.AllocsPerRun(1000, func() { s.Acquire(ctx, shaping.Request{}) }); n != 0 {
			t.Fatalf("%v allocations for one that would wait", n)
		}
		if n := s.Snapshot().Depth; n != 1000 {
			t.Fatalf("depth %d", n)
		}
	})
}
