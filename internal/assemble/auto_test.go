package assemble

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A fragile upstream has a limit that nobody tells the proxy, and that steps up
// and down: half a minute at twice the limit, from one minute on.
type fragile struct {
	perSecond float64
	start     time.Time
	fields    bool // it counts in windows of 10 s, and says what is left

	mu     sync.Mutex
	random *rand.Rand
	level  float64 // tokens, or what is left of the window
	filled time.Duration

	came, throttled, served int // served after half a minute
}

// What is used counts between these.
const (
	settled = 30 * time.Second
	lasts   = 120 * time.Second
)

func (f *fragile) limit(at time.Duration) float64 {
	if at >= 60*time.Second && at < 90*time.Second {
		return 2 * f.perSecond
	}
	return f.perSecond
}

// answer takes 20 to 80 ms.
func (f *fragile) answer() (status int, h http.Header) {
	f.mu.Lock()
	at := time.Since(f.start)
	f.came++
	h = http.Header{}
	if f.fields {
		if at.Truncate(10*time.Second) != f.filled.Truncate(10*time.Second) || f.filled == 0 {
			f.level = 10 * f.limit(at)
		}
	} else {
		f.level = min(5, f.level+(at-f.filled).Seconds()*f.limit(at))
	}
	f.filled = at
	if status = http.StatusOK; f.level < 1 {
		status = http.StatusTooManyRequests
		f.throttled++
	} else {
		f.level--
		if at > settled && at < lasts {
			f.served++
		}
	}
	if f.fields {
		h.Set("X-Ratelimit-Limit", strconv.Itoa(int(10*f.limit(at))))
		h.Set("X-Ratelimit-Remaining", strconv.Itoa(int(f.level)))
		h.Set("X-Ratelimit-Reset", strconv.FormatInt(proxy.Seconds(at.Truncate(10*time.Second)+10*time.Second-at), 10))
	}
	took := time.Duration(20+f.random.IntN(60)) * time.Millisecond
	f.mu.Unlock()
	time.Sleep(took)
	return status, h
}

const searching = `
[upstream.app]
url = "http://127.0.0.1:8081"
[limit.partner]
algorithm = "leaky-bucket"
rate = "auto"
min_rate = "1/s"
max_rate = "1000/s"
queue = 1000
max_wait = "10m"
[[route]]
match = "/"
upstream = "app"
limits = ["partner"]
`

