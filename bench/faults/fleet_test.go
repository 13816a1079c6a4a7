package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// full says that the faults are to be measured, with the timeout that is the default.
var full = os.Getenv("FAULTS") == "full"

// A fleet is two real proxies, a network, and a server behind it.
type fleet struct {
	t       *testing.T
	server  *redistest.Server
	network *toxiproxy.Proxy
	up      *rig.Recorder
	timeout time.Duration
	during  time.Duration // how long a fault lasts
	fronts  []string
	admins  []string

	mu   sync.Mutex
	asks []ask
}

// An ask is one request and its answer.
type ask struct {
	route  string
	status int
	at     time.Time // when it was answered
	took   time.Duration
}

// The routes, each by one limit that refuses nobody here. Where there is no queue,
// what an answer takes is the wait for the store, and a little more.
var routes = []string{"open", "closed", "local", "queue"}

const terms = `
[limit.%[1]s]
algorithm = %[2]s
store = "redis"
store_down = %[3]q
[[route]]
match = "/%[1]s/"
upstream = "up"
limits = [%[1]q]
`

func (f *fleet) config(front, admin string) string {
	text := fmt.Sprintf("[server]\nlisten = %q\n[admin]\nlisten = %q\n[log]\naccess = false\n[redis]\naddress = %q\ntimeout = %q\n[upstream.up]\nurl = \"http://%s\"\n",
		front, admin, f.network.Listen, f.timeout, f.up.Addr())
	for _, down := range routes[:3] {
		text += fmt.Sprintf(terms, down, "\"token-bucket\"\nrate = \"10000/s\"\nburst = 10000", down)
	}
	return text + fmt.Sprintf(terms, "queue", "\"leaky-bucket\"\nrate = \"100/s\"\nqueue = 1000", "local")
}

func raise(t *testing.T, program string) *fleet {
	t.Helper()
	f := &fleet{t: t, server: redistest.Start(t), timeout: 250 * time.Millisecond, during: 1500 * time.Millisecond}
	if full {
		f.timeout, f.during = 50*time.Millisecond, 5*time.Second
	}
	f.network = toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "store", "127.0.0.1:0", f.server.Address())
	if err := f.network.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.network.Stop)
	var err error
	if f.up, err = rig.Record(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.up.Close() })
	for i := range 2 {
		var addrs [2]string
		for j := range addrs {
			if addrs[j], err = rig.FreeAddr(); err != nil {
				t.Fatal(err)
			}
		}
		dir := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := rig.Shapeproxy(dir, program, addrs[1], f.config(addrs[0], addrs[1]))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(); err != nil {
				t.Errorf("%v\n%s", err, p.Output())
			}
		})
		f.fronts, f.admins = append(f.fronts, addrs[0]), append(f.admins, addrs[1])
	}
	const members = "shapeproxy:{members}"
	await(t, "both have been there", func() bool { return f.server.AllSince(members, 2, time.Time{}) })
	both := time.Now()
	await(t, "both have been there again, and so know of each other", func() bool { return f.server.AllSince(members, 2, both) })
	return f
}

// load has callers at each route of each proxy until it is told to stop.
func (f *fleet) load() (stop func()) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: patience}
	ended := make(chan struct{})
	var all sync.WaitGroup
	for _, front := range f.fronts {
		for _, route := range routes {
			for i := range 6 {
				all.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-ended:
							return
						case <-time.After(10 * time.Millisecond):
						}
						began := time.Now()
						a := ask{route: route}
						if r, err := client.Get(fmt.Sprintf("http://%s/%s/%d-%d", front, route, i, n)); err != nil {
							f.t.Error(err)
						} else {
							io.Copy(io.Discard, r.Body)
							r.Body.Close()
							a.status = r.StatusCode
						}
						a.at, a.took = time.Now(), time.Since(began)
						f.mu.Lock()
						f.asks = append(f.asks, a)
						f.mu.Unlock()
					}
				})
			}
		}
	}
	return func() { close(ended); all.Wait(); client.CloseIdleConnections() }
}

// sum adds up a metric of both.
func (f *fleet) sum(metric string) (n int) {
	for _, admin := range f.admins {
		m, err := ledger.Scrape(admin)
		if err != nil {
			f.t.Fatal(err)
		}
		n += m.Sum(metric)
	}
	return n
}

