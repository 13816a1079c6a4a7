package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Health says when an address of an upstream is left out.
type Health struct {
	MaxFails    int // connections in a row that cannot be made; 0: requests never take an address out
	FailTimeout time.Duration

	Path     string // asked for by health checks; empty: none
	Interval time.Duration
	Timeout  time.Duration
	Fails    int // checks in a row that take an address out
	Passes   int // and that bring it back
}

// A Breaker is the breaker table of an upstream.
type Breaker struct {
	FailureRatio float64 // above 0, at most 1
	Window       time.Duration
	MinRequests  int
	OpenFor      time.Duration
	Probes       int
	Statuses     []int  // of answers that count as failures
	WhenOpen     string // refuse, wait
}

func defaultHealth() Health {
	return Health{MaxFails: 3, FailTimeout: 10 * time.Second, Interval: 5 * time.Second, Timeout: 2 * time.Second, Fails: 3, Passes: 2}
}

func defaultBreaker() *Breaker {
	return &Breaker{
		FailureRatio: 0.5, Window: 10 * time.Second, MinRequests: 20, OpenFor: 10 * time.Second, Probes: 3,
		Statuses: []int{500, 502, 503, 504}, WhenOpen: "refuse",
	}
}

func (d *decoder) health(t *table, u *Upstream) {
	h := &u.Health
	t.int("max_fails", &h.MaxFails, 0, 1<<20)
	t.duration("fail_timeout", &h.FailTimeout)
	set := t.has("health")
	ht := t.sub("health", "health of an upstream")
	if ht.values != nil {
		ht.require("path", `"/healthz"`)
	}
	ht.text("path", `a path such as "/healthz"`, func(s string) error {
		h.Path = s
		if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }) {
			return fmt.Errorf("%q is not a path; write one such as \"/healthz\", percent-encoded", s)
		}
		return nil
	})
	ht.duration("interval", &h.Interval)
	ht.duration("timeout", &h.Timeout)
	ht.int("fails", &h.Fails, 1, 1<<20)
	ht.int("passes", &h.Passes, 1, 1<<20)
	ht.finish()
	if set && h.Interval < minHealthInterval {
		t.d.problem(ht.at("interval"), "must be at least 100ms, as checks come on top of what limits let through")
	}
}

const minHealthInterval = 100 * time.Millisecond

func (d *decoder) breaker(t *table, u *Upstream) {
	set := t.has("breaker")
	bt := t.sub("breaker", "breaker of an upstream")
	b := defaultBreaker()
	bt.ratio("failure_ratio", &b.FailureRatio)
	bt.duration("window", &b.Window)
	bt.int("min_requests", &b.MinRequests, 1, 1<<30)
	bt.duration("open_for", &b.OpenFor)
	bt.int("probes", &b.Probes, 1, 1<<20)
	bt.statuses("statuses", &b.Statuses)
	bt.word("when_open", &b.WhenOpen, "refuse", "wait")
	bt.finish()
	if set {
		u.Breaker = b
	}
}

// warnCannotWait warns of routes whose requests have no queue to wait in while
// the breaker of their upstream is open.
func (d *decoder) warnCannotWait(c *Config, upstreams []*table) {
	for i, u := range c.Upstreams {
		if u.Breaker == nil || u.Breaker.WhenOpen != "wait" {
			continue
		}
		for _, r := range c.Routes {
			if r.Upstream == u.Name && !c.Holds(r) {
				d.warn(upstreams[i].at("breaker", "when_open"), "the route %s has no limit with a queue, so its requests are refused instead; name one in its limits", r.Match)
			}
		}
	}
}

// Holds reports whether requests of r can wait: one of its limits has a queue
// and is not in dry run.
func (c *Config) Holds(r Route) bool {
	return slices.ContainsFunc(c.Limits, func(l Limit) bool {
		return slices.Contains(r.Limits, l.Name) && l.Queue > 0 && !l.DryRun
	})
}

// ratio reads a share of the whole: a number above 0, at most 1.
func (t *table) ratio(key string, dst *float64) {
	t.describe(key, &node{Type: "number"})
	v, ok := t.take(key)
	if !ok {
		return
	}
	var f float64
	switch v := v.(type) {
	case float64:
		f = v
	case int64:
		f = float64(v)
	default:
		t.bad(key, "must be a number such as 0.5, not %s", kindOf(v))
		return
	}
	if !(f > 0 && f <= 1) {
		t.bad(key, "must be above 0 and at most 1; write 0.5 for one half")
		return
	}
	*dst = f
}

// statuses reads a list of statuses of failed answers.
func (t *table) statuses(key string, dst *[]int) {
	t.describe(key, &node{Type: "array", Items: wholeNumber(500, 599)})
	v, ok := t.take(key)
	if !ok {
		return
	}
	values, isList := v.([]any)
	if !isList {
		t.bad(key, "must be a list of statuses such as [500, 503], not %s", kindOf(v))
		return
	}
	list := make([]int, 0, len(values))
	for i, v := range values {
		n, isInt := v.(int64)
		if !isInt || n < 500 || n > 599 {
			t.d.problem(t.at(key, element(i)), "must hold statuses from 500 to 599; what a client does wrong is no failure of the upstream")
			return
		}
		list = append(list, int(n))
	}
	*dst = list
}
