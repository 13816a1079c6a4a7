package metrics

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

var update = flag.Bool("update", false, "write the golden file anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	fragile = limiter.Status{
		Name: "fragile", Algorithm: limiter.LeakyBucket, Rate: limiter.Rate{Count: 10, Per: time.Second}, Burst: 1,
		Queue: 100, MaxWait: 30 * time.Second, Key: "global",
		Depth: 12, FleetDepth: 31, OldestWait: 1200 * time.Millisecond, Keys: 1, Store: "redis",
	}
	perClient = limiter.Status{
		Name: "per-client", Algorithm: limiter.FixedWindow, Limit: 100, Window: time.Minute, Key: "header:X-Tenant", StoreDown: "closed",
		Keys: 42, Evicted: 7,
	}
)

// standing is what a test's Limits and Upstreams answer.
type standing struct {
	limits    []limiter.Status
	upstreams []proxy.UpstreamStatus
}

func newMetrics(s *standing) *Metrics {
	m := New(Options{
		Version: "1.2.3", Revision: "abc1234",
		Limits:    func() []limiter.Status { return s.limits },
		Upstreams: func() []proxy.UpstreamStatus { return s.upstreams },
		Store:     func() (up bool, proxies int) { return true, 3 },
		Expiries:  func() map[string]time.Time { return map[string]time.Time{"api.example.com": time.Unix(2000000000, 5)} },
		Connections: func() Connections {
			return Connections{Open: 3, Refused: map[string]uint64{"max_connections": 2}, Cut: map[string]uint64{"send_timeout": 1}}
		},
		Log: slog.New(slog.DiscardHandler),
	})
	m.Configure([]string{"GET /v1/", "/"}, s.limits, []string{"billing"})
	return m
}

func usual() *standing {
	return &standing{
		limits: []limiter.Status{fragile, perClient},
		upstreams: []proxy.UpstreamStatus{{
			Name: "billing", InFlight: 3, Guarded: true, Breaker: proxy.BreakerHalfOpen,
			Addresses: []proxy.AddressStatus{{Address: "10.0.0.1:80", Healthy: true, InFlight: 3}, {Address: "unix:/run/app.sock"}},
			Refused:   []proxy.Refusals{{Reason: proxy.ReasonUnhealthy, Count: 0}, {Reason: proxy.ReasonBreakerOpen, Count: 2}},
		}},
	}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// ours leaves out what the collectors for Go and the process add, and what
// depends on the toolchain.
func ours(exposition string) string {
	var b strings.Builder
	for line := range strings.Lines(exposition) {
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "shapeproxy_") {
			b.WriteString(line)
		}
	}
	return regexp.MustCompile(`goversion="[^"]*"`).ReplaceAllString(b.String(), `goversion="GO"`)
}

// A little of everything, at an instant that the golden file can name.
func TestExposition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(usual())
		m.Reloaded(true)
		m.StoreAnswered(2 * time.Millisecond)
		m.Decided("GET /v1/", []limiter.Decision{
			{Policy: "fragile", Allowed: true, Queued: true, Waited: 300 * time.Millisecond},
			{Policy: "per-client", Allowed: true},
		})
		m.Decided("GET /v1/", []limiter.Decision{{Policy: "fragile", Allowed: true}, {Policy: "per-client", Peeked: true, Allowed: true}})
		m.Decided("GET /v1/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonQueueFull}})
		m.Decided("GET /v1/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonClientGone, Queued: true, Waited: time.Second}})
		m.Decided("/", []limiter.Decision{{Policy: "per-client", Reason: limiter.ReasonLimit, DryRun: true}})
		m.Done(&proxy.Event{
			Route: "GET /v1/", Upstream: "billing", Status: 200, Duration: 350 * time.Millisecond,
			UpstreamStatus: 200, UpstreamDuration: 40 * time.Millisecond,
			Retries: []proxy.Retry{{Reason: proxy.RetryThrottled, Status: 429, Duration: 5 * time.Millisecond}},
		})
		m.Done(&proxy.Event{Route: "GET /v1/", Status: 429, Duration: time.Millisecond})
		m.Done(&proxy.Event{Route: "GET /v1/", Status: proxy.StatusClientGone, Duration: time.Second})
		m.Done(&proxy.Event{
			Route: "/", Upstream: "billing", Status: 502, Duration: time.Millisecond,
			UpstreamStatus: proxy.UpstreamError, UpstreamDuration: time.Millisecond,
		})
		m.Done(&proxy.Event{
			Route: "/", Upstream: "billing", Status: proxy.StatusClientGone, Duration: 2 * time.Second,
			UpstreamStatus: proxy.UpstreamError, UpstreamDuration: 2 * time.Second,
		})
		m.Done(&proxy.Event{Status: 404})

		got := ours(scrape(t, m))
		if *update {
			if err := os.WriteFile("testdata/exposition.txt", []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile("testdata/exposition.txt")
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("the exposition differs from testdata/exposition.txt:\n%s", got)
		}
	})
}

