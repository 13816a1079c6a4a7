package ledger

import (
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// priority has a queue full of the low and the normal, and a steady few of the
// high, who wait a few intervals and are never refused.
func priority(t *testing.T) {
	s := raise(t, play{limits: "[limit.q]\nalgorithm = \"leaky-bucket\"\nrate = \"100/s\"\nqueue = 80\n" +
		route("/high/", `priority = "high"`) + route("/normal/", "") + route("/low/", `priority = "low"`)})
	c := s.clients(false)
	of := func(class string) func(int) ledger.Ask {
		return func(int) ledger.Ask { return ledger.Ask{Path: "/" + class + "/", Class: class} }
	}
	s.crowd(c, 50, of("low"))
	s.crowd(c, 50, of("normal"))
	s.all.Go(func() { s.stream(c, 15*time.Millisecond, 1500*time.Millisecond, of("low")) })
	s.stream(c, 50*time.Millisecond, 1500*time.Millisecond, of("high"))
	f := s.finish(terms("100/s", "queue_full"))
	if f.Refused == 0 {
		t.Error("nobody was refused, so that the queue was never full")
	}
	s.served("high", 30*time.Millisecond)
}

// served wants every request of a class or flow answered 200 within a time, net
// of what the machine stalled.
func (s *stage) served(name string, within time.Duration) {
	n := 0
	var longest time.Duration
	for _, r := range s.Requests() {
		if r.Class != name && r.Flow != name {
			continue
		}
		n++
		took := r.Ended.Sub(r.Sent)
		net := took - s.stalls.During(r.Sent, r.Ended)
		longest = max(longest, took)
		if r.Status != 200 || net > within+ledger.Grain {
			s.t.Errorf("request %d of %s was answered %d %s after %v, stalls taken off %v", r.ID, name, r.Status, r.Reason, took, net)
		}
	}
	s.t.Logf("%d of %s, each answered 200 within %v", n, name, longest)
	if n == 0 {
		s.t.Errorf("none of %s", name)
	}
}

// flood is envoyproxy/envoy #14550: one client pours in 500 at once, another
// sends one a second.
func flood(t *testing.T) {
	t.Parallel()
	s := raise(t, play{limits: queue("10/s", 100, "max_wait = \"20s\"\nfair_by = \"header:X-Client\"")})
	c := s.clients(false)
	s.crowd(c, 500, func(int) ledger.Ask {
		return ledger.Ask{Flow: "A", Header: []string{"X-Client: A"}, Patience: 7 * time.Second}
	})
	time.Sleep(500 * time.Millisecond)
	s.stream(c, time.Second, 6*time.Second, func(int) ledger.Ask {
		return ledger.Ask{Flow: "B", Header: []string{"X-Client: B"}}
	})
	f := s.finish(terms("10/s", "queue_full"))
	if f.Refused < 300 {
		t.Errorf("%d were refused, so that nobody flooded", f.Refused)
	}
	s.served("B", 300*time.Millisecond)
}

// deadlines has 30 wait two seconds in all, and those come who say how long they
// would.
func deadlines(t *testing.T) {
	t.Parallel()
	s := raise(t, play{limits: queue("15/s", 100, `deadline_header = "Request-Timeout"`)})
	c := s.clients(false)
	s.crowd(c, 31, plain)
	s.entered(31)
	for _, field := range []string{"Request-Timeout: 0.2", "grpc-timeout: 200m"} {
		began := s.Now()
		r := c.Do(ledger.Ask{Header: []string{field}})
		if took := s.Now().Sub(began); r.Reason != "max_wait" || took-s.stalls.During(began, s.Now()) > 100*time.Millisecond {
			t.Errorf("%s: answered %d %s after %v, not refused at once", field, r.Status, r.Reason, took)
		}
	}
	for _, field := range []string{"Request-Timeout: 8", "grpc-timeout: 8S", "Request-Timeout: soon"} {
		s.send(c, ledger.Ask{Header: []string{field}})
	}
	f := s.finish(terms("15/s", "max_wait"))
	if f.Refused != 2 || f.Served != 34 {
		t.Errorf("%d were served and %d refused, not 34 and 2", f.Served, f.Refused)
	}
}
