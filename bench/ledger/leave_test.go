package ledger

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// A leaver is a way of leaving.
type leaver struct {
	secure, h2, half bool
	body             int
}

// leave has a third of a crowd leave while it waits, at random times.
func leave(l leaver) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := raise(t, play{limits: queue("60/s", 200, ""), secure: l.secure, upstream: readAll})
		c := s.clients(l.h2)
		defer c.Close()
		random := rand.New(rand.NewPCG(3, 4))
		s.crowd(c, 120, func(i int) ledger.Ask {
			ask := ledger.Ask{Body: l.body, HalfClose: l.half}
			if i%3 == 1 {
				ask.Patience = time.Duration(50+random.IntN(1450)) * time.Millisecond
			}
			return ask
		})
		s.all.Wait()
		c.Close()
		f := s.finish(terms("60/s"))
		// The first of the crowd are served before they lose their patience.
		if f.Left < 5 || f.Served+f.Left != 120 {
			t.Errorf("%d left and %d were served, of 120", f.Left, f.Served)
		}
		t.Logf("given up at most %v after the client had left", f.Noticed)
	}
}

func readAll(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }

// allLeave is uber-go/ratelimit #73: nobody of a long queue stays, nothing of it
// is left, and who comes then goes by the rate.
func allLeave(t *testing.T) {
	const crowd = 1000
	s := raise(t, play{limits: queue("1/s", crowd, `max_wait = "1h"`)})
	c := s.clients(false)
	s.crowd(c, crowd, func(int) ledger.Ask { return ledger.Ask{Patience: 700 * time.Millisecond} })
	s.all.Wait()
	left := s.Now()
	s.until("the end of the queue", func() bool {
		m := s.scrape()
		return m.Sum("shapeproxy_queue_depth") == 0 && m.Sum("go_goroutines") <= s.base.Sum("go_goroutines")+made["go_goroutines"]
	})
	took := s.Now().Sub(left) - s.stalls.During(left, s.Now())
	r := c.Do(ledger.Ask{})
	waited := r.Ended.Sub(r.Sent) - s.stalls.During(r.Sent, r.Ended)
	t.Logf("all were given up within %v, the next was answered after %v, both net of stalls", took, waited)
	if took > time.Second || waited > time.Second+ledger.Grain {
		t.Error("neither may take more than a second")
	}
	s.finish(terms("1/s"))
}

// givenBack lets half of 500 waiters leave, and as many come anew. NGINX, whose
// delays are reckoned on arrival, is asked the same.
func givenBack(t *testing.T) {
	testdeps.Need(t, "nginx")
	const places, rate = 500, 20
	s := raise(t, play{limits: queue(fmt.Sprintf("%d/s", rate), places, `max_wait = "60s"`)})
	newcomers := changeHalf(s.Ledger, s.clients(false), places)
	s.finish(terms(fmt.Sprintf("%d/s", rate), "queue_full"))
	ours := refused(newcomers)

	peer := ledger.New()
	upstream := peer.Upstream(nil)
	defer upstream.Close()
	listen, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	nginx, err := rig.Nginx(t.TempDir(), listen, fmt.Sprintf(`
	access_log off;
	limit_req_zone $server_addr zone=q:1m rate=%dr/s;
	server {
		listen %s backlog=1024;
		location / {
			limit_req zone=q burst=%d;
			proxy_pass http://%s;
			proxy_set_header Host $http_host;
		}
	}`, rate, listen, places, upstream.Listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer nginx.Stop()
	theirs := refused(changeHalf(peer, peer.NewClient(listen, false, false), places))
	t.Logf("%d of %d waiters left, %d came: shapeproxy refused %d of them, NGINX %d", places/2, places, places/2, ours, theirs)
	if ours > 0 {
		t.Errorf("%d places were not given back", ours)
	}
}

// changeHalf fills the queue, has half of those who wait leave, sends as many
// newcomers and, after a moment, has everybody leave. It returns the newcomers.
func changeHalf(l *ledger.Ledger, c *ledger.Client, places int) []*ledger.Request {
	all := make(chan *ledger.Request)
	send := func(n int, patience func(i int) time.Duration) {
		for i := range n {
			go func() { all <- c.Do(ledger.Ask{Patience: patience(i)}) }()
		}
	}
	send(places, func(i int) time.Duration {
		if i%2 == 0 {
			return 700 * time.Millisecond
		}
		return 2 * time.Second
	})
	time.Sleep(1200 * time.Millisecond)
	before := len(l.Requests())
	send(places/2, func(int) time.Duration { return 800 * time.Millisecond })
	var newcomers []*ledger.Request
	for range places + places/2 {
		if r := <-all; r.ID >= before {
			newcomers = append(newcomers, r)
		}
	}
	return newcomers
}

func refused(rs []*ledger.Request) (n int) {
	for _, r := range rs {
		if r.End == ledger.Answered && r.Status != http.StatusOK {
			n++
		}
	}
	return n
}

// patience offers three times the rate to clients who leave after 5 s. What
// the upstream is sent has to be for clients who are still there.
func patience(t *testing.T) {
	t.Parallel()
	s := raise(t, play{limits: queue("100/s", 1000, `max_wait = "4s"`)})
	s.stream(s.clients(false), time.Second/300, 7*time.Second, func(int) ledger.Ask { return ledger.Ask{Patience: 5 * time.Second} })
	f := s.finish(terms("100/s", "max_wait"))
	if f.Refused == 0 {
		t.Error("nobody was refused, so that the queue was never too long")
	}
	live := 0
	for _, r := range s.Requests() {
		if r.End == ledger.Answered && r.Status == http.StatusOK {
			live++
		}
	}
	share := float64(live) / float64(f.Arrived)
	t.Logf("%.1f %% of what the upstream was sent went to clients who were still there", 100*share)
	if share < 0.95 {
		t.Errorf("only %d of %d that arrived at the upstream went to live clients", live, f.Arrived)
	}
}
