package fleet

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestCase29_KilledHolder (BerriAI/litellm #20256): the places of a proxy that is
// killed are free when its lease is over, and all of them.
func TestCase29_KilledHolder(t *testing.T) {
	t.Parallel()
	var holding [2]atomic.Int64 // by proxy
	release := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		held := &holding[r.URL.Path[1]-'a']
		held.Add(1)
		defer held.Add(-1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(upstream.Close)
	f := raise(t, 2, "algorithm = \"concurrency\"\nmax_in_flight = 5", strings.TrimPrefix(upstream.URL, "http://"))
	f.nodes[1].overload(5)
	f.until("the one holds all places", func() bool { return holding[1].Load() == 5 })
	refused := func() int {
		f.nodes[0].mu.Lock()
		defer f.nodes[0].mu.Unlock()
		return f.nodes[0].statuses[http.StatusTooManyRequests]
	}
	f.nodes[0].overload(8)
	f.until("the other is refused", func() bool { return refused() > 8 })
	if n := holding[0].Load(); n != 0 {
		t.Errorf("%d more than 5 places are held", n)
	}
	f.nodes[1].kill()
	killed := time.Now()
	f.until("the other holds all places", func() bool { return holding[0].Load() == 5 })
	t.Logf("after %v", time.Since(killed))
	before := refused()
	f.until("more are refused", func() bool { return refused() > before+8 })
	if n := holding[0].Load(); n != 5 {
		t.Errorf("%d of 5 places are held", n)
	}
	close(release)
	f.finish(200, 429)
}

// TestCase63_ReloadAndStop (caddyserver/caddy #4762, kedacore/http-add-on PR #1648):
// while many wait at both of two proxies both reload, and one is told to stop. It
// serves whom it has, and together they keep the rate.
func TestCase63_ReloadAndStop(t *testing.T) {
	t.Parallel()
	f := raise(t, 2, line)
	f.overloaded()
	for round := range 5 {
		for _, d := range f.nodes {
			d.reload(strings.Replace(line, "1000", []string{"900", "1000"}[round%2], 1))
		}
		time.Sleep(100 * time.Millisecond)
	}
	stops := f.nodes[1]
	if stops.waiting() < crowd/2 {
		t.Error("few wait at the one that is to stop")
	}
	// Its clients stay for their answers, and get the last with the end of the
	// connection.
	if err := stops.process.Stop(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
	stopped := time.Now()
	time.Sleep(length(time.Second, 5*time.Second))
	over := time.Now()
	a := f.finish(200)
	a.promised(t, 0)
	if n := len(between(a.arrived, stopped, over)); n < 20 {
		t.Errorf("%d arrived after one had stopped", n)
	}
	if n := len(stops.logged(`"status":503`)); n > 0 {
		t.Errorf("%d were refused by the one that stopped", n)
	}
	if full {
		f.tell(a, "one stopped", stopped, over)
	}
}

// reload gives the node another limit, by SIGHUP.
func (d *node) reload(limit string) {
	d.t.Helper()
	file := filepath.Join(filepath.Dir(d.process.Stderr), "shapeproxy.toml")
	if err := os.WriteFile(file+".new", []byte(d.config(limit)), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		d.t.Fatal(err)
	}
	if err := d.process.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		d.t.Fatal(err)
	}
}