func TestGoAndProcessCollectors(t *testing.T) {
	body := scrape(t, newMetrics(usual()))
	for _, name := range []string{"go_goroutines", "process_start_time_seconds"} {
		if !strings.Contains(body, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
}

func TestLint(t *testing.T) {
	problems, err := testutil.GatherAndLint(newMetrics(usual()).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A native histogram is seen only in the protobuf form, so it is looked at
// before it is written.
func TestQueueWaitIsNativeToo(t *testing.T) {
	m := newMetrics(usual())
	m.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: true, Waited: time.Second}})
	m.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true}})
	h := family(t, m, "shapeproxy_queue_wait_seconds").Metric[0].Histogram
	if h.GetSampleCount() != 2 || h.GetSampleSum() != 1 || h.GetZeroCount() != 1 {
		t.Errorf("count %d sum %v zero %d; want 2, 1 and 1", h.GetSampleCount(), h.GetSampleSum(), h.GetZeroCount())
	}
	if len(h.PositiveSpan) == 0 {
		t.Error("no native buckets")
	}
	if len(h.Bucket) != len(waitBuckets) {
		t.Errorf("%d classic buckets, want %d", len(h.Bucket), len(waitBuckets))
	}
}

func family(t *testing.T, m *Metrics, name string) *dto.MetricFamily {
	t.Helper()
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("no %s", name)
	return nil
}

// caddyserver/caddy #7208: a label of 25 kB from a Host header. Whatever the
// events and the decisions hold, there is no series but of what was
// configured.
func TestCase65NoLabelFromARequest(t *testing.T) {
	m := newMetrics(usual())
	codes := []int{200, 201, 204, 301, 400, 404, 429, 499, 500, 502, 503, 504}
	reasons := []limiter.Reason{limiter.ReasonQueueFull, limiter.ReasonMaxWait, limiter.ReasonShutdown}
	random := rand.New(rand.NewPCG(65, 65))
	request := func(i int) {
		text := fmt.Sprintf("%x", random.Uint64())
		e := &proxy.Event{
			Method: "FOO" + text, Host: strings.Repeat(text, 10) + "\n", Path: "/" + text, Proto: text,
			Route: "GET /v1/", Upstream: "billing", Status: codes[i%len(codes)], UpstreamStatus: codes[i%len(codes)],
			Error: text, DryRun: text, Policy: text, Duration: time.Duration(random.Int64N(int64(time.Minute))),
		}
		switch i % 3 {
		case 1:
			e.Route, e.Upstream = text, text // not that the proxy would
		case 2:
			e.Route, e.Upstream, e.UpstreamStatus = "", "", 0
		}
		m.Decided(e.Route, []limiter.Decision{
			{Policy: "fragile", Reason: reasons[i%len(reasons)]},
			{Policy: text, Allowed: true},
		})
		m.Done(e)
	}
	for i := range 3 * len(codes) * len(reasons) {
		request(i)
	}
	before := ours(scrape(t, m))
	for i := range 100_000 {
		request(i)
	}
	after := ours(scrape(t, m))
	if b, a := strings.Count(before, "\n"), strings.Count(after, "\n"); b != a {
		t.Errorf("%d lines before, %d after 100000 requests", b, a)
	}
	if strings.Contains(after, "FOO") {
		t.Error("a method became a label")
	}
}

func TestStatusesThatAreNone(t *testing.T) {
	m := newMetrics(usual())
	for _, code := range []int{0, -5, 99, 600, 999, 1 << 40} {
		m.Done(&proxy.Event{Route: "/", Status: code})
	}
	if got := testutil.ToFloat64(m.requests.WithLabelValues("/", "other")); got != 6 {
		t.Errorf("%v requests of code other, want 6", got)
	}
	if got := testutil.CollectAndCount(m.requests); got != 1 {
		t.Errorf("%d series, want 1", got)
	}
}

// A released request waits 0 s when it passed at once; one that was refused or
// left is in no histogram of waits.
func TestOnlyReleasedRequestsHaveWaited(t *testing.T) {
	m := newMetrics(usual())
	for _, d := range []limiter.Decision{
		{Policy: "fragile", Allowed: true},
		{Policy: "fragile", Allowed: true, Queued: true, Waited: 2 * time.Second, DryRun: true},
		{Policy: "fragile", Reason: limiter.ReasonMaxWait},
		{Policy: "fragile", Reason: limiter.ReasonClientGone, Waited: time.Second},
		{Policy: "fragile", Reason: limiter.ReasonShutdown, Waited: time.Second},
		{Policy: "fragile", Allowed: true, Peeked: true},
		{Policy: "per-client", Allowed: true},
	} {
		m.Decided("/", []limiter.Decision{d})
	}
	f := family(t, m, "shapeproxy_queue_wait_seconds")
	if len(f.Metric) != 1 {
		t.Fatalf("%d limits have waits, want only the queue", len(f.Metric))
	}
	if h := f.Metric[0].Histogram; h.GetSampleCount() != 2 || h.GetSampleSum() != 2 {
		t.Errorf("count %d sum %v, want 2 and 2", h.GetSampleCount(), h.GetSampleSum())
	}
}

