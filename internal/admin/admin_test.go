package admin

import (
	"encoding/json"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/shaping"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limits has one of every form.
func limits() []limiter.Status {
	rate := func(s string) limiter.Rate {
		r, err := limiter.ParseRate(s)
		if err != nil {
			panic(err)
		}
		return r
	}
	return []limiter.Status{
		{
			Name: "fragile", Algorithm: limiter.LeakyBucket, Rate: rate("20/s"), Burst: 1, Queue: 100, MaxWait: 30 * time.Second,
			Key: "global", Routes: []string{"GET api.example.com/v1/invoices/{id}", "/"},
			Depth: 12, FleetDepth: 31, OldestWait: 550 * time.Millisecond, Keys: 1, Store: "redis", StoreDown: "local",
			FairBy: "client-ip, header:X-Tenant", PromoteAfter: 2 * time.Second, DeadlineHeader: "Request-Timeout", Cost: 1,
			MissingKey: "shared", MaxKeys: 100000, RefusedWith: 429,
		},
		{
			Name: "per-client", Algorithm: limiter.TokenBucket, Rate: rate("5/s"), Burst: 10,
			Key: "client-ip", DryRun: true, Routes: []string{"/"}, Keys: 1423, Evicted: 3,
			FairBy: "global", Cost: 1, CostHeader: "X-Cost", MissingKey: "shared", Exempt: "192.0.2.1, 10.0.0.0/8", MaxKeys: 5000, RefusedWith: 429,
		},
		{
			Name: "daily.quota", Algorithm: limiter.FixedWindow, Limit: 5000, Window: 24 * time.Hour,
			Key: "host, header:X-Tenant", Keys: 7,
			FairBy: "global", Cost: 3, MissingKey: "reject", MaxKeys: 100000, RefusedWith: 503,
		},
	}
}

// newAdmin returns an Admin with limits, as changed by change.
func newAdmin(change func(*Options)) *Admin {
	opts := Options{
		Listen:    "10.1.2.3:9090",
		Metrics:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, 200, "a_metric 1\n") }),
		Limits:    limits,
		Upstreams: func() []proxy.UpstreamStatus { return []proxy.UpstreamStatus{{Name: "billing", InFlight: 3}} },
		Tally:     new(Tally),
		Reload:    func() (problems, warnings []string) { return nil, nil },
		Change:    func(string, map[string]any) []string { return nil },
		Pause:     func(string, time.Duration) error { return nil },
		Resume:    func(string) error { return nil },
		Busiest:   func(string, int) ([]limiter.Busy, error) { return nil, nil },
		Key:       func(string, string) (limiter.Decision, error) { return limiter.Decision{}, nil },
		Reset:     func(string, string) error { return nil },
		Waiting:   func(string, int) ([]shaping.Waiting, error) { return nil, nil },
		Log:       slog.New(slog.DiscardHandler),
	}
	var names []string
	for _, l := range limits() {
		names = append(names, l.Name)
	}
	opts.Tally.Configure(names)
	if change != nil {
		change(&opts)
	}
	return New(opts)
}

// ask puts "METHOD /path" to a with headers given as "Name: value"; Host may
// be among them.
func ask(a *Admin, target, body string, headers ...string) *httptest.ResponseRecorder {
	method, path, _ := strings.Cut(target, " ")
	r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, r)
	return w
}

