package proxy_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/assemble"
	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A fragile upstream has a limit that nobody is told, and that steps up and down:
// between doubles and halves it takes twice as many.
type fragile struct {
	start  time.Time
	fields bool          // it counts in windows of 10 s, and says what is left
	slow   time.Duration // what answers take longer that are none of 429

	mu     sync.Mutex
	random *rand.Rand
	level  float64 // tokens, or what is left of the window
	filled time.Duration

	came, throttled, served int // served after it has settled
}

const (
	perSecond = 20
	settled   = 30 * time.Second // from when on what is used counts
	doubles   = 60 * time.Second
	halves    = 90 * time.Second
	lasts     = 120 * time.Second
	window    = 10 * time.Second
)

func (f *fragile) limit(at time.Duration) float64 {
	if at >= doubles && at < halves {
		return 2 * perSecond
	}
	return perSecond
}

func (f *fragile) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	status, took := f.answer(w.Header())
	time.Sleep(took)
	w.WriteHeader(status)
}

func (f *fragile) answer(h http.Header) (status int, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := time.Since(f.start)
	f.came++
	if f.fields {
		if at.Truncate(window) != f.filled.Truncate(window) || f.filled == 0 {
			f.level = window.Seconds() * f.limit(at)
		}
	} else {
		f.level = min(5, f.level+(at-f.filled).Seconds()*f.limit(at))
	}
	f.filled = at
	took = time.Duration(20+f.random.IntN(60)) * time.Millisecond
	if status = http.StatusOK; f.level < 1 {
		status = http.StatusTooManyRequests
		f.throttled++
	} else {
		f.level--
		if at > settled && at < lasts {
			f.served++
		}
		if f.slow > 0 {
			took += time.Duration(f.random.Int64N(int64(f.slow)))
		}
	}
	if f.fields {
		h.Set("X-Ratelimit-Limit", strconv.Itoa(int(window.Seconds()*f.limit(at))))
		h.Set("X-Ratelimit-Remaining", strconv.Itoa(int(f.level)))
		h.Set("X-Ratelimit-Reset", strconv.FormatInt(proxy.Seconds(at.Truncate(window)+window-at), 10))
	}
	return status, took
}

// A course is a configuration in virtual time, whose upstreams are in memory.
type course struct {
	*assemble.System
	mu     sync.Mutex
	turns  int           // that requests have left with
	failed []proxy.Event // those that were not answered 200
}

func (c *course) Decided(string, []limiter.Decision) {}

func (c *course) Done(e *proxy.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !e.Departed.IsZero() {
		c.turns += e.Attempt()
	}
	if e.Status != http.StatusOK {
		c.failed = append(c.failed, *e)
	}
}

func load(t *testing.T, text string) *config.Config {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := config.Load(file, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func newCourse(t *testing.T, text string, up http.Handler) *course {
	c := &course{}
	c.System = assemble.New(c, slog.New(slog.DiscardHandler))
	t.Cleanup(c.Close)
	if err := c.Apply(load(t, text)); err != nil {
		t.Fatal(err)
	}
	c.Proxy.Upstreams(t, up)
	return c
}

func (c *course) get() {
	c.Proxy.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
}

const searching = `
[admin]
listen = ""
[upstream.app]
url = "http://192.0.2.1"
[limit.partner]
algorithm = "leaky-bucket"
rate = "auto"
min_rate = "1/s"
max_rate = "1000/s"
queue = 500
[[route]]
match = "/"
upstream = "app"
limits = ["partner"]
`

// TestUnknownLimit judges the whole proxy before an upstream whose limit nobody
// knows, or that says by its fields what is left. Three times as much is asked for
// as it takes when it takes most, by clients who have the default patience: evenly,
// all together at whole seconds, and with answers that take up to three seconds.
func TestUnknownLimit(t *testing.T) {
	for _, kind := range []string{"evenly", "together", "slow"} {
		for _, fields := range []bool{false, true} {
			for seed := range uint64(seeds) {
				t.Run(fmt.Sprintf("%s, fields %v, seed %d", kind, fields, seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := &fragile{start: time.Now(), fields: fields, random: rand.New(rand.NewPCG(seed, 1))}
						if kind == "slow" {
							f.slow = 3 * time.Second
						}
						judge(t, f, kind == "together")
					})
				})
			}
		}
	}
}

