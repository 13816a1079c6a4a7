package assemble

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/shaping"
)

// One key can be found, looked at and reset, in a limit of either form.
func TestKeysOfALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.mustApply(t, head+`limits = ["r", "q"]
[limit.r]
algorithm = "token-bucket"
rate = "1/h"
burst = 2
key = "client-ip"
[limit.q]
algorithm = "leaky-bucket"
rate = "1/h"
queue = 1
key = "client-ip"
`)
		g := s.now.Load()
		for range 5 {
			g.limit("r").link.Reject.Take("a", 1)
		}
		g.limit("r").link.Reject.Take("b", 1)
		if _, err := g.limit("q").link.Queue.Acquire(t.Context(), shaping.Request{Key: "a"}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"r", "q"} {
			top, err := s.Busiest(name, 1)
			if err != nil || len(top) != 1 || top[0].Key != "a" {
				t.Errorf("%s: %+v, %v", name, top, err)
			}
			before, err := s.Key(name, "a")
			if err != nil || before.ResetAfter == 0 || !before.Peeked {
				t.Errorf("%s: %+v, %v", name, before, err)
			}
			if err := s.Reset(name, "a"); err != nil {
				t.Error(err)
			}
			after, err := s.Key(name, "a")
			if err != nil || after.ResetAfter != 0 || !after.Allowed || after.Remaining <= before.Remaining {
				t.Errorf("%s: after the reset %+v, %v", name, after, err)
			}
		}
		if d, _ := s.Key("r", "b"); d.Remaining != 1 {
			t.Errorf("the reset of one key changed another: %+v", d)
		}
		_, err1 := s.Busiest("x", 1)
		_, err2 := s.Key("x", "")
		for _, err := range []error{err1, err2, s.Reset("x", "")} {
			if err == nil || err.Error() != `there is no limit "x"` {
				t.Error(err)
			}
		}
	})
}

// What only the server of shared limits knows is not made up here.
func TestKeysOfSharedLimits(t *testing.T) {
	s := newSystem(t)
	s.mustApply(t, head+`limits = ["budget", "places"]
[redis]
address = ["127.0.0.1:1"]
[limit.budget]
algorithm = "token-bucket"
rate = "1/s"
store = "redis"
[limit.places]
algorithm = "concurrency"
max_in_flight = 1
store = "redis"
`)
	_, errBudget := s.Busiest("budget", 1)
	_, errPlaces := s.Busiest("places", 1)
	_, errPlace := s.Key("places", "x")
	for err, want := range map[error]string{
		errBudget: "ask for one key by its value", errPlaces: "held on Redis", errPlace: "held on Redis", s.Reset("places", "x"): "held on Redis",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Who waits can be seen, where somebody can wait.
func TestWaitingAtALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.mustApply(t, head+`limits = ["q", "r"]
[limit.q]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 5
[limit.r]
algorithm = "leaky-bucket"
rate = "1/s"
`)
		q := s.now.Load().limit("q").link.Queue
		for range 3 {
			go func() { _, _ = q.Acquire(t.Context(), shaping.Request{}) }()
		}
		synctest.Wait()
		if all, err := s.Waiting("q", 10); err != nil || len(all) != 2 {
			t.Errorf("%+v, %v; want two of three", all, err)
		}
		for _, name := range []string{"r", "x"} {
			if _, err := s.Waiting(name, 10); err == nil {
				t.Errorf("somebody waits at %q", name)
			}
		}
		time.Sleep(2 * time.Second)
	})
}
