package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// speed is how many times as fast the log's active minutes pass.
const speed = 70

// catchUp is what a late timer may catch up, by the promise of the queue form.
const catchUp = 2 * time.Millisecond

func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	testdeps.Need(t, "nginx")
	program, err := rig.Build(t.TempDir(), "github.com/shapeproxy/shapeproxy/cmd/shapeproxy")
	if err != nil {
		t.Fatal(err)
	}
	requests, err := readLog("testdata/combined-10k.log.gz")
	if err != nil {
		t.Fatal(err)
	}
	compress(requests, speed)
	if os.Getenv("E2E") == "full" {
		t.Run("steady", func(t *testing.T) { replay(t, program, requests, false) })
	} else {
		requests = requests[:1000]
	}
	t.Run("reload", func(t *testing.T) { replay(t, program, requests, true) })
}

func replay(t *testing.T, program string, requests []request, reload bool) {
	out := run(t, program, requests, reload)
	out.checkEach(t, requests)
	out.checkPromise(t)
	out.checkCounts(t, reload)
	t.Logf("%d requests on %d connections in %.1f s, sent at most %v late",
		len(requests), out.opened, out.took.Seconds(), out.late.Round(time.Millisecond))
}

// checkEach holds the three stories of every single request together.
func (out *outcome) checkEach(t *testing.T, requests []request) {
	wrong := 0
	fail := func(r request, format string, args ...any) {
		if wrong++; wrong <= 20 {
			t.Errorf("request %d, %s %s: %s", r.id, r.method, r.target, fmt.Sprintf(format, args...))
		}
	}
	for i, r := range requests {
		a := &out.answers[i]
		p, logged := out.proxy[i]
		n, arrived := out.nginx[i]
		switch {
		case a.err != nil:
			fail(r, "no good answer: %v", a.err)
			continue
		case !logged:
			fail(r, "not in the proxy's log")
			continue
		}
		path, _, _ := strings.Cut(r.target, "?")
		if p.Method != r.method || p.Path != path || p.Client != r.client {
			fail(r, "the proxy logged %s %s from %s, not from %s", p.Method, p.Path, p.Client, r.client)
		}
		if a.reason == "?" && r.method == http.MethodHead {
			a.reason, a.policy = p.Reason, p.Policy // an answer without a body
		}

		switch {
		case a.left:
			// A refusal may cross with a client that leaves.
			refused := p.Status == 429 && p.Reason != ""
			if p.Departed.IsZero() && !refused && (p.Status != 499 || p.Reason != string(limiter.ReasonClientGone)) {
				fail(r, "its client left the queue; the proxy logged %d %q", p.Status, p.Reason)
			}
		case a.status != p.Status || a.reason != p.Reason || a.policy != p.Policy:
			fail(r, "answered %d %q by %q, logged %d %q by %q", a.status, a.reason, a.policy, p.Status, p.Reason, p.Policy)
		case arrived && n.status != int(p.UpstreamStatus):
			fail(r, "nginx answered %d, the proxy logged %d", n.status, p.UpstreamStatus)
		case a.body != p.Sent:
			fail(r, "%d bytes of body arrived, the proxy logged %d", a.body, p.Sent)
		}

		if departed := !p.Departed.IsZero(); departed != arrived {
			// One that leaves at the moment of its release may be cut off before
			// nginx has read it.
			if !(departed && a.left) {
				fail(r, "departed: %t, arrived at nginx: %t (answered %d %q)", departed, arrived, a.status, a.reason)
			}
		}
		if !arrived {
			continue
		}
		if n.target != r.target {
			fail(r, "arrived as %q", n.target)
		}
		if want := r.client + ", 127.0.0.1"; n.forwarded != want {
			fail(r, "arrived with X-Forwarded-For %q, want %q", n.forwarded, want)
		}
		if !a.left && (n.status != a.status || n.sent != a.body) {
			fail(r, "nginx answered %d with %d bytes, the client got %d with %d", n.status, n.sent, a.status, a.body)
		}
	}
	if wrong > 20 {
		t.Errorf("and %d more", wrong-20)
	}
	if extra := len(out.proxy) - len(requests); extra > 0 {
		t.Errorf("%d lines in the proxy's log belong to no request", extra)
	}
}

// checkPromise is the contract of the queue form, for all pairs of departures
// in the proxy's own log, and then for the arrivals in nginx's.
func (out *outcome) checkPromise(t *testing.T) {
	rate, err := limiter.ParseRate(queueRate)
	if err != nil {
		t.Fatal(err)
	}
	var departed, arrived []time.Time
	for _, p := range out.proxy {
		if !p.Departed.IsZero() {
			departed = append(departed, p.Departed)
		}
	}
	var delays []time.Duration
	for id, n := range out.nginx {
		arrived = append(arrived, n.at)
		delays = append(delays, n.at.Sub(out.proxy[id].Departed))
	}
	if len(delays) == 0 {
		t.Fatal("nothing arrived at nginx")
	}
	slices.Sort(delays)
	largest := delays[len(delays)-1]

	atProxy, atNginx := ledger.Slack(departed, rate, 1), ledger.Slack(arrived, rate, 1)
	t.Logf("departures by the proxy's log: %v of the %v slack used", atProxy, catchUp)
	if atProxy > catchUp {
		t.Errorf("the departures break the promise: more than %s × (t + %v) + 1 in some interval; %v of slack would be needed", queueRate, catchUp, atProxy)
	}
	t.Logf("arrivals by nginx's log: %v slack used; from departure to arrival median %v, p99 %v, largest %v (nginx's clock has whole milliseconds)",
		atNginx, delays[len(delays)/2].Round(time.Microsecond), delays[len(delays)*99/100].Round(time.Microsecond), largest.Round(time.Microsecond))
	// A stamp cut to whole milliseconds may lie before the departure.
	if least := delays[0]; least < -5*time.Millisecond {
		t.Errorf("a request arrived %v before it departed", -least)
	} else if allowed := catchUp + largest - min(least, 0); atNginx > allowed {
		t.Errorf("the arrivals need %v of slack, more than the %v that the largest delay explains", atNginx, allowed)
	}
}
