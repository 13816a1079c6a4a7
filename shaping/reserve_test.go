package shaping_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A visitor comes to a Shaper of a test and notes when it is let go.
type visitor struct {
	name  string
	grant shaping.Grant
	after time.Duration // since the test began; negative: it waits
}

// A story is requests of several classes to one Shaper, in virtual time.
type story struct {
	*testing.T
	*shaping.Shaper
	began time.Time
	all   []*visitor

	mu sync.Mutex // what became of visitors
}

func tell(t *testing.T, p shaping.Policy, f func(s *story)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := shaping.New(p)
		if err != nil {
			t.Fatal(err)
		}
		st := &story{T: t, Shaper: s, began: time.Now()}
		defer func() {
			st.Resume()
			time.Sleep(time.Hour)
		}()
		f(st)
	})
}

func (s *story) comes(c queue.Class) *visitor { return s.asks(shaping.Request{Class: c}) }

func (s *story) asks(req shaping.Request) *visitor {
	v := &visitor{name: fmt.Sprintf("%s %d", req.Class, len(s.all)), after: -1}
	s.all = append(s.all, v)
	go func() {
		grant, _ := s.Acquire(s.Context(), req)
		s.mu.Lock()
		defer s.mu.Unlock()
		v.grant, v.after = grant, time.Since(s.began)
	}()
	synctest.Wait()
	return v
}

// left are who was let go, and when.
func (s *story) left() (all []string) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := slices.Clone(s.all)
	slices.SortStableFunc(gone, func(a, b *visitor) int { return int(a.after - b.after) })
	for _, v := range gone {
		if v.after >= 0 && v.grant.Allowed {
			all = append(all, fmt.Sprintf("%s at %v", v.name, v.after))
		}
	}
	return all
}

func (s *story) wants(want ...string) {
	s.Helper()
	if got := s.left(); !slices.Equal(got, want) {
		s.Fatalf("left are\n%q, want\n%q", got, want)
	}
}

// Four places at the server of a model: batch work never takes more than three, so
// who waits at a screen goes at once.
func TestReservedPlaceIsFree(t *testing.T) {
	p := shaping.Policy{MaxInFlight: 4, Queue: 10, PromoteAfter: 2 * time.Second, ReserveHigh: 0.2}
	tell(t, p, func(s *story) {
		for range 6 {
			s.comes(queue.Low)
		}
		s.wants("low 0 at 0s", "low 1 at 0s", "low 2 at 0s")
		time.Sleep(10 * time.Second) // they all count as high by now, and have no more right to the place for that
		first := s.comes(queue.High)
		s.wants("low 0 at 0s", "low 1 at 0s", "low 2 at 0s", "high 6 at 10s")
		s.comes(queue.High) // now all places are taken
		time.Sleep(time.Second)
		first.grant.Release()
		synctest.Wait() // a place of the reserve: not for those who came long before
		if got := s.left(); got[len(got)-1] != "high 7 at 11s" {
			t.Fatalf("%q", got)
		}
		time.Sleep(time.Second)
		s.all[0].grant.Release()
		if got := s.left(); got[len(got)-1] != "low 3 at 12s" {
			t.Fatalf("%q", got)
		}
	})
}

// Who has waited for one of the others' places for too long is told that, and not that
// somebody of class High went, by a place that it could not have had.
func TestReservedPlaceIsTakenFromNobody(t *testing.T) {
	p := shaping.Policy{MaxInFlight: 4, Queue: 10, MaxWait: 10 * time.Second, ReserveHigh: 0.25}
	tell(t, p, func(s *story) {
		for range 4 {
			s.comes(queue.Low)
		}
		time.Sleep(5 * time.Second)
		s.comes(queue.High)
		time.Sleep(5 * time.Second)
		s.wants("low 0 at 0s", "low 1 at 0s", "low 2 at 0s", "high 4 at 5s")
		if got := s.all[3].grant.Reason; got != limiter.ReasonMaxWait {
			t.Errorf("the fourth is told %q", got)
		}
		s.comes(queue.Low)
		time.Sleep(time.Second)
		s.comes(queue.Normal)
		s.all[0].grant.Release() // it goes to the one that came later
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := s.all[5].grant.Reason; got != limiter.ReasonQueueFull {
			t.Errorf("the one that was overtaken is told %q", got)
		}
	})
}

