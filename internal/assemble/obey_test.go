package assemble

import (
	"bytes"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A course is a configuration in virtual time, with an upstream that answers what
// it is told to.
type course struct {
	*System
	t     *testing.T
	start time.Time
	log   bytes.Buffer
	route *proxy.Route

	mu      sync.Mutex
	sent    []time.Duration // when requests reached the upstream
	refused []limiter.Permit
}

func newCourse(t *testing.T, text string) *course {
	c := &course{t: t, start: time.Now()}
	c.System = New(proxy.Observers{}, slog.New(slog.NewTextHandler(&c.log, nil)))
	t.Cleanup(c.Close)
	c.apply(text)
	return c
}

func (c *course) apply(text string) {
	conf := load(c.t, text)
	if err := c.Apply(conf); err != nil {
		c.t.Fatal(err)
	}
	now := c.now.Load()
	c.route = c.System.route(conf.Routes[0], now.upstreams[0], nil, now.limits, 64, conf.Server.TrustedProxies, nil)
}

// ask sends a request of that key, which is answered 100 ms after its release.
func (c *course) ask(key string, status int, lines ...string) {
	route := c.route
	r := &http.Request{Header: http.Header{"X-Key": {key}}}
	keys, err := route.Identify(proxy.Identity{Request: r})
	if err != nil {
		c.t.Error(err)
		return
	}
	if route.Limiter != nil {
		p, err := route.Limiter.Acquire(c.t.Context(), limiter.Request{Keys: keys})
		if err != nil || !p.Allowed {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.refused = append(c.refused, p)
			return
		}
		defer p.Release()
	}
	var hear func(int, http.Header) bool
	if route.Ask != nil {
		hear = route.Ask(keys)
	}
	c.mu.Lock()
	c.sent = append(c.sent, time.Since(c.start))
	c.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	if hear != nil {
		h := http.Header{}
		for _, l := range lines {
			name, value, _ := strings.Cut(l, ": ")
			h.Add(name, value)
		}
		hear(status, h)
	}
}

// crowd asks n times at once for what is answered with 200.
func (c *course) crowd(n int) {
	for range n {
		go c.ask("", 200)
		synctest.Wait()
	}
}

func (c *course) wantSent(want ...int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []int
	for _, at := range c.sent {
		got = append(got, int(at.Milliseconds()))
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("sent at %v ms, want %v", got, want)
	}
}

func withUpstream(text, fields string) string {
	return strings.Replace(text, "url = \"http://127.0.0.1:8081\"\n", "url = \"http://127.0.0.1:8081\"\n"+fields+"\n", 1)
}

// TestCase35 is the pause by Retry-After, in either form and capped (api7/aisix
// #144): who waits stays, and the drain goes on at its pace.
func TestCase35ThrottledPausesTheLine(t *testing.T) {
	for _, tt := range []struct {
		status int
		line   string
		fields string
		want   int // when the next is sent
	}{
		{429, "Retry-After: 3", "", 3100},
		{503, "Retry-After: 3", "", 3100},
		{503, "X-Nothing: 3", "", 1000},
		{429, "Retry-After: 2.5", "", 2600},
		{429, "Retry-After-Ms: 1750", "", 1850},
		{429, "Retry-After: Sat, 01 Jan 2000 00:00:04 GMT", "", 4000},
		{429, "Retry-After: 99999999", `max_pause = "7s"`, 7100},
		{429, "Retry-After: 99999999", "obey = false", 1000},
		{429, "X-Nothing: 3", "", 1100}, // it does not say for how long
		{200, "RateLimit: \"up\";r=0;t=5", "", 5100},
		{200, "RateLimit: \"up\";r=0;t=5", "trust = false", 1000},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCourse(t, withUpstream(queueLimit("1/s", "20", ""), tt.fields))
			go c.ask("", tt.status, tt.line)
			synctest.Wait()
			c.crowd(3)
			time.Sleep(500 * time.Millisecond)
			st := c.Limits()[0]
			paused := tt.want > 1000
			if (st.Paused != "") != paused || (st.EffectivePerSecond == 0) != paused || st.Depth != 3 {
				t.Errorf("%s: it stands at %+v", tt.line, st)
			}
			if resumes := time.Duration(tt.want-500) * time.Millisecond; paused && st.Resumes != resumes {
				t.Errorf("%s: it resumes in %v, want %v", tt.line, st.Resumes, resumes)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			c.wantSent(0, tt.want, tt.want+1000, tt.want+2000)
			if st := c.Limits()[0]; st.Paused != "" || st.EffectivePerSecond != 1 {
				t.Errorf("%s: afterwards it stands at %+v", tt.line, st)
			}
			for word, n := range map[string]bool{"is paused": paused, "is asked again": paused, "longer than max_pause": strings.Contains(tt.fields, "7s")} {
				if got := strings.Count(c.log.String(), word); got > 1 || (got == 1) != n {
					t.Errorf("%s: %q stands in the log %d times", tt.line, word, got)
				}
			}
		})
	}
}

func TestThrottledAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, queueLimit("16/s", "20", "")) // one each 62.5 ms, so that two are out when the first is answered
		for range 6 {
			go c.ask("", 429)
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		c.ask("", 200)
		time.Sleep(900 * time.Millisecond)
		c.ask("", 429)
		c.ask("", 200)
		// Pauses of 1, 2 and 4 s, from the later answer of two; one that went out
		// before a pause began does not count as the next. A good answer ends that.
		c.wantSent(0, 62, 1162, 1225, 3325, 3387, 20000, 21000, 22100)
		if u := c.Upstreams()[0]; u.Throttled != 7 {
			t.Errorf("%d were throttled", u.Throttled)
		}
	})
}

func TestObeyQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, queueLimit("10/s", "50", ""))
		c.ask("", 200, "RateLimit-Limit: 100", "RateLimit-Remaining: 10", "RateLimit-Reset: 20", "X-RateLimit-Remaining: soon", "X-RateLimit-Reset: 20")
		if st := c.Limits()[0]; st.EffectivePerSecond != 0.5 || st.Paused != "" {
			t.Errorf("it stands at %+v", st)
		}
		if u := c.Upstreams()[0]; u.FieldsIgnored != 1 || u.Throttled != 0 {
			t.Errorf("%+v", u)
		}
		c.crowd(14)
		time.Sleep(time.Minute)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		inTime := 0
		for _, at := range c.sent[1:] {
			if at < 20100*time.Millisecond {
				inTime++
			}
		}
		if inTime != 10 || len(c.sent) != 15 {
			t.Errorf("%d of %d were sent before the reset: %v", inTime, len(c.sent), c.sent)
		}
	})
}

func TestObeyBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, withUpstream(queueLimit("1/s", "20", ""), `obey_by = "header:X-Key"`))
		c.ask("a", 429, "Retry-After: 10")
		for _, key := range []string{"a", "b", "a", "b"} {
			go c.ask(key, 200)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.wantSent(0, 1000, 2000, 10100, 11100)
		if c.log.Len() > 0 {
			t.Errorf("clients can write to the log: %s", c.log.String())
		}
	})
}

func TestObeyWithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, head+`limits = ["t"]
[limit.t]
algorithm = "token-bucket"
rate = "10/s"
burst = 10
status = 503
`)
		c.ask("", 429, "Retry-After: 2")
		c.ask("", 200)
		if p := c.refused[0]; p.Reason != limiter.ReasonPaused || p.Status != 503 || p.RetryAfter != 2*time.Second {
			t.Errorf("%+v", p.Decision)
		}
		time.Sleep(2 * time.Second)
		c.ask("", 200)
		c.wantSent(0, 2100)
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCourse(t, head)
		c.ask("", 429, "Retry-After: 2")
		c.ask("", 200)
		c.wantSent(0, 100) // a route without limits is not limited
	})
}

// A reload keeps a pause, and takes the new settings.
func TestObeyOutlivesAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := queueLimit("1/s", "20", "")
		c := newCourse(t, text)
		c.ask("", 429, "Retry-After: 5")
		c.crowd(1)
		c.apply(withUpstream(text, "max_pause = \"2s\"\nidle_conn_timeout = \"5s\""))
		c.crowd(1)
		time.Sleep(10 * time.Second)
		c.ask("", 429, "Retry-After: 5")
		c.ask("", 200)
		synctest.Wait()
		c.wantSent(0, 5100, 6100, 10100, 12200)
		if u := c.Upstreams()[0]; u.Throttled != 2 {
			t.Errorf("%d were throttled", u.Throttled)
		}
	})
}
