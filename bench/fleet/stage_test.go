package fleet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// full says that everything is to take as long as in the tables.
var full = os.Getenv("FLEET") == "full"

// length is how long a stage takes.
func length(quick, long time.Duration) time.Duration {
	if full {
		return long
	}
	return quick
}

var hundred = limiter.Rate{Count: 100, Per: time.Second}

// timeout is that of [redis] here: the default for the tables, and else what a busy
// machine does not lose.
var timeout = length(250*time.Millisecond, 50*time.Millisecond)

var built struct {
	once    sync.Once
	dir     string
	program string
	err     error
}

// program is the proxy, built from this tree.
func program(t *testing.T) string {
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "shapeproxy-fleet-"); built.err == nil {
			built.program, built.err = rig.Build(built.dir, "github.com/shapeproxy/shapeproxy/cmd/shapeproxy")
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.program
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// A fleet is several proxies on one server, before one upstream.
type fleet struct {
	t      *testing.T
	server *redistest.Server
	up     *rig.Recorder
	target string // where the proxies send what departs: up, unless it is another
	nodes  []*node
	stalls *ledger.Stalls
	ids    atomic.Int64 // of requests, over all nodes
}

// A node is one of the proxies, and its clients.
type node struct {
	*fleet
	name         string
	front, admin string
	process      *rig.Process
	killed       bool

	ctx     context.Context
	leave   context.CancelFunc // of the clients
	clients sync.WaitGroup

	mu       sync.Mutex
	statuses map[int]int
	lost     int // requests that had waited and got no answer
}

// raise starts n proxies with one limit, named q, and waits until each knows of
// all. Whatever departs goes to a Recorder, unless there is another upstream.
func raise(t *testing.T, n int, limit string, upstream ...string) *fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	f := &fleet{t: t, server: redistest.Start(t)}
	var err error
	if f.up, err = rig.Record(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.up.Close() })
	f.target = append(upstream, f.up.Addr().String())[0]
	for i := range n {
		d := &node{fleet: f, name: string(rune('a' + i)), statuses: map[int]int{}}
		for _, addr := range []*string{&d.front, &d.admin} {
			if *addr, err = rig.FreeAddr(); err != nil {
				t.Fatal(err)
			}
		}
		dir := filepath.Join(t.TempDir(), d.name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if d.process, err = rig.Shapeproxy(dir, program(t), d.admin, d.config(limit)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.process.Kill() })
		d.ctx, d.leave = context.WithCancel(context.Background())
		t.Cleanup(func() { d.leave(); d.clients.Wait() })
		f.nodes = append(f.nodes, d)
	}
	f.stalls = ledger.New().Watch(f.nodes[0].process.Cmd.Process.Pid)
	t.Cleanup(f.stalls.Stop)
	f.until("each proxy has been there", func() bool { return f.server.AllSince(members, n, time.Time{}) })
	all := time.Now()
	f.until("each has been there again, and so knows of the others", func() bool { return f.server.AllSince(members, n, all) })
	return f
}

const members = "shapeproxy:{members}"

func (d *node) config(limit string) string {
	return fmt.Sprintf(`
[server]
listen = %q
[admin]
listen = %q
[log]
format = "json"
[redis]
address = %q
timeout = %q
[upstream.up]
url = "http://%s"
host = "client"
retry = "never"
[limit.q]
store = "redis"
%s
[[route]]
match = "/"
upstream = "up"
limits = ["q"]
`, d.front, d.admin, d.server.Address(), timeout, d.target, limit)
}