// The rest of 10/s is 8/s, also while nobody of class High is there; and whoever is
// finds a turn.
func TestReservedRate(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 1, Queue: 50, MaxWait: time.Minute, ReserveHigh: 0.2}
	tell(t, p, func(s *story) {
		for range 5 {
			s.comes(queue.Normal)
		}
		time.Sleep(time.Second)
		s.wants("normal 0 at 0s", "normal 1 at 125ms", "normal 2 at 250ms", "normal 3 at 375ms", "normal 4 at 500ms")
		for range 5 {
			s.comes(queue.Normal) // at 1 s, 1.125 s, …
		}
		time.Sleep(110 * time.Millisecond)
		s.comes(queue.High) // the line has room for it
		s.comes(queue.High)
		time.Sleep(time.Second)
		s.wants("normal 0 at 0s", "normal 1 at 125ms", "normal 2 at 250ms", "normal 3 at 375ms", "normal 4 at 500ms",
			"normal 5 at 1s", "high 10 at 1.11s", "high 11 at 1.21s", "normal 6 at 1.31s", "normal 7 at 1.435s", "normal 8 at 1.56s", "normal 9 at 1.685s")
	})
}

// With the burst of a token bucket: the others have four of five tokens.
func TestReservedBurst(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 5, Queue: 50, MaxWait: time.Minute, ReserveHigh: 0.2}
	tell(t, p, func(s *story) {
		for range 6 {
			s.comes(queue.Low)
		}
		s.comes(queue.High)
		s.comes(queue.High)
		time.Sleep(time.Second)
		s.wants("low 0 at 0s", "low 1 at 0s", "low 2 at 0s", "low 3 at 0s", "high 6 at 0s", "high 7 at 100ms", "low 4 at 200ms", "low 5 at 300ms")
	})
}

// What a request is told is what one of its class could have.
func TestReservedIsNotTold(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 5, Queue: 20, ReserveHigh: 0.2}
	tell(t, p, func(s *story) {
		low, high := s.comes(queue.Low).grant.Decision, s.comes(queue.High).grant.Decision
		if low.Limit != 24 || low.Remaining != 23 || low.Window != 500*time.Millisecond {
			t.Errorf("low is told %+v", low)
		}
		if high.Limit != 25 || high.Remaining != 23 || high.Window != 500*time.Millisecond {
			t.Errorf("high is told %+v", high)
		}
	})
	tell(t, shaping.Policy{MaxInFlight: 4, ReserveHigh: 0.5}, func(s *story) {
		s.comes(queue.Normal)
		low, high := s.comes(queue.Low).grant.Decision, s.comes(queue.High).grant.Decision
		if low.Limit != 2 || low.Remaining != 0 || high.Limit != 4 || high.Remaining != 1 {
			t.Errorf("low is told %+v, high %+v", low, high)
		}
		if d := s.comes(queue.Low).grant.Decision; d.Allowed || d.Reason != limiter.ReasonLimit || d.RetryAfter < 1 {
			t.Errorf("the third of two is told %+v", d)
		}
	})
}

// What has gathered for class High is for nobody who waited while it did.
func TestReserveTakenAwayLetsOutNoBunch(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "1/s"), Burst: 10, Queue: 50, MaxWait: time.Hour, ReserveHigh: 0.9}
	tell(t, p, func(s *story) {
		for range 5 {
			s.comes(queue.Normal)
		}
		time.Sleep(9500 * time.Millisecond)
		s.wants("normal 0 at 0s") // one each 10 s
		p.ReserveHigh = 0
		if err := s.Adopt(p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		s.wants("normal 0 at 0s", "normal 1 at 9.5s", "normal 2 at 10.5s", "normal 3 at 11.5s", "normal 4 at 12.5s")
	})
}

