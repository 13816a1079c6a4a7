package shapeproxy

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/metrics"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What the five-minute guide has people write must load, and check must answer
// as the guide says.
func TestReadmeGuideLoads(t *testing.T) {
	text := readme(t)
	blocks := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(blocks) < 3 {
		t.Fatalf("%d blocks of TOML, want the file, the limit added to it, and TLS", len(blocks))
	}
	first, second := blocks[0][1], blocks[1][1]
	c, err := config.Parse("README.md", []byte(first), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(c.Explain()) {
		if strings.TrimSpace(line) == "" {
			break // the guide shows the limit only
		}
		if !strings.Contains(text, line) {
			t.Errorf("the guide does not show what check says: %q", line)
		}
	}
	// The route of the second block replaces that of the first.
	before, _, _ := strings.Cut(first, "[[route]]")
	if _, err := config.Parse("README.md", []byte(before+second), os.LookupEnv); err != nil {
		t.Error(err)
	}
	// The third replaces [server]; bench/tls runs it.
	_, after, _ := strings.Cut(before, "[upstream")
	home := func(string) (string, bool) { return "/home/somebody", true }
	if _, err := config.Parse("README.md", []byte(blocks[2][1]+"\n[upstream"+after+second), home); err != nil {
		t.Error(err)
	}
}

// The reference must have every field, metric, reason, algorithm and dialect.
func TestReadmeIsComplete(t *testing.T) {
	text := readme(t)
	wanted := map[string][]string{}

	example, err := os.ReadFile("config.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:# )?([a-z0-9_]+) = `).FindAllStringSubmatch(string(example), -1) {
		wanted["field"] = append(wanted["field"], m[1])
	}

	m := metrics.New(metrics.Options{
		Limits: func() []limiter.Status { return []limiter.Status{{Name: "l", Queue: 1}} },
		Upstreams: func() []proxy.UpstreamStatus {
			return []proxy.UpstreamStatus{{
				Name: "u", Guarded: true, Addresses: []proxy.AddressStatus{{Address: "a:80"}}, Refused: []proxy.Refusals{{Reason: "r"}},
			}}
		},
		Expiries: func() map[string]time.Time { return map[string]time.Time{"api.example.com": {}} },
		Connections: func() metrics.Connections {
			return metrics.Connections{Refused: map[string]uint64{"r": 1}, Cut: map[string]uint64{"r": 1}}
		},
	})
	m.Configure([]string{"/"}, []limiter.Status{{Name: "l", Queue: 1}}, []string{"u"})
	m.Reloaded(true)
	m.Done(&proxy.Event{Route: "/", Status: 200})
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (shapeproxy_\w+)`).FindAllStringSubmatch(w.Body.String(), -1) {
		wanted["metric"] = append(wanted["metric"], m[1])
	}

	for _, r := range []limiter.Reason{
		limiter.ReasonLimit, limiter.ReasonQueueFull, limiter.ReasonMaxWait,
		limiter.ReasonMissingKey, limiter.ReasonPaused, limiter.ReasonShutdown, limiter.ReasonClientGone, proxy.ReasonUnhealthy, proxy.ReasonBreakerOpen,
	} {
		wanted["reason"] = append(wanted["reason"], string(r))
	}
	for _, a := range append([]limiter.Algorithm{limiter.Concurrency}, limiter.Algorithms...) {
		wanted["algorithm"] = append(wanted["algorithm"], string(a))
	}
	for _, d := range []proxy.Dialect{
		proxy.DialectIETF, proxy.DialectIETF03, proxy.DialectX, proxy.DialectGitHub, proxy.DialectShopify,
	} {
		wanted["word of ratelimit_headers"] = append(wanted["word of ratelimit_headers"], string(d))
	}

	for kind, least := range map[string]int{"field": 35, "metric": 15, "reason": 6, "algorithm": 5, "word of ratelimit_headers": 5} {
		if n := len(wanted[kind]); n < least {
			t.Errorf("found %d of kind %s, want at least %d: %v", n, kind, least, wanted[kind])
		}
		for _, word := range wanted[kind] {
			if !strings.Contains(text, "`"+word+"`") {
				t.Errorf("the README lacks the %s `%s`", kind, word)
			}
		}
	}
}
