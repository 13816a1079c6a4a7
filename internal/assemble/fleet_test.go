package assemble

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A node is one of several proxies, with an upstream of its own.
type node struct {
	*System
	url string
}

func newNode(t *testing.T, log *slog.Logger) *node {
	t.Helper()
	n := &node{System: New(proxy.Observers{}, log)}
	t.Cleanup(n.Close)
	front := httptest.NewServer(n.Proxy)
	t.Cleanup(front.Close)
	n.url = front.URL
	return n
}

func (n *node) get(t *testing.T, path string) *http.Response {
	t.Helper()
	r, err := http.Get(n.url + path)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	return r
}

func fleetText(upstream, redis, more string) string {
	return `
[redis]
address = "` + redis + `"
timeout = "5s"
[upstream.u]
url = "` + upstream + `"
[limit.shared]
algorithm = "fixed-window"
limit = 200
window = "day"
store = "redis"
` + more + `
[limit.client]
algorithm = "token-bucket"
rate = "1000/s"
burst = 1000
key = "client-ip"
store = "redis"
[[route]]
match = "/"
upstream = "u"
limits = ["shared", "client"]
`
}

// TestCase63_ReloadsOfAFleet (caddyserver/caddy #4762, Kong/kong #11846): two
// proxies keep one quota to the request, while both reload again and again, and
// Remaining falls by one with each.
func TestCase63_ReloadsOfAFleet(t *testing.T) {
	server := redistest.Start(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	text := fleetText(upstream.URL, server.Address(), "")
	var nodes []*node
	for range 2 {
		n := newNode(t, slog.New(slog.DiscardHandler))
		n.mustApply(t, text)
		nodes = append(nodes, n)
	}
	for i := range 100 {
		r := nodes[i%2].get(t, "/")
		if left := r.Header.Get("RateLimit-Remaining"); r.StatusCode != 200 || left != fmt.Sprint(199-i) {
			t.Fatalf("request %d: %s, %s left", i, r.Status, left)
		}
	}
	stop := make(chan struct{})
	var reloading sync.WaitGroup
	for i, n := range nodes {
		reloading.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(5+i) * time.Millisecond):
				}
				n.mustApply(t, fleetText(upstream.URL, server.Address(), []string{"", "max_keys = 50\n"}[round%2]))
			}
		})
	}
	passed := 0
	for i := range 150 {
		switch r := nodes[i%2].get(t, "/"); r.StatusCode {
		case 200:
			passed++
		case 429:
		default:
			t.Fatal(r.Status)
		}
	}
	close(stop)
	reloading.Wait()
	if passed != 100 {
		t.Errorf("%d passed, of a quota of which 100 were left", passed)
	}
	if keys := server.Must("KEYS", "*shared*"); strings.Contains(keys, "\n") {
		t.Errorf("the quota has several keys:\n%s", keys)
	}
	// A higher limit of one is one for its own requests, and no key starts anew.
	nodes[0].mustApply(t, strings.Replace(text, "limit = 200", "limit = 210", 1))
	if r := nodes[0].get(t, "/"); r.StatusCode != 200 || r.Header.Get("RateLimit-Remaining") != "9" {
		t.Errorf("%s, %s left", r.Status, r.Header.Get("RateLimit-Remaining"))
	}
}

// TestAnotherStore: a reload may move the limits to another server, or into
// memory and back.
func TestAnotherStore(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	var log bytes.Buffer
	var mu sync.Mutex
	n := newNode(t, slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)))
	if up, proxies := n.Store(); up || proxies != 0 {
		t.Error("a store without a configuration")
	}
	left := func() string { return n.get(t, "/").Header.Get("RateLimit-Remaining") }
	a, b := fleetText(upstream.URL, first.Address(), ""), fleetText(upstream.URL, second.Address(), "")
	memory := strings.ReplaceAll(a, "store = \"redis\"\n", "")
	for i, step := range []struct{ text, left string }{
		{a, "199"}, {b, "199"}, {b, "198"}, {a, "198"}, {memory, "199"}, {memory, "198"}, {a, "197"},
	} {
		n.mustApply(t, step.text)
		if got := left(); got != step.left {
			t.Errorf("step %d: %s left, want %s", i, got, step.left)
		}
		up, proxies := n.Store()
		if want := step.text != memory; up != want || proxies > 0 != want {
			t.Errorf("step %d: up %t, proxies %d", i, up, proxies)
		}
		for _, l := range n.Limits() {
			if want := map[bool]string{true: "redis", false: "memory"}[step.text != memory]; l.Store != want {
				t.Errorf("step %d: the store of %s is %q", i, l.Name, l.Store)
			}
		}
	}
	// One that cannot be applied leaves the store as it is.
	bad := load(t, b+"[[route]]\nmatch = \"/x\"\nupstream = \"u\"\n")
	bad.Routes[1].Pattern = "/" // config would have refused it
	if err := n.Apply(bad); err == nil {
		t.Fatal("applied")
	}
	if got := left(); got != "196" {
		t.Errorf("%s left after a reload that failed", got)
	}
	// Without the server, the quota goes on by the share of this proxy.
	first.Kill()
	for range 5 {
		if r := n.get(t, "/"); r.StatusCode != 200 {
			t.Errorf("%s without a server", r.Status)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(log.String(), "level=WARN") {
		t.Error(log.String())
	}
}

type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(p)
}
