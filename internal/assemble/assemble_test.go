package assemble

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load reads a configuration of these limits, all on one route.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const head = `
[server]
listen = "127.0.0.1:8080"
[admin]
listen = ""
[upstream.u]
url = "http://127.0.0.1:8081"
[[route]]
match = "/"
upstream = "u"
`

func newSystem(t *testing.T) *System {
	t.Helper()
	s := New(proxy.Observers{}, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

func (s *System) mustApply(t *testing.T, text string) {
	t.Helper()
	if err := s.Apply(load(t, text)); err != nil {
		t.Fatal(err)
	}
}

func queueLimit(rate, places, more string) string {
	return head + `limits = ["q"]
[limit.q]
algorithm = "leaky-bucket"
rate = "` + rate + `"
queue = ` + places + "\n" + more
}

// TestCase63ReloadKeepsWaiters: who waits is served in order and at the rate,
// through one reload and through a storm of them (caddyserver/caddy #4762).
func TestCase63ReloadKeepsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		text := queueLimit("5/s", "30", "")
		s.mustApply(t, text)
		start := time.Now()
		var mu sync.Mutex
		var order []int
		var at []time.Duration
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				d, err := s.now.Load().limit("q").link.Queue.Acquire(t.Context(), shaping.Request{})
				if err != nil || !d.Allowed {
					t.Errorf("request %d: %v %+v", i, err, d)
				}
				mu.Lock()
				defer mu.Unlock()
				order, at = append(order, i), append(at, d.At.Sub(start))
			})
			synctest.Wait()
		}
		for i := range 50 {
			time.Sleep(37 * time.Millisecond)
			text := text
			if i%2 == 0 {
				text = queueLimit("5/s", "3", "max_wait = \"1s\"") // below the depth: nobody who waits is refused
			}
			s.mustApply(t, text)
		}
		wg.Wait()
		for i := range 20 {
			if order[i] != i || at[i] != time.Duration(i)*200*time.Millisecond {
				t.Fatalf("order %v, departures %v", order, at)
			}
		}
	})
}

// TestCase11ReloadFillsNoBucket (milvus-io/milvus #35675).
func TestCase11ReloadFillsNoBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		text := func(rate string) string {
			return head + "limits = [\"t\"]\n[limit.t]\nalgorithm = \"token-bucket\"\nrate = \"" + rate + "\"\nburst = 10\n"
		}
		s.mustApply(t, text("1/s"))
		passed := 0
		drain := func() {
			for s.now.Load().limit("t").link.Reject.Take("", 1).Allowed {
				passed++
			}
		}
		drain()
		for i := range 20 {
			s.mustApply(t, text([]string{"2/s", "1/s"}[i%2]))
			drain()
			time.Sleep(100 * time.Millisecond)
		}
		if passed > 10+2*2+1 || passed < 10+2 {
			t.Errorf("%d passed", passed)
		}
	})
}

func TestReloadOfAnotherLimitStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.mustApply(t, queueLimit("1/s", "5", ""))
		old := s.now.Load().limit("q").link.Queue
		old.Acquire(t.Context(), shaping.Request{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if d, err := old.Acquire(t.Context(), shaping.Request{}); err != nil || !d.Allowed || d.Waited != time.Second {
				t.Errorf("the waiter of the old line: %v %+v", err, d)
			}
		})
		synctest.Wait()

		for _, c := range []struct {
			text string
			kept bool
		}{
			{queueLimit("1/s", "9", "max_wait = \"5s\""), true},
			{queueLimit("1/s", "9", "key = \"client-ip\""), false},
			{queueLimit("1/s", "0", ""), false},
			{strings.Replace(queueLimit("1/s", "9", ""), "leaky", "token", 1), false},
		} {
			before := s.now.Load().limit("q").link
			s.mustApply(t, c.text)
			if kept := s.now.Load().limit("q").link == before; kept != c.kept {
				t.Errorf("kept %v, want %v, for\n%s", kept, c.kept, c.text)
			}
			// Whoever waits there still is in the gauges of the name.
			if st := s.Limits()[0]; st.Depth != 1 {
				t.Errorf("depth %d, for\n%s", st.Depth, c.text)
			}
		}
		wg.Wait()
		if st := s.Limits()[0]; st.Depth != 0 || len(s.left.all) != 0 {
			t.Errorf("depth %d, and %d queues are kept", st.Depth, len(s.left.all))
		}
	})
}

func TestReloadKeepsUpstreamsThatDidNotChange(t *testing.T) {
	s := newSystem(t)
	s.mustApply(t, head)
	before := s.now.Load().upstreams[0].Upstream
	s.mustApply(t, head+"timeout = \"3s\"\n")
	if s.now.Load().upstreams[0].Upstream != before {
		t.Error("an upstream that did not change lost its connections")
	}
	s.mustApply(t, strings.Replace(head, "8081\"", "8081\"\nmax_idle_conns = 3", 1))
	if s.now.Load().upstreams[0].Upstream == before {
		t.Error("an upstream that changed was kept")
	}
}

func TestFailedApplyChangesNothing(t *testing.T) {
	s := newSystem(t)
	s.mustApply(t, queueLimit("1/s", "5", ""))
	g := s.now.Load()
	bad := load(t, queueLimit("7/s", "5", "")+"[[route]]\nmatch = \"/x\"\nupstream = \"u\"\n")
	bad.Routes[1].Pattern = "/" // config would have refused it
	if err := s.Apply(bad); err == nil {
		t.Fatal("no error for two equal patterns")
	}
	if s.now.Load() != g {
		t.Error("another generation is in force")
	}
	if r := g.limit("q").link.Queue.Policy().Rate; r.String() != "1/s" {
		t.Errorf("the rate became %s", r)
	}
}

func TestStatusNamesWhatTheFileSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.mustApply(t, head+`limits = ["q", "w"]
[limit.w]
algorithm = "fixed-window"
limit = 7
window = "1m"
key = ["client-ip", "header:X-A"]
[limit.q]
algorithm = "leaky-bucket"
rate = "2/s"
queue = 5
`)
		all := s.Limits()
		names := []string{all[0].Name, all[1].Name}
		if !slices.Equal(names, []string{"w", "q"}) {
			t.Fatalf("order %v", names)
		}
		q := s.now.Load().limit("q").link.Queue
		q.Acquire(t.Context(), shaping.Request{})
		var wg sync.WaitGroup
		wg.Go(func() { q.Acquire(t.Context(), shaping.Request{}) })
		synctest.Wait()
		time.Sleep(200 * time.Millisecond)
		st := s.Limits()[1]
		if st.Depth != 1 || st.OldestWait != 200*time.Millisecond || st.Keys != 1 || st.Queue != 5 ||
			st.Rate.String() != "2/s" || !slices.Equal(st.Routes, []string{"/"}) || st.Key != "global" {
			t.Errorf("%+v", st)
		}
		if w := all[0]; w.Limit != 7 || w.Window != time.Minute || w.Algorithm != limiter.FixedWindow {
			t.Errorf("%+v", w)
		}
		wg.Wait()
	})
}
