package quota

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func head(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ":")
		h.Add(name, strings.TrimSpace(value))
	}
	return h
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		lines   []string
		want    time.Duration
		ok      bool
		ignored int
	}{
		{[]string{"Retry-After: 120"}, 2 * time.Minute, true, 0},
		{[]string{"Retry-After: 0"}, 0, true, 0},
		{[]string{"Retry-After: 1.5"}, 1500 * time.Millisecond, true, 0},
		{[]string{"Retry-After: 0.0001"}, 100 * time.Microsecond, true, 0},
		{[]string{"Retry-After: Wed, 01 Jul 2026 12:00:30 GMT"}, 30 * time.Second, true, 0},
		{[]string{"Retry-After: Wednesday, 01-Jul-26 12:00:30 GMT"}, 30 * time.Second, true, 0},
		{[]string{"Retry-After: Wed Jul  1 12:00:30 2026"}, 30 * time.Second, true, 0},
		// By the server's clock, which is an hour late.
		{[]string{"Date: Wed, 01 Jul 2026 11:00:00 GMT", "Retry-After: Wed, 01 Jul 2026 11:00:30 GMT"}, 30 * time.Second, true, 0},
		{[]string{"Retry-After: Wed, 01 Jul 2026 11:00:00 GMT"}, 0, true, 0},
		{[]string{"Retry-After-Ms: 250", "Retry-After: 1"}, 250 * time.Millisecond, true, 0},
		{[]string{"retry-after-ms: 20.5"}, 20500 * time.Microsecond, true, 0},
		{[]string{"Retry-After-Ms: soon", "Retry-After: 1"}, time.Second, true, 1},
		{[]string{"Retry-After: 5", "Retry-After: 5"}, 5 * time.Second, true, 0},
		{[]string{"Retry-After: 5", "Retry-After: 6"}, 0, false, 1},
		{[]string{"Retry-After: 99999999999999999999"}, longest, true, 0},
		{[]string{"Retry-After: " + strings.Repeat("9", 200)}, longest, true, 0},
		{[]string{"Retry-After: -1"}, 0, false, 1},
		{[]string{"Retry-After: +1"}, 0, false, 1},
		{[]string{"Retry-After: 1e9"}, 0, false, 1},
		{[]string{"Retry-After: 1."}, 0, false, 1},
		{[]string{"Retry-After: .5"}, 0, false, 1},
		{[]string{"Retry-After: NaN"}, 0, false, 1},
		{[]string{"Retry-After: Inf"}, 0, false, 1},
		{[]string{"Retry-After: 0x10"}, 0, false, 1},
		{[]string{"Retry-After: 1s"}, 0, false, 1},
		{[]string{"Retry-After: " + strings.Repeat("9", 300)}, 0, false, 1},
		{[]string{"Retry-After:"}, 0, false, 0},
		{nil, 0, false, 0},
	} {
		r := Read(429, head(c.lines...), noon, true)
		if r.Pause != c.want || r.Paused != c.ok || r.Ignored != c.ignored || !r.Throttled || r.Known {
			t.Errorf("%q: %+v", c.lines, r)
		}
	}
}