func TestRoutes(t *testing.T) {
	a := newAdmin(nil)
	a.SetReady(true)
	for _, c := range []struct {
		target string
		status int
		kind   string
		allow  string
	}{
		{"GET /healthz", 200, "text/plain; charset=utf-8", ""},
		{"HEAD /healthz", 200, "text/plain; charset=utf-8", ""},
		{"GET /readyz", 200, "text/plain; charset=utf-8", ""},
		{"GET /metrics", 200, "text/plain; charset=utf-8", ""},
		{"GET /", 200, "text/html; charset=utf-8", ""},
		{"HEAD /", 200, "text/html; charset=utf-8", ""},
		{"GET /page.css", 200, "text/css; charset=utf-8", ""},
		{"GET /page.js", 200, "text/javascript; charset=utf-8", ""},
		{"GET /card.js", 200, "text/javascript; charset=utf-8", ""},
		{"GET /uplot.js", 200, "text/javascript; charset=utf-8", ""},
		{"GET /uplot.css", 200, "text/css; charset=utf-8", ""},
		{"GET /uplot.license", 200, "text/plain; charset=utf-8", ""},
		{"GET /icon.svg", 200, "image/svg+xml", ""},
		{"GET /api/limits", 200, "application/json", ""},
		{"GET /api/limits?top=20", 200, "application/json", ""},
		{"GET /api/limits/fragile", 200, "application/json", ""},
		{"GET /api/limits/daily.quota", 200, "application/json", ""},
		{"GET /api/%6cimits/fr%61gile", 200, "application/json", ""},
		{"HEAD /api/events", 200, "text/event-stream", ""},
		{"POST /api/reload", 200, "application/json", ""},

		{"GET /api/limits/other", 404, "application/json", ""},
		{"GET /api/limits/Fragile", 404, "application/json", ""},
		{"GET /api/limits/", 404, "application/json", ""},
		{"GET /api/limits/0", 404, "application/json", ""},
		{"GET /api/limits/fragile/", 404, "application/json", ""},
		{"GET /api/limits/fragile/keys/", 404, "application/json", ""},
		{"GET /api", 404, "application/json", ""},
		{"GET /API/limits", 404, "application/json", ""},
		{"GET /index.html", 404, "application/json", ""},
		{"GET /page/index.html", 404, "application/json", ""},
		{"GET /debug/pprof/", 404, "application/json", ""},
		{"GET /debug/vars", 404, "application/json", ""},
		// Nothing is cleaned and no redirect made.
		{"GET //", 404, "application/json", ""},
		{"GET //metrics", 404, "application/json", ""},
		{"GET /api/../metrics", 404, "application/json", ""},
		{"GET /healthz/../api/limits", 404, "application/json", ""},
		{"GET /healthz/", 404, "application/json", ""},
		{"GET /healthz%2f..%2fapi/limits", 404, "application/json", ""},
		{"GET /api/limits/..", 404, "application/json", ""},
		{"GET /api/limits/%2e%2e/reload", 404, "application/json", ""},

		{"POST /healthz", 405, "application/json", "GET, HEAD"},
		{"POST /", 405, "application/json", "GET, HEAD"},
		{"POST /api/limits", 405, "application/json", "GET, HEAD"},
		{"DELETE /api/limits/fragile", 405, "application/json", "GET, HEAD, PATCH"},
		{"OPTIONS /api/limits", 405, "application/json", "GET, HEAD"},
		{"GET /api/reload", 405, "application/json", "POST"},
		{"HEAD /api/reload", 405, "application/json", "POST"},
		{"FOO /api/events", 405, "application/json", "GET, HEAD"},
	} {
		w := ask(a, c.target, "")
		if w.Code != c.status || w.Header().Get("Content-Type") != c.kind || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s: %d %s, Allow %q; want %d %s, %q", c.target,
				w.Code, w.Header().Get("Content-Type"), w.Header().Get("Allow"), c.status, c.kind, c.allow)
		}
		if c.status >= 400 {
			var answer struct{ Error string }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error == "" {
				t.Errorf("%s: no error in %q", c.target, w.Body)
			}
		}
	}
}

func TestReady(t *testing.T) {
	a := newAdmin(nil)
	for _, ready := range []bool{false, true, false} {
		a.SetReady(ready)
		want := http.StatusServiceUnavailable
		if ready {
			want = http.StatusOK
		}
		if w := ask(a, "GET /readyz", ""); w.Code != want {
			t.Errorf("ready %v: status %d, want %d", ready, w.Code, want)
		}
		if w := ask(a, "GET /healthz", ""); w.Code != http.StatusOK {
			t.Errorf("ready %v: not healthy: %d", ready, w.Code)
		}
	}
}

