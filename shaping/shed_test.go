package shaping_test

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A shedding is a line of one a second, which gets one request of each class at
// each instant that it is asked about.
type shedding struct {
	t    *testing.T
	line shaping.Line[int]
	now  int64
}

func (s *shedding) at(d time.Duration) {
	for next := s.line.Wake(s.now); next <= int64(d); next = s.line.Wake(s.now) {
		s.now = max(s.now, next)
		for s.line.Leave(s.now) != nil {
		}
		for w, _ := s.line.Expire(s.now); w != nil; w, _ = s.line.Expire(s.now) {
		}
	}
	s.now = int64(d)
}

func (s *shedding) enter(c queue.Class) shaping.Verdict {
	v, _, _ := s.line.Enter(s.now, shaping.Entrant{Class: c}, 0)
	return v
}

// let are how many of four of a class are let in.
func (s *shedding) let(c queue.Class) (n int) {
	for range 4 {
		if s.enter(c).Reason == limiter.ReasonNone {
			n++
		}
	}
	return n
}

func secs(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// The line drains one a second and nobody is promoted. Nine High ones come first,
// and one Low, whose wait is beyond 2 s from then on, so that it has stayed above
// it for 2 s after 4 s.
func TestShed(t *testing.T) {
	s := &shedding{t: t, line: shaping.NewLine[int](shaping.Terms{
		Rate: limiter.Rate{Count: 1, Per: time.Second}, Burst: 1, Queue: 1000, MaxWait: time.Hour, ShedAbove: 2 * time.Second,
	})}
	s.now = int64(100 * time.Second)
	start := time.Duration(s.now)
	for range 20 {
		s.enter(queue.High) // the first goes at once
	}
	low := s.enter(queue.Low)
	if low.Reason != limiter.ReasonNone || low.Wait != 20*time.Second {
		t.Fatalf("%+v", low)
	}
	for _, tt := range []struct {
		at                float64
		low, normal, high int // of four
	}{
		{3.999, 4, 4, 4}, // another 4 of each, so it will go on for long
		{4.001, 0, 4, 4},
		{5.999, 0, 4, 4},
		{6.001, 0, 0, 4},
		{10, 0, 0, 4},
	} {
		s.at(start + secs(tt.at))
		before := s.line.Waiting()
		if l, n, h := s.let(queue.Low), s.let(queue.Normal), s.let(queue.High); l != tt.low || n != tt.normal || h != tt.high {
			t.Errorf("after %vs: %d low, %d normal, %d high of four are let in, want %d, %d, %d", tt.at, l, n, h, tt.low, tt.normal, tt.high)
		}
		if got := s.line.Waiting() - before; got != tt.low+tt.normal+tt.high {
			t.Errorf("after %vs %d more wait", tt.at, got)
		}
	}
	s.at(start + secs(11))
	v := s.line.LookFor(s.now, shaping.Entrant{Class: queue.Low})
	if v.Reason != limiter.ReasonMaxWait || v.Queued {
		t.Fatalf("%+v", v)
	}
	if c, ok := s.line.Sheds(s.now); !ok || c != queue.Normal {
		t.Errorf("sheds %v, %v", c, ok)
	}
	// It is let in when it said so, and not for having waited: nobody is before it.
	s.at(time.Duration(s.now) + v.RetryAfter)
	if s.line.Waiting() != 0 {
		t.Fatalf("%d wait", s.line.Waiting())
	}
	drained := s.now // one left at this very instant
	if v := s.enter(queue.Low); v.Reason != limiter.ReasonNone || v.Queued {
		t.Errorf("who need not wait gets %+v", v)
	}
	// They come back a quarter each 2 s: the oldest wait was below 2 s from a few
	// seconds before on, when the last but two had left.
	if c, ok := s.line.Sheds(s.now); !ok || c != queue.Normal {
		t.Errorf("sheds %v, %v when the line has drained", c, ok)
	}
	var seen [][2]int
	for i := range 12 {
		s.at(time.Duration(drained) + secs(2*float64(i)+0.5))
		s.enter(queue.High) // one goes, so that the next would wait
		lows, normals := 0, 0
		for range 4 {
			if v, w, _ := s.line.Enter(s.now, shaping.Entrant{Class: queue.Low}, 0); v.Reason == limiter.ReasonNone {
				lows++
				s.line.Cancel(w)
			}
			if v, w, _ := s.line.Enter(s.now, shaping.Entrant{Class: queue.Normal}, 0); v.Reason == limiter.ReasonNone {
				normals++
				s.line.Cancel(w)
			}
		}
		seen = append(seen, [2]int{lows, normals})
	}
	t.Log(seen)
	for i := 1; i < len(seen); i++ {
		l, n := seen[i][0]-seen[i-1][0], seen[i][1]-seen[i-1][1]
		if l < 0 || n < 0 || l+n > 1 || n > 0 && seen[i][0] > 0 {
			t.Errorf("from %v to %v of low and normal", seen[i-1], seen[i])
		}
	}
	if last := seen[len(seen)-1]; last != [2]int{4, 4} {
		t.Errorf("at the end %v", last)
	}
	if s.line.Idle(s.now) == shaping.Pinned {
		t.Error("pinned with nobody there")
	}
}

// A wait that is above the bound for a short time refuses nobody.
func TestShedNotForAMoment(t *testing.T) {
	s := &shedding{t: t, line: shaping.NewLine[int](shaping.Terms{
		Rate: limiter.Rate{Count: 1, Per: time.Second}, Burst: 1, Queue: 100, MaxWait: time.Hour, ShedAbove: 2 * time.Second,
	})}
	start := 100 * time.Second
	// Each waits for 3 s, so that the oldest wait is 2 to 3 s until it leaves and
	// then is of the next, which came 1.5 s later: never above for 2 s.
	for i := range 50 {
		s.at(start + secs(float64(i)*1.5))
		for range 4 {
			s.enter(queue.High)
		}
		s.at(start + secs(float64(i)*1.5+1))
		if v := s.enter(queue.Low); v.Reason != limiter.ReasonNone {
			t.Fatalf("round %d: %+v", i, v)
		}
		start += 10 * time.Second // all have left
	}
}

// One who comes back has the time at the upstream behind it, in which nobody
// waited here: that counts from when it stands here again.
func TestShedNotForTheTimeAtTheUpstream(t *testing.T) {
	s := &shedding{t: t, line: shaping.NewLine[int](shaping.Terms{
		Rate: limiter.Rate{Count: 1, Per: time.Second}, Burst: 1, Queue: 100, MaxWait: time.Hour, ShedAbove: 2 * time.Second,
	})}
	start := 100 * time.Second
	s.at(start)
	var ticket shaping.Ticket
	slow := shaping.Entrant{Class: queue.High, Ticket: &ticket}
	if v, _, _ := s.line.Enter(s.now, slow, 0); v.Reason != limiter.ReasonNone || v.Queued {
		t.Fatalf("%+v", v)
	}
	s.at(start + secs(11.5))
	s.enter(queue.High)
	s.at(start + secs(11.9))
	if v, _, _ := s.line.Enter(s.now, slow, 0); v.Wait != 600*time.Millisecond {
		t.Fatalf("%+v", v)
	}
	s.at(start + secs(12.1))
	if v := s.enter(queue.Low); v.Reason != limiter.ReasonNone {
		t.Errorf("one has waited for 0.2 s, and %+v", v)
	}
	s.line.Pause(s.now, shaping.Endless)
	for _, tt := range []struct {
		at   float64
		want bool
	}{{13.899, false}, {13.901, true}} {
		if _, got := s.line.Sheds(int64(start + secs(tt.at))); got != tt.want {
			t.Errorf("sheds after %v s: %v", tt.at, got)
		}
	}
}

// The same of live requests, where nothing but time moves the line: the operator
// sees it, and what is refused is told when the line will have drained.
func TestShaperSheds(t *testing.T) {
	p := q(t, "1/s", 100, time.Minute)
	p.ShedAbove = 2 * time.Second
	play(t, p, func(t *testing.T, s *scene) {
		s.crowd(10) // of class High, as the scene's are
		for _, tt := range []struct {
			at    time.Duration
			sheds string
		}{{4*time.Second - 1, ""}, {4 * time.Second, "low"}, {6*time.Second - 1, "low"}, {6 * time.Second, "normal"}, {7 * time.Second, "normal"}} {
			s.at(tt.at)
			if got := s.Snapshot().Sheds; got != tt.sheds {
				t.Errorf("after %v it sheds %q, want %q", tt.at, got, tt.sheds)
			}
		}
		g, err := s.Acquire(t.Context(), shaping.Request{Class: queue.Low})
		if err != nil || g.Allowed || g.Reason != limiter.ReasonMaxWait || g.RetryAfter != 3*time.Second || g.Waited != 0 {
			t.Errorf("%+v, %v", g.Decision, err)
		}
		s.at(7*time.Second + g.RetryAfter)
		if g, err := s.Acquire(t.Context(), shaping.Request{Class: queue.Low}); err != nil || !g.Allowed || g.Queued {
			t.Errorf("alone it gets %+v, %v", g.Decision, err)
		}
	})
}
