package proxy

import (
	"net/http"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// member finds the item of a list field that names a limit.
func member(t *testing.T, lines []string, name string) *httpsfv.Params {
	t.Helper()
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		t.Fatalf("%q is not a list: %v", lines, err)
	}
	for _, m := range list {
		if item, ok := m.(httpsfv.Item); ok && item.Value == name {
			return item.Params
		}
	}
	t.Fatalf("%q does not name %q", lines, name)
	return nil
}

func parameter(t *testing.T, p *httpsfv.Params, name string) int64 {
	t.Helper()
	v, ok := p.Get(name)
	n, isInt := v.(int64)
	if !ok || !isInt {
		t.Fatalf("parameter %s is %v", name, v)
	}
	return n
}

var everyDialect = []Dialect{DialectIETF, DialectIETF03, DialectX, DialectShopify}

// A permit of three limits, the second of them nearest to exhaustion.
func threeLimits() limiter.Permit {
	at := time.Unix(1_000_000, 0)
	all := []limiter.Decision{
		{Policy: "loose", Allowed: true, Limit: 1000, Remaining: 999, Window: time.Hour, ResetAfter: 59*time.Minute + time.Nanosecond, At: at},
		{Policy: "tight.1-a_b", Allowed: true, Limit: 5, Remaining: 1, Window: 300 * time.Millisecond, ResetAfter: 20 * time.Millisecond, At: at},
		{Policy: "watched", Allowed: true, Limit: 9, Remaining: 0, DryRun: true, At: at},
	}
	return limiter.Permit{Decision: all[1], All: all}
}