func judge(t *testing.T, f *fragile, together bool) {
	const clients = 3 * 2 * perSecond // each asks for one a second
	c := newCourse(t, searching, f)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			if !together {
				time.Sleep(time.Duration(i) * time.Second / clients)
			}
			for time.Since(f.start) < lasts {
				next := time.Now().Add(time.Second)
				if together {
					next = next.Truncate(time.Second)
				}
				c.get()
				time.Sleep(time.Until(next))
			}
		})
	}
	rises := c.when(f.start.Add(doubles), func(rate float64) bool { return rate >= 0.95*2*perSecond })
	falls := c.when(f.start.Add(halves), func(rate float64) bool { return rate <= 1.05*perSecond })
	all.Wait()

	used := float64(f.served) / (perSecond * (lasts - settled + halves - doubles).Seconds())
	share, most := float64(f.throttled)/float64(f.came), 0.03
	if f.fields {
		most = 0.01
	}
	t.Logf("%.1f%% used, %.2f%% of %d throttled, %v to twice the rate, %v back", 100*used, 100*share, f.came, rises, falls)
	if used < 0.9 {
		t.Errorf("%.1f%% of what the upstream takes is used", 100*used)
	}
	if share >= most {
		t.Errorf("%.2f%% are throttled", 100*share)
	}
	if rises >= 10*time.Second {
		t.Errorf("%v until twice the rate", rises)
	}
	if falls >= time.Second {
		t.Errorf("%v until half the rate", falls)
	}
	for _, e := range c.failed {
		t.Errorf("a client is answered %d %s after %v, with room in the queue: %+v", e.Status, e.Reason, e.Duration, e.Retries)
	}
	if f.came != c.turns {
		t.Errorf("%d came to the upstream in %d turns", f.came, c.turns)
	}
	if kept := c.Proxy.Kept(); kept != 0 {
		t.Errorf("%d bytes are kept", kept)
	}
}

// when is how long after that instant the rate in force is there, to a tenth of a
// second.
func (c *course) when(since time.Time, there func(rate float64) bool) time.Duration {
	for after := time.Duration(0); ; after += 100 * time.Millisecond {
		time.Sleep(time.Until(since.Add(after)))
		synctest.Wait()
		if after > 20*time.Second || there(c.Limits()[0].EffectivePerSecond) {
			return after
		}
	}
}

// A request that waits for another turn while the configuration is reloaded goes
// where it was to go, once for each turn.
func TestRetryThroughAReload(t *testing.T) {
	const conf = `
[admin]
listen = ""
[upstream.app]
url = "http://192.0.2.1"
[limit.q]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 10
[[route]]
match = "/"
upstream = "app"
limits = ["q"]
`
	for name, change := range map[string][2]string{
		"nothing":      {"", ""},
		"the upstream": {"192.0.2.1", "192.0.2.2"},
		"no retries":   {`[limit.q]`, "retries = 0\n[limit.q]"},
		"not obeyed":   {`[limit.q]`, "obey = false\n[limit.q]"},
		"the limit":    {"[limit.q]\nalgorithm = \"leaky-bucket\"", "[limit.q]\nalgorithm = \"token-bucket\""},
		"no limit":     {`limits = ["q"]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var came []time.Duration
				c := newCourse(t, conf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Host != "192.0.2.1" {
						t.Errorf("sent to %s", r.Host)
					}
					if came = append(came, time.Since(start)); len(came) == 1 {
						w.Header().Set("Retry-After", "3")
						w.WriteHeader(http.StatusTooManyRequests)
					}
				}))
				time.AfterFunc(time.Second, func() {
					if err := c.Apply(load(t, strings.Replace(conf, change[0], change[1], 1))); err != nil {
						t.Error(err)
					}
				})
				c.get()
				time.Sleep(time.Minute)
				if len(c.failed) != 0 || c.turns != 2 || !slices.Equal(came, []time.Duration{0, 3 * time.Second}) {
					t.Errorf("it came at %v in %d turns, and is told as %+v", came, c.turns, c.failed)
				}
			})
		})
	}
}
