package shaping_test

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A pause stops the drain, its time does not count as waiting, and afterwards
// the pace goes on with no bunch.
func TestPauseAndResume(t *testing.T) {
	play(t, q(t, "10/s", 10, 400*time.Millisecond), func(t *testing.T, s *scene) {
		var all []*asked
		for range 4 {
			all = append(all, s.hold(shaping.Request{}, 0))
		}
		s.at(150 * time.Millisecond)
		s.Pause(0)
		if snap := s.Snapshot(); !snap.Paused || snap.Resumes != 0 || snap.Depth != 2 {
			t.Errorf("%+v", snap)
		}
		s.at(10 * sec)
		late := s.hold(shaping.Request{}, 0) // judged as if the pause ended now
		s.Resume()
		s.at(20 * sec)
		wantReleased(t, all, 0, 100*time.Millisecond, 10*sec, 10*sec+100*time.Millisecond)
		late.want(t, "who came during the pause", 10*sec+200*time.Millisecond, "")
	})
}

func TestPauseForAWhile(t *testing.T) {
	play(t, q(t, "10/s", 10, 2*sec), func(t *testing.T, s *scene) {
		s.Pause(5 * sec)
		refused := s.hold(shaping.Request{}, 0)
		refused.want(t, "who would wait 5 s", 0, limiter.ReasonPaused)
		if d := refused.decision; d.RetryAfter != 3*sec || d.Remaining != 10 {
			t.Errorf("%+v", d)
		}
		s.at(4 * sec)
		waits := s.hold(shaping.Request{}, 0)
		s.Adopt(q(t, "20/s", 10, 2*sec)) // a reload does not end it
		second := s.hold(shaping.Request{}, 0)
		other := s.hold(shaping.Request{Key: "a line that is made meanwhile"}, 0)
		s.at(20 * sec)
		waits.want(t, "who waited for its end", 5*sec, "")
		second.want(t, "the next", 5050*time.Millisecond, "")
		other.want(t, "who came to a new line", 5*sec, "")
		if s.Snapshot().Paused {
			t.Error("still paused")
		}
	})
}

// Who cannot be served in time because the rate was lowered is told so, and no
// waiter is lost to a shorter queue or max_wait.
func TestLoweredRate(t *testing.T) {
	play(t, q(t, "10/s", 10, sec), func(t *testing.T, s *scene) {
		var all []*asked
		for range 5 {
			all = append(all, s.hold(shaping.Request{}, 0))
		}
		s.at(50 * time.Millisecond)
		s.Adopt(q(t, "2/s", 1, 10*time.Millisecond))
		s.at(20 * sec)
		// Half an interval had passed, so half of the new one is left.
		wantReleased(t, all, 0, 300*time.Millisecond, 800*time.Millisecond)
		for _, a := range all[3:] {
			a.want(t, "who would have been later than 1 s", sec, limiter.ReasonPaused)
		}
	})
}