func (f *fleet) until(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// overload has n clients ask the node again and again.
func (d *node) overload(n int) {
	for range n {
		d.clients.Go(func() {
			for d.ctx.Err() == nil {
				d.client(0)
				pause(d.ctx, 20*time.Millisecond)
			}
		})
	}
}

// offer has n clients ask so many times a second in all, whether answers come or not.
func (d *node) offer(n, perSecond int) {
	for i := range n {
		d.clients.Go(func() {
			pause(d.ctx, time.Duration(i)*time.Second/time.Duration(perSecond))
			for d.ctx.Err() == nil {
				d.client(time.Duration(n) * time.Second / time.Duration(perSecond))
			}
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// unread is for how long a request may have been on its way to a proxy that closes
// an idle connection, as a server may.
const unread = 100 * time.Millisecond

// client asks on one connection until that ends, each time an interval after the
// last, or as soon as it is answered.
func (d *node) client(interval time.Duration) {
	conn, err := net.Dial("tcp", d.front)
	if err != nil {
		return // the proxy was killed
	}
	defer conn.Close()
	defer context.AfterFunc(d.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	answers := bufio.NewReader(conn)
	next := time.Now()
	for d.ctx.Err() == nil {
		id, sent := int(d.ids.Add(1)), time.Now()
		if _, err := fmt.Fprintf(conn, "GET /%s/%d HTTP/1.1\r\nHost: %s\r\n\r\n", d.name, id, ledger.Host(id)); err != nil {
			return
		}
		resp, err := http.ReadResponse(answers, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
		}
		d.mu.Lock()
		if err == nil {
			d.statuses[resp.StatusCode]++
		} else if time.Since(sent) > unread && d.ctx.Err() == nil && !d.killed {
			d.lost++
		}
		d.mu.Unlock()
		if err != nil || resp.Close {
			return
		}
		next = next.Add(interval)
		switch {
		case interval > 0:
			pause(d.ctx, time.Until(next))
		case resp.StatusCode != http.StatusOK:
			pause(d.ctx, 10*time.Millisecond)
		}
	}
}

// kill ends the proxy as SIGKILL does, and then its clients.
func (d *node) kill() {
	d.mu.Lock()
	d.killed = true
	d.mu.Unlock()
	if err := d.process.Kill(); err != nil {
		d.t.Error(err)
	}
	d.leave()
	d.clients.Wait()
}

// waiting is how many wait at the node.
func (d *node) waiting() int {
	m, err := ledger.Scrape(d.admin)
	if err != nil {
		d.t.Fatal(err)
	}
	return m.Sum("shapeproxy_queue_depth")
}

// logged are the node's messages of the store, with their times.
func (d *node) logged(text string) (at []time.Time) {
	for line := range strings.Lines(d.process.Output()) {
		if _, rest, ok := strings.Cut(line, `{"time":"`); ok && strings.Contains(line, text) {
			when, _, _ := strings.Cut(rest, `"`)
			if one, err := time.Parse(time.RFC3339Nano, when); err == nil {
				at = append(at, one)
			}
		}
	}
	return at
}

// An account is what all sides say about a run.
type account struct {
	arrived  []time.Time            // at the upstream, over all nodes
	of       map[string][]time.Time // by the node through which they came
	departed []time.Time            // by the logs of the proxies
	late     time.Duration          // the most that one took from departure to arrival, beyond the least
}

// finish sends the clients away, ends the proxies, and collects. Whatever went
// wrong besides what clients may be told is an error.
func (f *fleet) finish(statuses ...int) account {
	f.t.Helper()
	for _, d := range f.nodes {
		d.leave()
		d.clients.Wait()
	}
	a := account{of: map[string][]time.Time{}}
	var least, most time.Duration
	for _, d := range f.nodes {
		if !d.killed {
			if err := d.process.Stop(); err != nil {
				f.t.Errorf("%s did not end well: %v", d.name, err)
			}
		}
		lines, err := ledger.ReadLog(whole(d.process.Output()))
		if err != nil {
			f.t.Fatal(err)
		}
		for _, one := range f.up.Take(d.name) {
			a.arrived = append(a.arrived, one.At)
			a.of[d.name] = append(a.of[d.name], one.At)
			id, _ := strconv.Atoi(one.ID)
			if line, ok := lines[id]; ok && !line.Departed.IsZero() {
				least, most = min(least, one.At.Sub(line.Departed)), max(most, one.At.Sub(line.Departed))
			}
		}
		for _, line := range lines {
			if !line.Departed.IsZero() {
				a.departed = append(a.departed, line.Departed)
			}
		}
		if d.lost > 0 {
			f.t.Errorf("%d requests that had waited at %s got no answer", d.lost, d.name)
		}
		for status, n := range d.statuses {
			if !slices.Contains(statuses, status) {
				f.t.Errorf("%d answers of %s were %d", n, d.name, status)
			}
		}
	}
	a.late = most - least
	slices.SortFunc(a.arrived, time.Time.Compare)
	slices.SortFunc(a.departed, time.Time.Compare)
	return a
}

// whole is the log without a last line that a killed process did not end.
func whole(log string) string { return log[:strings.LastIndexByte(log, '\n')+1] }

// between are those of a time.
func between(all []time.Time, from, to time.Time) (some []time.Time) {
	for _, at := range all {
		if at.After(from) && !at.After(to) {
			some = append(some, at)
		}
	}
	return some
}

// A pace is how evenly they come: at most and at least so many in any second
// between from and to, and the longest in which there are none.
type pace struct {
	most, least int
	gap         time.Duration
}

func paceOf(all []time.Time, from, to time.Time) (p pace) {
	some := between(all, from, to)
	last, first := from, 0
	for i, at := range some {
		for at.Sub(some[first]) >= time.Second {
			first++
		}
		p.most, p.gap, last = max(p.most, i-first+1), max(p.gap, at.Sub(last)), at
	}
	p.least = len(some)
	for at := from; !at.Add(time.Second).After(to); at = at.Add(step) {
		p.least = min(p.least, len(between(some, at, at.Add(time.Second))))
	}
	return p
}

const step = 10 * time.Millisecond

// fullAfter is how long after an event the first second begins that has so many; -1
// if there is none.
func fullAfter(all []time.Time, event, end time.Time, enough int) time.Duration {
	for d := time.Duration(0); !event.Add(d + time.Second).After(end); d += step {
		if from := event.Add(d); len(between(all, from, from.Add(time.Second))) >= enough {
			return d
		}
	}
	return -1
}
