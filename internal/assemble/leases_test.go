package assemble

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
)

// TestCase63_PlacesOfAFleet (caddyserver/caddy #4762): two proxies with queues keep
// the places of one limit together, while its number changes, and a rate whose queue
// is given a bound, and loses it, keeps all who wait.
func TestCase63_PlacesOfAFleet(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	inside, most := 0, 0
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		inside++
		most = max(most, inside)
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		mu.Lock()
		inside--
		mu.Unlock()
	}))
	t.Cleanup(upstream.Close)
	peak := func() int {
		mu.Lock()
		defer mu.Unlock()
		defer func() { most = inside }()
		return most
	}
	for _, c := range []struct {
		form   string
		bounds []string
		most   []int // 0: as many as come
	}{
		{"algorithm = \"concurrency\"", []string{"max_in_flight = 2", "max_in_flight = 5", "max_in_flight = 1"}, []int{2, 5, 1}},
		{"algorithm = \"leaky-bucket\"\nrate = \"400/s\"", []string{"", "max_in_flight = 1", ""}, []int{0, 1, 0}},
	} {
		text := `
[redis]
address = "` + server.Address() + `"
timeout = "5s"
[upstream.u]
url = "` + upstream.URL + `"
[limit.line]
` + c.form + `
queue = 50
store = "redis"
BOUND
[[route]]
match = "/"
upstream = "u"
limits = ["line"]
`
		var nodes []*node
		for range 2 {
			nodes = append(nodes, newNode(t, slog.New(slog.DiscardHandler)))
		}
		apply := func(bound string) {
			for _, n := range nodes {
				n.mustApply(t, strings.Replace(text, "BOUND", bound, 1))
			}
		}
		apply(c.bounds[0])
		stop := make(chan struct{})
		var all sync.WaitGroup
		var served [2]int
		for i := range 24 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					r, err := http.Get(nodes[i%2].url + "/")
					if err != nil {
						t.Error(err)
						return
					}
					r.Body.Close()
					if r.StatusCode != 200 {
						t.Error(r.Status)
						return
					}
					mu.Lock()
					served[i%2]++
					mu.Unlock()
				}
			})
		}
		goesOn := func(n int) {
			t.Helper()
			mu.Lock()
			from := served
			mu.Unlock()
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				mu.Lock()
				done := served[0] >= from[0]+n && served[1] >= from[1]+n
				mu.Unlock()
				if done {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: a proxy lets nobody go: %v since %v", c.form, served, from)
				}
			}
		}
		for i, bound := range c.bounds {
			apply(bound)
			goesOn(20) // those of before are done
			peak()
			goesOn(20)
			if n := peak(); c.most[i] > 0 && n > c.most[i] {
				t.Errorf("%s, %q: %d at once", c.form, bound, n)
			}
			for _, l := range nodes[0].Limits() {
				if l.Store != "redis" || l.MaxInFlight != c.most[i] || l.FleetDepth < l.Depth {
					t.Errorf("%+v", l)
				}
			}
		}
		close(stop)
		all.Wait()
		for _, n := range nodes {
			if err := n.Reset("line", ""); err != nil {
				t.Error(err)
			}
		}
	}
}