func TestThrottled(t *testing.T) {
	for _, c := range []struct {
		status int
		lines  []string
		trust  bool
		want   bool
	}{
		{429, nil, false, true},
		{503, nil, true, false},
		{503, []string{"Retry-After: 1"}, false, true},
		{503, []string{"Retry-After: whenever"}, true, false},
		{200, []string{"Retry-After: 1"}, true, false},
		{500, []string{"Retry-After: 1"}, true, false},
		{301, []string{"Retry-After: 1"}, true, false},
		// GitHub's primary and secondary limits.
		{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60"}, true, true},
		{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60"}, false, false},
		{403, []string{"X-RateLimit-Remaining: 7", "X-RateLimit-Reset: 60"}, true, false},
		{403, []string{"Retry-After: 60"}, true, true},
		{403, nil, true, false},
	} {
		if r := Read(c.status, head(c.lines...), noon, c.trust); r.Throttled != c.want {
			t.Errorf("%d %q: %+v", c.status, c.lines, r)
		}
	}
}

func TestRateLimits(t *testing.T) {
	unix := fmt.Sprint(noon.Unix() + 60)
	for _, c := range []struct {
		what  string
		lines []string
		want  Left // zero: nothing is known
	}{
		{"draft 11", []string{`RateLimit: "default";r=50;t=30`, `RateLimit-Policy: "default";q=100;w=60`}, Left{50, 30 * time.Second}},
		{"several policies", []string{`RateLimit: "permin";r=50;t=30,"perhr";r=10;t=1800`}, Left{10, 30 * time.Minute}},
		{"a member of somebody on the way", []string{`RateLimit: "per-hour";r=999;t=3600`, `RateLimit: "proxy, ours; r=0";r=5;t=1;pk=:Zm9v:`}, Left{999, time.Hour}},
		{"nothing left beats a slow one", []string{`RateLimit: "a";r=0;t=2, "b";r=1;t=3600`}, Left{0, 2 * time.Second}},
		{"of two with nothing left the longer", []string{`RateLimit: "a";r=0;t=2, "b";r=0;t=9`}, Left{0, 9 * time.Second}},
		{"names without quotes", []string{`RateLimit: default;r=50;t=30`}, Left{50, 30 * time.Second}},
		{"t left out", []string{`RateLimit: "default";r=50`}, Left{}},
		{"draft 7", []string{`RateLimit: limit=100, remaining=50, reset=5`}, Left{50, 5 * time.Second}},
		{"draft 7 as some write it", []string{`RateLimit: limit=100;remaining=50;reset=5`}, Left{50, 5 * time.Second}},
		{"draft 3", []string{"RateLimit-Limit: 100, 100;w=60", "RateLimit-Remaining: 9", "RateLimit-Reset: 6"}, Left{9, 6 * time.Second}},
		{"GitLab", []string{"RateLimit-Limit: 60", "RateLimit-Name: throttle_authenticated_web", "RateLimit-Observed: 67",
			"RateLimit-Remaining: 0", "RateLimit-Reset: " + unix, "Retry-After: 60"}, Left{0, time.Minute}},
		{"GitHub", []string{"x-ratelimit-limit: 5000", "x-ratelimit-remaining: 4999", "x-ratelimit-reset: " + unix, "x-ratelimit-used: 1", "x-ratelimit-resource: core"}, Left{4999, time.Minute}},
		{"by the server's clock", []string{"Date: Wed, 01 Jul 2026 12:00:50 GMT", "X-RateLimit-Remaining: 5", "X-RateLimit-Reset: " + unix}, Left{5, 10 * time.Second}},
		{"delta", []string{"X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 5", "X-RateLimit-Reset: 60"}, Left{5, time.Minute}},
		{"Unix milliseconds", []string{"X-RateLimit-Remaining: 5", "X-RateLimit-Reset: " + unix + "500"}, Left{5, 60500 * time.Millisecond}},
		{"Unix seconds with a fraction", []string{"X-RateLimit-Remaining: 5", "X-RateLimit-Reset: " + unix + ".25"}, Left{5, 60250 * time.Millisecond}},
		{"Discord", []string{"X-RateLimit-Limit: 5", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: " + unix + ".123", "X-RateLimit-Reset-After: 1.5", "X-RateLimit-Bucket: abcd1234"}, Left{0, 1500 * time.Millisecond}},
		{"Twitter, Okta", []string{"x-rate-limit-limit: 900", "x-rate-limit-remaining: 899", "x-rate-limit-reset: " + unix}, Left{899, time.Minute}},
		{"RFC 3339", []string{"X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 2026-07-01T12:01:00Z"}, Left{4, time.Minute}},
		{"RFC 3339 with a zone", []string{"X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 2026-07-01T14:01:00.5+02:00"}, Left{4, 60500 * time.Millisecond}},
		{"an HTTP date", []string{"X-RateLimit-Remaining: 4", "X-RateLimit-Reset: Wed, 01 Jul 2026 12:01:00 GMT"}, Left{4, time.Minute}},
		{"JavaScript's date", []string{"X-RateLimit-Remaining: 7", "X-RateLimit-Reset: Wed Jul 01 2026 14:01:00 GMT+0200 (Central European Summer Time)"}, Left{7, time.Minute}},
		{"OpenAI", []string{"x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 59", "x-ratelimit-reset-requests: 1m30s",
			"x-ratelimit-limit-tokens: 150000", "x-ratelimit-remaining-tokens: 149984", "x-ratelimit-reset-tokens: 6m0s"}, Left{59, 90 * time.Second}},
		{"OpenAI without tokens", []string{"x-ratelimit-remaining-requests: 59", "x-ratelimit-reset-requests: 1s",
			"x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 12ms"}, Left{0, 12 * time.Millisecond}},
		{"Groq", []string{"x-ratelimit-remaining-requests: 14370", "x-ratelimit-reset-requests: 2m59.56s"}, Left{14370, 179560 * time.Millisecond}},
		{"days", []string{"x-ratelimit-remaining-requests: 3", "x-ratelimit-reset-requests: 1d2h"}, Left{3, 26 * time.Hour}},
		{"Anthropic", []string{"anthropic-ratelimit-requests-limit: 50", "anthropic-ratelimit-requests-remaining: 49", "anthropic-ratelimit-requests-reset: 2026-07-01T12:00:30Z",
			"anthropic-ratelimit-input-tokens-limit: 30000", "anthropic-ratelimit-input-tokens-remaining: 29000", "anthropic-ratelimit-input-tokens-reset: 2026-07-01T12:01:00Z"}, Left{49, 30 * time.Second}},
		{"Anthropic without output tokens", []string{"anthropic-ratelimit-requests-remaining: 49", "anthropic-ratelimit-requests-reset: 2026-07-01T12:00:30Z",
			"anthropic-ratelimit-output-tokens-remaining: 0", "anthropic-ratelimit-output-tokens-reset: 2026-07-01T12:00:05Z"}, Left{0, 5 * time.Second}},
		{"Shopify, full", []string{"X-Shopify-Shop-Api-Call-Limit: 40/40"}, Left{40, 20 * time.Second}},
		{"Shopify, half", []string{"X-Shopify-Shop-Api-Call-Limit: 20/40"}, Left{40, 10 * time.Second}},
		{"Shopify, empty", []string{"X-Shopify-Shop-Api-Call-Limit: 0/40"}, Left{}},
		{"two forms of one", []string{`RateLimit: "q";r=7;t=3`, "RateLimit-Limit: 10", "RateLimit-Remaining: 7", "RateLimit-Reset: 3"}, Left{7, 3 * time.Second}},
		{"only what remains", []string{"X-RateLimit-Remaining: 7"}, Left{}},
		{"only the reset", []string{"X-RateLimit-Reset: 7"}, Left{}},
		{"reset at once", []string{"X-RateLimit-Remaining: 7", "X-RateLimit-Reset: 0"}, Left{}},
		{"just past", []string{"X-RateLimit-Remaining: 0", fmt.Sprint("X-RateLimit-Reset: ", noon.Unix()-3)}, Left{}},
	} {
		r := Read(200, head(c.lines...), noon, true)
		if r.Known != (c.want != Left{}) || r.Left != c.want || r.Ignored != 0 || r.Throttled {
			t.Errorf("%s: %+v", c.what, r)
		}
		if r := Read(200, head(c.lines...), noon, false); r.Known || r.Ignored != 0 {
			t.Errorf("%s, not trusted: %+v", c.what, r)
		}
	}
}

// What is malformed or contradicts itself is counted, and does not spoil what
// stands beside it.
func TestIgnored(t *testing.T) {
	good := Left{3, time.Minute}
	for _, lines := range [][]string{
		{"X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 11", "X-RateLimit-Reset: 60"},
		{"X-RateLimit-Remaining: -1", "X-RateLimit-Reset: 60"},
		{"X-RateLimit-Remaining: many", "X-RateLimit-Reset: 60"},
		{"X-RateLimit-Remaining: 99999999999999999999", "X-RateLimit-Reset: 60"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: -60"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: tomorrow"},
		{"X-RateLimit-Remaining: 1", fmt.Sprint("X-RateLimit-Reset: ", noon.Unix()-3600)},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 9999-01-01T00:00:00Z"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 2", "X-RateLimit-Reset: 60"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: -1m"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 1dd"},
		{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 1d-5h"},
		{"RateLimit: nonsense"},
		{`RateLimit: "a";r=x;t=5`},
		{`RateLimit: "a";r=1;t=x`},
		{`RateLimit: limit=1, remaining=2, reset=3`},
		{"RateLimit: " + strings.Repeat(`"a";r=1;t=1,`, 500)},
		{"X-Shopify-Shop-Api-Call-Limit: 41/40"},
		{"X-Shopify-Shop-Api-Call-Limit: 40"},
		{"X-Shopify-Shop-Api-Call-Limit: 0/0"},
	} {
		lines = append(lines, "Anthropic-RateLimit-Requests-Remaining: 3", "Anthropic-RateLimit-Requests-Reset: 60")
		if r := Read(200, head(lines...), noon, true); r.Ignored != 1 || r.Left != good {
			t.Errorf("%q: %+v", lines, r)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(429, "Retry-After", "120", "Date", "Wed, 01 Jul 2026 12:00:30 GMT")
	f.Add(503, "Retry-After", "Wed, 01 Jul 2026 12:00:30 GMT", "Retry-After-Ms", "1.5")
	f.Add(200, "Ratelimit", `"a\";r=0";r=50;t=30, "b";r=1;t=1`, "Ratelimit", "limit=1, remaining=1, reset=1")
	f.Add(200, "X-Ratelimit-Remaining", "5", "X-Ratelimit-Reset", "1782907260500")
	f.Add(200, "X-Ratelimit-Remaining-Requests", "5", "X-Ratelimit-Reset-Requests", "1d1m30.5s")
	f.Add(403, "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "Wed Jul 01 2026 14:01:00 GMT+0200 (CEST)")
	f.Add(200, "X-Shopify-Shop-Api-Call-Limit", "39/40", "", "")
	f.Fuzz(func(t *testing.T, status int, a, b, c, d string) {
		h := http.Header{}
		h.Add(a, b)
		h.Add(c, d)
		r := Read(status, h, noon, true)
		switch {
		case r.Pause < 0 || r.Pause > longest || !r.Paused && r.Pause != 0:
			t.Errorf("a pause of %v", r.Pause)
		case r.Known && (r.Left.Requests < 0 || r.Left.Reset <= 0 || r.Left.Reset > longest):
			t.Errorf("%+v", r.Left)
		case r.Ignored < 0 || r.Ignored > math.MaxInt16:
			t.Errorf("%d are ignored", r.Ignored)
		}
		if bare := Read(status, h, noon, false); bare.Known || bare.Paused != r.Paused || bare.Pause != r.Pause {
			t.Errorf("without trust: %+v, with: %+v", bare, r)
		}
	})
}