func TestReload(t *testing.T) {
	s := usual()
	m := newMetrics(s)
	m.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: true, Waited: time.Second}})
	m.Done(&proxy.Event{Route: "/", Status: 200})

	// fragile goes, per-client becomes a queue, /new comes.
	queued := perClient
	queued.Algorithm, queued.Queue = limiter.TokenBucket, 5
	s.limits = []limiter.Status{queued}
	m.Configure([]string{"/new"}, s.limits, []string{"other"})

	// A request of the configuration before is still counted.
	m.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: true, Waited: time.Second}})
	m.Done(&proxy.Event{Route: "/", Status: 200})

	body := scrape(t, m)
	for _, want := range []string{
		`shapeproxy_limit_decisions_total{decision="queued",limit="fragile",reason=""} 2`,
		`shapeproxy_requests_total{code="200",route="/"} 2`,
		`shapeproxy_queue_capacity{limit="per-client"} 5`,
		`shapeproxy_request_duration_seconds_count{route="/new"} 0`,
		`shapeproxy_upstream_responses_total{code="error",upstream="other"} 0`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("missing: %s", want)
		}
	}
	for _, gone := range []string{`shapeproxy_queue_depth{limit="fragile"}`, `shapeproxy_limit_keys{limit="fragile"}`} {
		if strings.Contains(body, gone) {
			t.Errorf("still there: %s", gone)
		}
	}
}

// A limit that was a queue and is none any more: what waited in its old line
// is counted when it leaves.
func TestOutcomesThatTheNewConfigurationDoesNotHave(t *testing.T) {
	s := usual()
	m := newMetrics(s)
	m.Decided("/", []limiter.Decision{{Policy: "per-client", Allowed: true, Queued: true}})
	m.Decided("/", []limiter.Decision{{Policy: "per-client", Reason: limiter.ReasonClientGone}})
	m.Decided("/", []limiter.Decision{{Policy: "per-client", Reason: limiter.ReasonShutdown}})
	for _, labels := range [][]string{
		{"per-client", "queued", ""}, {"per-client", "gone", "client_gone"}, {"per-client", "rejected", "shutdown"},
	} {
		if got := testutil.ToFloat64(m.decisions.WithLabelValues(labels...)); got != 1 {
			t.Errorf("%v: %v, want 1", labels, got)
		}
	}
}

func TestReloadGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(usual())
		m.Reloaded(true)
		loaded := float64(time.Now().Unix())
		time.Sleep(time.Hour)
		m.Reloaded(false)
		if got := testutil.ToFloat64(m.reloadOK); got != 0 {
			t.Errorf("successful: %v after a failure", got)
		}
		if got := testutil.ToFloat64(m.reloadTime); got != loaded {
			t.Errorf("last success at %v, want %v", got, loaded)
		}
		m.Reloaded(true)
		if got := testutil.ToFloat64(m.reloadOK); got != 1 {
			t.Errorf("successful: %v after a success", got)
		}
		if got := testutil.ToFloat64(m.reloadTime); got != loaded+3600 {
			t.Errorf("last success at %v, want an hour later", got)
		}
	})
}

// Requests, scrapes and reloads at once lose no count.
func TestCountsAddUp(t *testing.T) {
	s := usual()
	m := newMetrics(s)
	const workers, each = 8, 500
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				m.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: i%2 == 0}})
				m.Done(&proxy.Event{Route: "/", Upstream: "billing", Status: 200 + i%5, UpstreamStatus: 200})
				if i%100 == 0 {
					m.Configure([]string{"/"}, s.limits, []string{"billing"})
					w := httptest.NewRecorder()
					m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
					_, _ = io.Copy(io.Discard, w.Body)
				}
			}
		})
	}
	wg.Wait()
	sum := func(c prometheus.Collector) (n float64) {
		ch := make(chan prometheus.Metric, 1000)
		c.Collect(ch)
		close(ch)
		for metric := range ch {
			var d dto.Metric
			if err := metric.Write(&d); err != nil {
				t.Fatal(err)
			}
			n += d.Counter.GetValue()
		}
		return n
	}
	for name, c := range map[string]prometheus.Collector{
		"requests": m.requests, "decisions": m.decisions, "upstream responses": m.upstreamResponses,
	} {
		if got := sum(c); got != workers*each {
			t.Errorf("%s: %v counted, want %d", name, got, workers*each)
		}
	}
}

// The request's path through the observer makes no garbage once a status has
// been seen.
func TestObservingAllocatesNothing(t *testing.T) {
	m := newMetrics(usual())
	decisions := []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: true, Waited: time.Second}}
	e := &proxy.Event{Route: "/", Upstream: "billing", Status: 200, UpstreamStatus: 200}
	observe := func() {
		m.Decided("/", decisions)
		m.Done(e)
	}
	observe()
	if n := testing.AllocsPerRun(100, observe); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
}