func TestRateLimitFields(t *testing.T) {
	h := http.Header{}
	WriteRateLimit(h, everyDialect, threeLimits())
	for _, c := range []struct {
		name       string
		q, w, r, t int64
	}{{"loose", 1000, 3600, 999, 3541}, {"tight.1-a_b", 5, 1, 1, 1}} {
		policy, state := member(t, h["Ratelimit-Policy"], c.name), member(t, h["Ratelimit"], c.name)
		if q, w := parameter(t, policy, "q"), parameter(t, policy, "w"); q != c.q || w != c.w {
			t.Errorf("%s: q=%d w=%d, want %d and %d", c.name, q, w, c.q, c.w)
		}
		if r, reset := parameter(t, state, "r"), parameter(t, state, "t"); r != c.r || reset != c.t {
			t.Errorf("%s: r=%d t=%d, want %d and %d", c.name, r, reset, c.r, c.t)
		}
	}
	if list, _ := httpsfv.UnmarshalList(h["Ratelimit"]); len(list) != 2 {
		t.Errorf("a limit in dry run is told: %q", h["Ratelimit"])
	}
	for name, want := range map[string]string{
		"RateLimit-Limit": "5", "RateLimit-Remaining": "1", "RateLimit-Reset": "1",
		"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1",
		"X-Shopify-Shop-Api-Call-Limit": "4/5",
	} {
		if got := h[http.CanonicalHeaderKey(name)]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	h = http.Header{}
	WriteRateLimit(h, []Dialect{DialectGitHub}, threeLimits())
	if got := h.Get("X-RateLimit-Reset"); got != "1000001" || len(h) != 3 {
		t.Errorf("github: reset %q in %v", got, h)
	}
}

func TestNoFieldsWithoutAQuota(t *testing.T) {
	missing := limiter.Decision{Policy: "p", Reason: limiter.ReasonMissingKey, Status: 400, RetryAfter: limiter.Never}
	for name, p := range map[string]limiter.Permit{
		"no limit was asked": {Decision: limiter.Decision{Allowed: true}},
		"the key is missing": {Decision: missing, All: []limiter.Decision{missing}},
	} {
		h := http.Header{}
		WriteRateLimit(h, append(everyDialect, DialectGitHub), p)
		if len(h) != 0 {
			t.Errorf("%s: %v", name, h)
		}
	}
}

// TestCase32Reset: on a refusal no reset is longer than Retry-After, and none
// is below one (apache/apisix #9964).
func TestCase32Reset(t *testing.T) {
	for _, c := range []struct {
		reset, retry time.Duration
		want         int64
	}{
		{7200 * time.Millisecond, 4200 * time.Millisecond, 5}, {0, 20 * time.Millisecond, 1}, {0, 0, 1},
		{time.Second, time.Minute, 1}, {1001 * time.Millisecond, time.Minute, 2}, {time.Minute, limiter.Never, 60},
	} {
		d := limiter.Decision{Policy: "p", Reason: limiter.ReasonLimit, Limit: 2, Window: time.Minute, ResetAfter: c.reset, RetryAfter: c.retry}
		other := limiter.Decision{Policy: "other", Allowed: true, Peeked: true, Limit: 9, Remaining: 9, ResetAfter: time.Hour}
		h := http.Header{}
		WriteRateLimit(h, everyDialect, limiter.Permit{Decision: d, All: []limiter.Decision{d, other}})
		if got := parameter(t, member(t, h["Ratelimit"], "p"), "t"); got != c.want {
			t.Errorf("reset %v, retry %v: t=%d, want %d", c.reset, c.retry, got, c.want)
		}
		if got := parameter(t, member(t, h["Ratelimit"], "other"), "t"); got > Seconds(c.retry) {
			t.Errorf("retry %v: another limit's t=%d", c.retry, got)
		}
	}
}

// TestS41UpstreamsOwnFields: lists are added to, and of single values the one
// that allows less stays.
func TestS41UpstreamsOwnFields(t *testing.T) {
	type pairs map[string]string
	for _, c := range []struct {
		name    string
		dialect Dialect
		theirs  pairs
		want    pairs
	}{
		{"theirs is less", DialectIETF03, pairs{"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"}, pairs{"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"}},
		{"ours is less", DialectIETF03, pairs{"RateLimit-Limit": "9", "RateLimit-Remaining": "7", "RateLimit-Reset": "30"}, pairs{"RateLimit-Limit": "5", "RateLimit-Remaining": "1", "RateLimit-Reset": "1"}},
		{"as much, for longer", DialectX, pairs{"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}, pairs{"X-RateLimit-Limit": "", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}},
		{"in words", DialectX, pairs{"X-RateLimit-Remaining": "few"}, pairs{"X-RateLimit-Remaining": "few"}},
		{"shopify, theirs is less", DialectShopify, pairs{"X-Shopify-Shop-Api-Call-Limit": "40/40"}, pairs{"X-Shopify-Shop-Api-Call-Limit": "40/40"}},
		{"shopify, ours is less", DialectShopify, pairs{"X-Shopify-Shop-Api-Call-Limit": "1/40"}, pairs{"X-Shopify-Shop-Api-Call-Limit": "4/5"}},
		{"shopify, broken", DialectShopify, pairs{"X-Shopify-Shop-Api-Call-Limit": "x"}, pairs{"X-Shopify-Shop-Api-Call-Limit": "x"}},
	} {
		h := http.Header{}
		for name, v := range c.theirs {
			h.Set(name, v)
		}
		WriteRateLimit(h, []Dialect{c.dialect}, threeLimits())
		for name, want := range c.want {
			if got := h.Get(name); got != want {
				t.Errorf("%s: %s: %q, want %q", c.name, name, got, want)
			}
		}
	}
	h := http.Header{"Ratelimit": {`"up";r=0;t=30`}, "Ratelimit-Policy": {`"up";q=9;w=60`}}
	WriteRateLimit(h, everyDialect, threeLimits())
	if r := parameter(t, member(t, h["Ratelimit"], "up"), "r"); r != 0 {
		t.Errorf("the upstream's r became %d", r)
	}
	if r := parameter(t, member(t, h["Ratelimit"], "loose"), "r"); r != 999 {
		t.Errorf("ours is r=%d", r)
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		-time.Second: 1, 0: 1, 1: 1, time.Second: 1, time.Second + 1: 2, 90 * time.Second: 90, limiter.Never: 9223372037,
	} {
		if got := Seconds(d); got != want {
			t.Errorf("%v: %d s, want %d", d, got, want)
		}
	}
}