func (f *fleet) toxic(kind, stream string, attributes map[string]any) {
	text, err := json.Marshal(map[string]any{"name": "fault", "type": kind, "stream": stream, "attributes": attributes})
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.network.Toxics.AddToxicJson(bytes.NewReader(text)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) heal() {
	if err := f.network.Toxics.RemoveToxic(f.t.Context(), "fault"); err != nil {
		f.t.Fatal(err)
	}
}

// TestFleetFaults (Kong/kong #2382, traefik/traefik #12091): whatever happens to the
// server of two proxies or on the way to it, no answer is a 500, each limit does what
// its store_down says, no request waits for much longer than the timeout, the queue
// keeps its rate, nothing piles up, and few look for the server meanwhile.
func TestFleetFaults(t *testing.T) {
	program, err := rig.Build(t.TempDir(), "github.com/shapeproxy/shapeproxy/cmd/shapeproxy")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name          string
		counted       bool // the server can be asked how often it was called
		breakIt, mend func(*fleet)
	}{
		{"latency of 300 ms", true, func(f *fleet) { f.toxic("latency", "downstream", map[string]any{"latency": 300}) }, (*fleet).heal},
		{"black hole", true, func(f *fleet) { f.toxic("timeout", "downstream", map[string]any{"timeout": 0}) }, (*fleet).heal},
		{"resets", true, func(f *fleet) { f.toxic("reset_peer", "downstream", map[string]any{"timeout": 0}) }, (*fleet).heal},
		{"SIGSTOP", false, func(f *fleet) { f.server.Freeze() }, func(f *fleet) { f.server.Thaw() }},
		{"kill -9", false, func(f *fleet) { f.server.Kill() }, func(f *fleet) { f.server.Restart() }},
		{"FLUSHALL", false, func(f *fleet) { f.server.Must("FLUSHALL"); f.server.Must("SCRIPT", "FLUSH") }, func(*fleet) {}},
		{"maxmemory", true, func(f *fleet) { f.server.Must("CONFIG", "SET", "maxmemory", "1") }, func(f *fleet) { f.server.Must("CONFIG", "SET", "maxmemory", "0") }},
		{"read-only replica", true, func(f *fleet) { f.server.Must("REPLICAOF", "127.0.0.1", "1") }, func(f *fleet) { f.server.Must("REPLICAOF", "NO", "ONE") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !full {
				t.Parallel()
			}
			f := raise(t, program)
			stop := f.load()
			defer stop()
			time.Sleep(f.during / 3)
			goroutines := f.sum("go_goroutines")
			broken := time.Now()
			c.breakIt(f)
			lost := c.name != "FLUSHALL"
			if lost {
				await(t, "both have lost it", func() bool { return f.sum("shapeproxy_store_up") == 0 })
			}
			most := 0
			for began := time.Now(); time.Since(began) < f.during-time.Second; time.Sleep(50 * time.Millisecond) {
				most = max(most, f.sum("go_goroutines"))
			}
			probes := 0
			if c.counted {
				probes = received(t, f.server)
			}
			time.Sleep(time.Second)
			if c.counted {
				probes = received(t, f.server) - probes
				// Each looks less than ten times, and the least busy machine is not on time.
				if probes > 2*10 {
					t.Errorf("%d calls in a second of a server that is lost", probes)
				}
			}
			c.mend(f)
			mended := time.Now()
			await(t, "both have found it", func() bool { return f.sum("shapeproxy_store_up") == 2 })
			found := time.Since(mended)
			time.Sleep(f.during / 3)
			await(t, "nothing has piled up", func() bool { return f.sum("go_goroutines") <= goroutines+20 })
			f.judge(broken, mended, lost)
			t.Logf("found again after %v; %d goroutines, at most %d; %d probes in a second", found, goroutines, most, probes)
		})
	}
}

// judge looks at all answers.
func (f *fleet) judge(broken, mended time.Time, lost bool) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var waits []time.Duration
	wrong := map[string]int{}
	closed := 0
	for _, a := range f.asks {
		switch {
		case a.status == http.StatusOK:
		case a.route == "closed" && a.status == http.StatusServiceUnavailable && lost && a.at.After(broken):
			closed++
		default:
			wrong[fmt.Sprintf("%d at %s", a.status, a.route)]++
		}
		if a.route != "queue" && a.at.After(broken) && a.at.Before(mended) {
			waits = append(waits, a.took)
		}
	}
	if len(wrong) > 0 {
		f.t.Errorf("%v", wrong)
	}
	if lost && closed == 0 {
		f.t.Error("nobody was refused by closed")
	}
	slices.Sort(waits)
	p99, most := waits[len(waits)*99/100], waits[len(waits)-1]
	// The machine may be busy; these are bounds all the same.
	if p99 > 2*f.timeout || most > 5*f.timeout {
		f.t.Errorf("p99 of the wait is %v, the longest %v, with a timeout of %v", p99, most, f.timeout)
	}
	var arrived []time.Time
	for _, a := range f.up.Take("queue") {
		arrived = append(arrived, a.At)
	}
	// What each may have had in advance at both changes; see docs/fleet.md.
	slack := ledger.Slack(arrived, limiter.Rate{Count: 100, Per: time.Second}, 3+2*2*3)
	if slack > 2*f.timeout {
		f.t.Errorf("the queue's arrivals need %v of slack", slack)
	}
	f.t.Logf("%d answers, of them %d by a closed limit; waits p50 %v, p99 %v, the longest %v; timeout %v; %d of the queue, slack %v",
		len(f.asks), closed, waits[len(waits)/2], p99, most, f.timeout, len(arrived), slack)
}