func TestLimitsAsJSON(t *testing.T) {
	a := newAdmin(nil)
	decide := func(times int, d limiter.Decision) {
		for range times {
			a.opts.Tally.Decided("/", []limiter.Decision{d})
		}
	}
	decide(3, limiter.Decision{Policy: "fragile", Allowed: true})
	decide(40, limiter.Decision{Policy: "fragile", Allowed: true, Queued: true})
	decide(2, limiter.Decision{Policy: "fragile", Reason: limiter.ReasonQueueFull})
	decide(1, limiter.Decision{Policy: "fragile", Reason: limiter.ReasonMaxWait})
	decide(5, limiter.Decision{Policy: "fragile", Reason: limiter.ReasonClientGone})
	decide(9, limiter.Decision{Policy: "per-client", Reason: limiter.ReasonLimit, DryRun: true})
	decide(4, limiter.Decision{Policy: "per-client", Peeked: true, Allowed: true})
	golden(t, "testdata/limits.json", ask(a, "GET /api/limits", "").Body.String())
	golden(t, "testdata/limit.json", ask(a, "GET /api/limits/daily.quota", "").Body.String())
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s:\n%s", file, got)
	}
}

func TestNoLimits(t *testing.T) {
	a := newAdmin(func(o *Options) { o.Limits = func() []limiter.Status { return nil } })
	if got, want := ask(a, "GET /api/limits", "").Body.String(), "{\n  \"limits\": []\n}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReload(t *testing.T) {
	for _, c := range []struct {
		name               string
		problems, warnings []string
		status             int
		want               string
	}{
		{"done", nil, nil, 200, `{"ok":true,"problems":[],"warnings":[]}`},
		{"warned", nil, []string{"limit old is named by no route"}, 200,
			`{"ok":true,"problems":[],"warnings":["limit old is named by no route"]}`},
		{"refused", []string{"a.toml:3: rate: no unit", "a.toml:9: match: twice"}, nil, 422,
			`{"ok":false,"problems":["a.toml:3: rate: no unit","a.toml:9: match: twice"],"warnings":[]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			a := newAdmin(func(o *Options) {
				o.Reload = func() ([]string, []string) { calls++; return c.problems, c.warnings }
			})
			w := ask(a, "POST /api/reload", "")
			got := regexp.MustCompile(`\n *`).ReplaceAllString(strings.ReplaceAll(w.Body.String(), `": `, `":`), "")
			if w.Code != c.status || got != c.want || calls != 1 {
				t.Errorf("%d %s after %d calls; want %d %s after 1", w.Code, got, calls, c.status, c.want)
			}
		})
	}
}

// Of the page: nothing of it comes from elsewhere, and no name can become
// markup.
func TestPageKeepsToItself(t *testing.T) {
	outside := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser`)
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script>|javascript:`)
	for path, file := range pageFiles {
		if strings.HasPrefix(path, "/uplot.") {
			continue // a library's, which the browser's policy holds to the same
		}
		text := strings.ReplaceAll(file.content, "http://www.w3.org/2000/svg", "")
		for _, line := range strings.Split(text, "\n") {
			if !strings.HasPrefix(strings.TrimSpace(line), "//") && outside.MatchString(line) {
				t.Errorf("%s reaches elsewhere: %s", path, line)
			}
		}
		if m := markup.FindString(text); m != "" {
			t.Errorf("%s makes markup: %s", path, m)
		}
		if path == "/" {
			if m := inline.FindString(text); m != "" {
				t.Errorf("the policy of the page forbids %s", m)
			}
		}
		for _, m := range regexp.MustCompile(`(?:src=|href=|from )"(/[a-z./]+)"`).FindAllStringSubmatch(text, -1) {
			if w := ask(newAdmin(nil), "GET "+m[1], ""); w.Code == 404 {
				t.Errorf("%s names %s, which is not there", path, m[1])
			}
		}
	}
}