// TestAutoRate is a rate that nobody knows, with three times as much asked for as
// the upstream takes when it takes most: used, throttled, and how fast a step is
// followed.
func TestAutoRate(t *testing.T) {
	const perSecond, clients = 20, 120
	for _, fields := range []bool{false, true} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("fields %v, seed %d", fields, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New(proxy.Observers{}, slog.New(slog.DiscardHandler))
					defer s.Close()
					conf := load(t, searching)
					if err := s.Apply(conf); err != nil {
						t.Fatal(err)
					}
					now := s.now.Load()
					route := s.route(conf.Routes[0], now.upstreams[0], nil, now.limits, 64, conf.Server.TrustedProxies, nil)
					f := &fragile{perSecond: perSecond, start: time.Now(), fields: fields, random: rand.New(rand.NewPCG(seed, 1))}
					refused, admitted := 0, 0
					var all sync.WaitGroup
					for i := range clients { // each asks for one a second
						all.Go(func() {
							time.Sleep(time.Duration(i) * time.Second / clients)
							for time.Since(f.start) < lasts {
								came := time.Now()
								keys := []limiter.Key{{}}
								p, err := route.Limiter.Acquire(t.Context(), limiter.Request{Keys: keys})
								if err != nil || !p.Allowed {
									f.mu.Lock()
									refused++
									f.mu.Unlock()
									return
								}
								f.mu.Lock()
								admitted++
								f.mu.Unlock()
								hear, sent := route.Ask(keys), time.Now()
								status, h := f.answer()
								p.Report(limiter.Answer{Latency: time.Since(sent), Throttled: status == http.StatusTooManyRequests})
								hear(status, h)
								p.Release()
								time.Sleep(time.Second - time.Since(came))
							}
						})
					}
					rises, falls := time.Duration(-1), time.Duration(-1)
					for _, step := range []struct {
						at    time.Duration
						took  *time.Duration
						there func(rate float64) bool
					}{
						{60 * time.Second, &rises, func(rate float64) bool { return rate >= 0.95*2*perSecond }},
						{90 * time.Second, &falls, func(rate float64) bool { return rate <= 1.05*perSecond }},
					} {
						for after := time.Duration(0); after <= 20*time.Second && *step.took < 0; after += 100 * time.Millisecond {
							time.Sleep(time.Until(f.start.Add(step.at + after)))
							synctest.Wait()
							if step.there(s.Limits()[0].EffectivePerSecond) {
								*step.took = after
							}
						}
					}
					all.Wait()
					used := float64(f.served) / (perSecond * (lasts - settled + 30*time.Second).Seconds())
					share, most := float64(f.throttled)/float64(f.came), 0.03
					if fields {
						most = 0.01
					}
					t.Logf("%.1f%% used, %.2f%% of %d throttled, %v to twice the rate, %v back", 100*used, 100*share, f.came, rises, falls)
					if used < 0.9 {
						t.Errorf("%.1f%% of what the upstream takes is used", 100*used)
					}
					if share >= most {
						t.Errorf("%.2f%% are throttled", 100*share)
					}
					if rises < 0 || rises >= 10*time.Second {
						t.Errorf("%v until twice the rate", rises)
					}
					if falls < 0 || falls >= time.Second {
						t.Errorf("%v until half the rate", falls)
					}
					if refused > 0 {
						t.Errorf("%d refused, with room in the queue", refused)
					}
					if f.came != admitted {
						t.Errorf("%d came to the upstream for %d admitted", f.came, admitted)
					}
				})
			})
		}
	}
}

// Whoever searches for a rate is not paused by a throttled request that does not
// say for how long; everybody else is.
func TestAutoRateIsNotPausedForNothing(t *testing.T) {
	for _, tt := range []struct {
		limits string
		lines  []string
		paused string
	}{
		{`limits = ["partner"]`, nil, ""},
		{`limits = ["partner"]`, []string{"Retry-After: 3"}, throttled},
		{`limits = ["other"]`, nil, throttled},
	} {
		synctest.Test(t, func(t *testing.T) {
			text := strings.Replace(searching, "[[route]]", "[limit.other]\nalgorithm = \"leaky-bucket\"\nrate = \"1/s\"\nqueue = 5\n[[route]]\nmatch = \"/other\"\nupstream = \"app\"\nlimits = [\"partner\", \"other\"]\n[[route]]", 1)
			c := newCourse(t, text)
			conf, now := load(t, text), c.now.Load()
			for _, r := range conf.Routes {
				if r.Match == "/" {
					limits := now.limits[:1]
					if strings.Contains(tt.limits, "other") {
						limits = now.limits[1:]
					}
					c.route = c.System.route(r, now.upstreams[0], nil, limits, 64, conf.Server.TrustedProxies, nil)
				}
			}
			c.ask("", http.StatusTooManyRequests, tt.lines...)
			if got := c.Limits()[0].Paused; got != tt.paused {
				t.Errorf("%s, %v: paused by %q, want %q", tt.limits, tt.lines, got, tt.paused)
			}
			time.Sleep(5 * time.Second)
		})
	}
}

// A reload keeps what was found, and the API tells it.
func TestAutoRateStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, searching)
		for range 100 {
			go c.ask("", http.StatusOK)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		before := c.Limits()[0]
		if before.EffectivePerSecond < 10 || before.MinRate.String() != "1/s" || before.Rate.String() != "1000/s" {
			t.Errorf("%+v", before)
		}
		c.apply(strings.Replace(searching, "queue = 1000", "queue = 2000", 1))
		if after := c.Limits()[0]; after.EffectivePerSecond != before.EffectivePerSecond || after.Queue != 2000 {
			t.Errorf("%v/s after a reload, %v/s before", after.EffectivePerSecond, before.EffectivePerSecond)
		}
	})
}