// A reserve that is set while requests are under way counts those that are there.
func TestReserveSetWhileRequestsAreUnderWay(t *testing.T) {
	p := shaping.Policy{MaxInFlight: 4, Queue: 10}
	tell(t, p, func(s *story) {
		for range 5 {
			s.comes(queue.Normal)
		}
		p.ReserveHigh = 0.5
		if err := s.Adopt(p); err != nil {
			t.Fatal(err)
		}
		s.all[0].grant.Release()
		s.all[1].grant.Release()
		if got := len(s.left()); got != 4 {
			t.Fatalf("%d have left, and two are under way", got)
		}
		s.comes(queue.High)
		s.all[2].grant.Release()
		if got := s.left(); len(got) != 6 {
			t.Fatalf("%q", got)
		}
	})
}

// In a dry run nobody is held to the rest, and what it let pass counts as High also
// when it is over.
func TestReserveInADryRun(t *testing.T) {
	p := shaping.Policy{MaxInFlight: 2, ReserveHigh: 0.5, DryRun: true}
	tell(t, p, func(s *story) {
		a, b, c := s.comes(queue.Low), s.comes(queue.Low), s.comes(queue.Low)
		if !a.grant.Allowed || !b.grant.Allowed || c.grant.Allowed {
			t.Fatalf("%+v, %+v, %+v", a.grant, b.grant, c.grant)
		}
		p.DryRun = false
		if err := s.Adopt(p); err != nil {
			t.Fatal(err)
		}
		a.grant.Release()
		if !s.comes(queue.Low).grant.Allowed || s.comes(queue.Low).grant.Allowed || s.comes(queue.High).grant.Allowed {
			t.Fatal("one of the others may be under way beside it")
		}
	})
}

func TestReserveThatMakesNoSense(t *testing.T) {
	bucket := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 1, Queue: 1}
	for _, c := range []struct {
		share float64
		edit  func(p *shaping.Policy)
		ok    bool
	}{
		{0.2, nil, true}, {0.001, nil, true}, {0.999, nil, true}, {1, nil, false}, {-0.2, nil, false}, {0.0001, nil, false}, {1.0 / 3, nil, false},
		{0.2, func(p *shaping.Policy) { p.MaxInFlight = 1 }, false},
		{0.2, func(p *shaping.Policy) { p.MaxInFlight = 2 }, true},
		{0.2, func(p *shaping.Policy) { p.Rate = mustRate(t, "1/36500d") }, false},
		{0.2, func(p *shaping.Policy) { p.MinRate = mustRate(t, "1/36500d") }, false},
	} {
		p := bucket
		p.ReserveHigh = c.share
		if c.edit != nil {
			c.edit(&p)
		}
		if err := p.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// With a rate that is searched for, it is a share of what is in force, and work
// below High alone has it found.
func TestReserveOfARateThatIsSearchedFor(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "100/s"), MinRate: mustRate(t, "10/s"), Burst: 1, Queue: 1000, MaxWait: time.Hour, ReserveHigh: 0.2}
	tell(t, p, func(s *story) {
		for range 600 {
			s.comes(queue.Normal)
		}
		time.Sleep(130 * time.Millisecond)
		s.wants("normal 0 at 0s", "normal 1 at 125ms")
		time.Sleep(10 * time.Second)
		if rate := s.Snapshot().Rate; rate != p.Rate {
			t.Errorf("the rate is %v", rate)
		}
		left := s.left()
		n := len(left)
		time.Sleep(time.Second)
		if more := len(s.left()) - n; n < 600 && (more < 79 || more > 81) {
			t.Errorf("%d left in a second, of 100", more)
		}
	})
}

// Places that are searched for are found also where nobody of class High comes, and
// the others have their part of those in force.
func TestReserveOfPlacesThatAreSearchedFor(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{MaxInFlight: 100, MinInFlight: 4, Queue: 1000, MaxWait: time.Hour, ReserveHigh: 0.5})
	now, under := epoch, 0
	for range 400 {
		line.Enter(now, shaping.Entrant{Class: queue.Low}, 0)
	}
	for range 100 { // an upstream that never gets slower
		for under = line.InFlight(); under > 0; under-- {
			line.Learn(now+10*ms, now, limiter.Answer{Latency: 10 * time.Millisecond})
			line.Done(now+10*ms, queue.Low)
		}
		for now += 10 * ms; line.Leave(now) != nil; {
			line.Enter(now, shaping.Entrant{Class: queue.Low}, 0)
		}
		if _, places := line.Found(); line.InFlight() != places/2 {
			t.Fatalf("%d of %d places are taken", line.InFlight(), places)
		}
	}
	if _, places := line.Found(); places != 100 {
		t.Errorf("found are %d places", places)
	}
}

