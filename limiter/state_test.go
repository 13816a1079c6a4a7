package limiter

import (
	"reflect"
	"testing"
	"time"
)

// What a limit keeps of a key, for who draws it.
func TestStateOfAKey(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	m := NewMemoryOn(func() time.Time { return now })
	const s = int64(time.Second)
	start := now.UnixNano()
	for _, test := range []struct {
		algo  Algorithm
		taken []int64 // after two requests a second apart
		later []int64 // and a window after that
	}{
		{TokenBucket, []int64{start + 4*s, 0}, nil},
		{LeakyBucket, []int64{1, s, start + s}, []int64{0, 0, start + 11*s}},
		{FixedWindow, []int64{start, 2}, []int64{start + 10*s, 0}},
		{SlidingWindowCounter, []int64{start, 2, 0}, []int64{start + 10*s, 0, 2}},
		{SlidingWindowLog, []int64{start, 1, start + s, 1}, nil},
	} {
		now = time.Unix(1_000_000, 0)
		l, err := m.NewLimit(Policy{Algorithm: test.algo, Rate: Rate{1, 2 * time.Second}, Burst: 5, Limit: 5, Window: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := l.State("a"); got != nil || l.Keys() != 0 {
			t.Errorf("%s: never asked, it keeps %v of %d keys", test.algo, got, l.Keys())
		}
		l.Take("a", 1)
		now = now.Add(time.Second)
		l.Take("a", 1)
		if got, at := l.State("a"); !reflect.DeepEqual(got, test.taken) || !at.Equal(now) {
			t.Errorf("%s keeps %v at %v, want %v at %v", test.algo, got, at, test.taken, now)
		}
		now = now.Add(10 * time.Second)
		got, _ := l.State("a")
		if test.later != nil && !reflect.DeepEqual(got, test.later) {
			t.Errorf("%s keeps %v later, want %v", test.algo, got, test.later)
		}
		if test.algo == SlidingWindowLog && len(got) != 0 {
			t.Errorf("%s keeps %v later, want nothing", test.algo, got)
		}
	}
}
