package assemble

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
