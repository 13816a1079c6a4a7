package proxy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A fragile upstream behind a queue of one each 100 ms, whose breaker opens at
// two failures of two, for five seconds.
type held struct {
	*world
	up   *Upstream
	c    *http.Client
	all  sync.WaitGroup
	mu   sync.Mutex
	came []string // to the upstream: when, and what
	got  map[string]int
}

func newHeld(t *testing.T, h http.HandlerFunc, links ...shaping.Link) *held {
	s := &held{got: map[string]int{}}
	start := time.Now()
	p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.came = append(s.came, fmt.Sprint(time.Since(start), r.URL.Path))
		s.mu.Unlock()
		h(w, r)
	}, one)
	gates := shaping.NewGates()
	policy := policyOf(2, 1)
	s.world, s.up = pairWorld(t, p, func(o *UpstreamOptions) {
		o.Breaker, o.Gate = policy, gates.Of("")
	}, one)
	r := s.proxy.site.Load().Routes[0]
	limited(r, shaping.NewChain(limiter.NewMemory(), links...).To(gates))
	r.Held = true
	s.c = s.client(t, false)
	return s
}

func line(t *testing.T, p shaping.Policy) shaping.Link {
	t.Helper()
	q, err := shaping.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return shaping.Link{Queue: q}
}

func tenASecond(t *testing.T) shaping.Link {
	return line(t, shaping.Policy{Name: "q", Rate: limiter.Rate{Count: 10, Per: time.Second}, Burst: 1, Queue: 100, MaxWait: time.Minute})
}

// send sends a request now and notes what it is answered.
func (s *held) send(ctx context.Context, path string) {
	s.all.Go(func() {
		code, _ := s.get(ctx, s.c, path)
		s.mu.Lock()
		s.got[path] = code
		s.mu.Unlock()
	})
	synctest.Wait()
}

func (s *held) sawExactly(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.came, want) {
		t.Errorf("the upstream got\n%q, want\n%q", s.came, want)
	}
}

// TestBreakerHoldsTheLine: who waits stays, in order, while the breaker is open;
// then the head probes, and nothing is sent beside it, however long it takes;
// when the breaker has closed the drain goes on at its pace.
func TestBreakerHoldsTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHeld(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/f1", "/f2", "/f3":
				w.WriteHeader(500)
			case "/1": // takes its time
				time.Sleep(time.Second)
			}
		}, tenASecond(t))
		for _, path := range []string{"/f1", "/f2", "/f3", "/1", "/2", "/3", "/4"} {
			s.send(t.Context(), path)
		}
		time.Sleep(2 * time.Second)
		s.send(t.Context(), "/5") // comes while it is open, and is not refused
		s.all.Wait()
		s.sawExactly(t, "0s/f1", "100ms/f2",
			"5.1s/f3", // probes after five seconds, and fails
			"10.1s/1", // probes for a second
			"11.1s/2", // the second good one closes it
			"11.2s/3", "11.3s/4", "11.4s/5")
		for path, code := range s.got {
			want := 200
			if path[1] == 'f' {
				want = 500
			}
			if code != want {
				t.Errorf("%s is answered %d", path, code)
			}
		}
	})
}

// TestProberLeaves: when the client of a probe leaves, the next in line probes.
func TestProberLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHeld(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/f1", "/f2":
				w.WriteHeader(500)
			case "/hangs":
				<-r.Context().Done()
			}
		}, tenASecond(t))
		s.send(t.Context(), "/f1")
		s.send(t.Context(), "/f2")
		ctx, leave := context.WithTimeout(t.Context(), 7*time.Second)
		defer leave()
		s.send(ctx, "/hangs")
		s.send(t.Context(), "/1")
		s.send(t.Context(), "/2")
		s.all.Wait()
		s.sawExactly(t, "0s/f1", "100ms/f2", "5.1s/hangs", "7s/1", "7.1s/2")
	})
}

// TestTwoLinesOneProbe: what another queue let go in the same instant waits for
// the breaker too, in order, and one whose client leaves meanwhile is not sent.
func TestTwoLinesOneProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keyed := line(t, shaping.Policy{Name: "q", Rate: limiter.Rate{Count: 10, Per: time.Second}, Burst: 1, Queue: 100, MaxWait: time.Minute, MaxKeys: 100})
		s := newHeld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path[1] == 'f' {
				w.WriteHeader(500)
			} else {
				time.Sleep(time.Second)
			}
		}, keyed)
		r := s.proxy.site.Load().Routes[0]
		r.Identify = func(id Identity) ([]limiter.Key, error) {
			return []limiter.Key{{Value: id.Request.URL.Path}}, nil // a line for each
		}
		s.send(t.Context(), "/f1")
		s.send(t.Context(), "/f2") // open to 5 s
		ctx, leave := context.WithTimeout(t.Context(), 5500*time.Millisecond)
		defer leave()
		for _, path := range []string{"/1", "/2", "/3", "/4"} {
			s.send(t.Context(), path)
		}
		s.send(ctx, "/leaves")
		s.all.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		// Two probes, one after the other; then the breaker is closed. Who comes
		// first, of lines that move at the same instant, is not said.
		want, at := []string{"5s", "6s", "7s", "7s"}, []string{}
		if s.came[2] == "5s/leaves" { // it probed, and then left: another probes
			want = []string{"5s", "5.5s", "6.5s", "7.5s", "7.5s"}
		}
		for i, c := range s.came[2:] {
			when, what, _ := strings.Cut(c, "/")
			at = append(at, when)
			if what == "leaves" && i > 0 {
				t.Errorf("sent, though its client had left: %s", c)
			}
		}
		if !slices.Equal(at, want) {
			t.Errorf("they came at %q", s.came)
		}
	})
}

// TestGateIsLeft: an upstream that is exchanged leaves its gate open.
func TestGateIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newHeld(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }, tenASecond(t))
		s.send(t.Context(), "/f1")
		s.send(t.Context(), "/f2")
		time.Sleep(time.Second)
		gate := s.up.opts.Gate.(*shaping.Gate)
		if why, until, closed := gate.Closed(); !closed || why != causeOpen || !until.Equal(s.start.Add(5100*time.Millisecond)) {
			t.Errorf("closed %v for %s until %v", closed, why, until)
		}
		s.up.Close()
		if why, _, closed := gate.Closed(); closed {
			t.Errorf("closed for %s", why)
		}
	})
}
