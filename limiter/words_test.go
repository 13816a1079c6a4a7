package limiter_test

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestMeter reads states as a store elsewhere keeps them: of 4 in 8 s, 3 used.
func TestMeter(t *testing.T) {
	const s = int64(time.Second)
	now := 1_000_000 * s // 0 s into a window of 8 s
	for _, c := range []struct {
		algorithm  limiter.Algorithm
		state      []int64
		cost       int64
		reset      int64
		retry      time.Duration
		cannotBe   []int64
		underEight int64 // remaining when the limit becomes 8 in 8 s
	}{
		{limiter.TokenBucket, []int64{now + 6*s, 0}, 2, 2 * s, 2 * time.Second, []int64{now, 4}, 5},
		{limiter.LeakyBucket, []int64{now + 6*s, 0}, 2, 2 * s, 2 * time.Second, []int64{now}, 5},
		{limiter.FixedWindow, []int64{now, 3}, 2, 8 * s, 8 * time.Second, []int64{now, 5}, 5},
		{limiter.SlidingWindowLog, []int64{now - 2*s, 1, now, 2}, 3, 6 * s, 8 * time.Second, []int64{now, 2, now, 1}, 5},
		{limiter.SlidingWindowCounter, []int64{now, 2, 1}, 2, s * 8, 8 * time.Second, []int64{now, 1, 5}, 5},
	} {
		m, err := limiter.NewMeter(policy(c.algorithm, 4, 8*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		d, ok := m.Decide(c.state, now, c.cost)
		if !ok || d.Allowed || d.Remaining != 1 || int64(d.ResetAfter) != c.reset || d.RetryAfter != c.retry || d.At.UnixNano() != now {
			t.Errorf("%s: %v %+v", c.algorithm, ok, d)
		}
		if d, ok := m.Decide(nil, now, 4); !ok || !d.Allowed || d.Remaining != 4 {
			t.Errorf("%s, never seen: %v %+v", c.algorithm, ok, d)
		}
		if _, ok := m.Decide(c.cannotBe, now, 1); ok {
			t.Errorf("%s takes %v", c.algorithm, c.cannotBe)
		}
		eight, err := limiter.NewMeter(policy(c.algorithm, 8, 8*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		moved, ok := eight.Adopt(m, c.state, now)
		if d, readable := eight.Decide(moved, now, 0); !ok || !readable || d.Remaining != c.underEight {
			t.Errorf("%s adopted: %v %v %+v", c.algorithm, ok, moved, d)
		}
		if _, ok := eight.Adopt(m, c.cannotBe, now); ok {
			t.Errorf("%s adopts %v", c.algorithm, c.cannotBe)
		}
	}
	if _, err := limiter.NewMeter(limiter.Policy{}); err == nil {
		t.Error("a meter of no policy")
	}
	hour, err := limiter.NewMeter(policy(limiter.FixedWindow, 1, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if start, end := hour.Window(int64(90 * time.Minute)); start != int64(time.Hour) || end != int64(2*time.Hour) {
		t.Errorf("90 minutes are in %d to %d", start, end)
	}
	other, err := limiter.NewMeter(policy(limiter.TokenBucket, 1, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := other.Adopt(hour, nil, 0); ok {
		t.Error("a window became a bucket")
	}
}
