package assemble

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
)

func sharedQueue(upstream, redis, rate string) string {
	return `
[redis]
address = "` + redis + `"
timeout = "5s"
[upstream.u]
url = "` + upstream + `"
[limit.line]
algorithm = "leaky-bucket"
rate = "` + rate + `"
queue = 50
store = "redis"
[limit.day]
algorithm = "fixed-window"
limit = 1000
window = "day"
store = "redis"
[[route]]
match = "/"
upstream = "u"
limits = ["line", "day"]
`
}

// TestCase63_QueueOfAFleet (caddyserver/caddy #4762, Kong/kong #11846): two proxies
// keep one queue's rate while both reload again and again; nobody who waits is lost,
// and each tells how many wait at both. A reload to another rate counts for both.
func TestCase63_QueueOfAFleet(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	var arrived []time.Time
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived = append(arrived, time.Now())
	}))
	t.Cleanup(upstream.Close)
	text := sharedQueue(upstream.URL, server.Address(), "10/s")
	var nodes []*node
	for range 2 {
		n := newNode(t, slog.New(slog.DiscardHandler))
		n.mustApply(t, text)
		nodes = append(nodes, n)
	}
	began := time.Now()
	const crowd = 40
	var all sync.WaitGroup
	for i := range crowd {
		all.Go(func() {
			r, err := http.Get(nodes[i%2].url + "/")
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
				t.Errorf("%s %v", r.Status, err)
			}
		})
	}
	status := func(n *node) (depth, fleet int) {
		for _, l := range n.Limits() {
			if l.Name == "line" {
				if l.Store != "redis" || l.StoreDown != "local" {
					t.Errorf("%+v", l)
				}
				return l.Depth, l.FleetDepth
			}
		}
		return 0, 0
	}
	seen := false
	for round := range 100 {
		for _, n := range nodes {
			n.mustApply(t, strings.Replace(text, "queue = 50", "queue = 50\nmax_keys = "+[]string{"60", "50"}[round%2], 1))
			depth, fleet := status(n)
			seen = seen || depth > 5 && fleet > depth+5
		}
		time.Sleep(15 * time.Millisecond)
	}
	if !seen {
		t.Error("no proxy told of those who wait at the other")
	}
	if err := nodes[0].Pause("line", time.Millisecond); err != nil {
		t.Error(err)
	}
	for _, n := range nodes {
		n.mustApply(t, strings.Replace(text, `"10/s"`, `"50/s"`, 1))
	}
	all.Wait()
	if len(arrived) != crowd {
		t.Errorf("%d of %d arrived", len(arrived), crowd)
	}
	// As if the higher rate had been there since the first reload.
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("all had left after %v", took)
	}
	if err := nodes[0].Reset("line", ""); err != nil {
		t.Error(err)
	}
	if d, err := nodes[1].Key("line", ""); err != nil || d.Policy != "line" || d.Remaining < 50 {
		t.Errorf("%v %+v", err, d)
	}
	// One that is in memory from now on is no more the fleet's.
	nodes[0].mustApply(t, strings.ReplaceAll(text, "store = \"redis\"\n", ""))
	for _, l := range nodes[0].Limits() {
		if l.Store != "memory" || l.FleetDepth != 0 {
			t.Errorf("%+v", l)
		}
	}
	if r := nodes[0].get(t, "/"); r.StatusCode != 200 {
		t.Error(r.Status)
	}
}