// A pause by hand is waiting for those who wait, so low is refused in one as well.
func TestShedAboveCountsAPauseByHand(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 1, Queue: 50, MaxWait: time.Minute, ShedAbove: 5 * time.Second}
	tell(t, p, func(s *story) {
		s.Pause(0)
		s.comes(queue.Normal)
		time.Sleep(10*time.Second - time.Nanosecond)
		if d := s.comes(queue.Low).grant.Decision; d.Reason != limiter.ReasonNone {
			t.Errorf("before 10 s low is told %+v", d)
		}
		time.Sleep(time.Nanosecond)
		if d := s.comes(queue.Low).grant.Decision; d.Reason != limiter.ReasonMaxWait {
			t.Errorf("at 10 s low is told %+v", d)
		}
	})
}

// While others are barred, it takes no look at each of them to find who passes.
func TestPassingManyIsQuick(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1000/s"), Burst: 1, Queue: 200_000, MaxWait: time.Hour, ReserveHigh: 0.5, PromoteAfter: time.Millisecond})
	now := epoch
	for i := range 100_000 {
		line.Enter(now, shaping.Entrant{Class: queue.Normal}, i)
	}
	passed := 0
	for range 100_000 { // a look at all for each would be 10 billion steps
		now += ms
		if v, _, _ := line.Enter(now, shaping.Entrant{Class: queue.High}, -1); v.Reason != limiter.ReasonNone {
			t.Fatalf("%+v", v)
		}
		for w := line.Leave(now); w != nil; w = line.Leave(now) {
			if w.Value < 0 {
				passed++
			}
		}
	}
	if passed < 10_000 {
		t.Errorf("%d have waited and passed", passed)
	}
}

// Whoever comes back stands where it stood, and takes another turn of the rest.
func TestComingBackIsHeldToTheRest(t *testing.T) {
	line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "10/s"), Burst: 1, Queue: 10, MaxWait: time.Minute, ReserveHigh: 0.5})
	now, ticket := epoch, new(shaping.Ticket)
	line.Enter(now, shaping.Entrant{Class: queue.Low, Ticket: ticket}, 0) // passes
	for i := range 2 {
		line.Enter(now, shaping.Entrant{Class: queue.Low}, i+1)
	}
	now += 50 * ms
	if v, w, _ := line.Enter(now, shaping.Entrant{Class: queue.Low, Ticket: ticket}, 3); w == nil || v.Ahead != 0 {
		t.Fatalf("%+v", v)
	}
	line.Enter(now, shaping.Entrant{Class: queue.High}, 4)
	var got []string
	for range 4 {
		now = line.Due(now)
		got = append(got, fmt.Sprint(line.Leave(now).Value, " at ", time.Duration(now-epoch)))
	}
	if want := []string{"4 at 100ms", "3 at 200ms", "1 at 400ms", "2 at 600ms"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A waiter behind a gate keeps its place, and the rest what it has not used.
func TestGateAndReserve(t *testing.T) {
	p := shaping.Policy{Rate: mustRate(t, "10/s"), Burst: 1, Queue: 10, MaxWait: time.Minute, ReserveHigh: 0.5}
	tell(t, p, func(s *story) {
		gate := shaping.NewGate()
		gate.Close("test", time.Now().Add(time.Second))
		s.asks(shaping.Request{Class: queue.High, Gate: gate})
		s.asks(shaping.Request{Class: queue.Low, Gate: gate})
		for range 3 {
			s.comes(queue.Low)
		}
		time.Sleep(3 * time.Second)
		s.wants("low 2 at 0s", "low 3 at 200ms", "low 4 at 400ms", "high 0 at 1s", "low 1 at 1.1s")
	})
}
