package shaping_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/shaping"
)

// A key that is forgotten has its whole burst again, whoever waits leaves by it,
// in order, and the rest at the pace.
func TestForget(t *testing.T) {
	play(t, tb(t, "1/s", 2, 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.crowd(7)
		s.at(500 * time.Millisecond)
		s.Forget("")
		s.Forget("unknown")
		synctest.Wait()
		s.at(time.Minute)
		wantReleased(t, all, 0, 0, 500*time.Millisecond, 500*time.Millisecond, 1500*time.Millisecond, 2500*time.Millisecond, 3500*time.Millisecond)
		if snap := s.Snapshot(); snap.Keys != 1 {
			t.Errorf("%+v", snap)
		}
	})
	// Places and a pause are not the rate's.
	p := q(t, "1/s", 10, time.Minute)
	p.MaxInFlight = 1
	play(t, p, func(t *testing.T, s *scene) {
		all := []*asked{s.hold(shaping.Request{}, 5*time.Second), s.hold(shaping.Request{}, 0)}
		s.Forget("")
		s.at(4 * time.Second)
		wantReleased(t, all, 0)
		s.Pause(6 * time.Second)
		s.Forget("")
		s.at(time.Minute)
		wantReleased(t, all, 0, 10*time.Second)
	})
	// A debt is forgiven too.
	play(t, q(t, "1/s", 10, time.Minute), func(t *testing.T, s *scene) {
		all := s.costing(30, 1)
		s.at(time.Second)
		s.Forget("")
		s.at(2 * time.Second)
		wantReleased(t, all, 0, time.Second)
	})
}

func TestBusiestOfAShaper(t *testing.T) {
	p := q(t, "1000000/s", 10, time.Minute)
	play(t, p, func(t *testing.T, s *scene) {
		for i := range 3000 {
			key := "a"
			if i%3 == 0 {
				key = "b"
			}
			s.start1(key, nil)
			synctest.Wait()
			time.Sleep(time.Microsecond)
		}
		top := s.Busiest(5)
		if len(top) != 2 || top[0].Key != "a" || top[1].Key != "b" || top[0].Count < 1200 || top[0].Count > 2800 || top[0].Error != 0 {
			t.Errorf("%+v", top)
		}
	})
}
