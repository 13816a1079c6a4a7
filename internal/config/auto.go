package config

import (
	"fmt"
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// auto is the word for a number that nobody knows, and that is searched for.
const auto = "auto"

// DefaultMostInFlight is how many requests a search for max_in_flight goes up to,
// where a limit does not say: more than one server works on at once, and few
// enough to be held by a proxy.
const DefaultMostInFlight = 1000

// rate reads the rate, or the bounds between which it is searched for: the upper
// one then stands as the rate.
func (t *table) rate(l *Limit) {
	one := func(field, form string, dst *limiter.Rate) {
		t.quantity(field, form, func(s string) error {
			r, err := limiter.ParseRate(s)
			if err == nil {
				*dst = r
			}
			return err
		})
	}
	if t.values["rate"] != any(auto) {
		one("rate", `a rate such as "10/s", or "auto"`, &l.Rate)
	} else {
		t.take("rate")
	}
	least, most := limiter.Rate{Count: 1, Per: time.Second}, l.Rate
	one("min_rate", `a rate such as "1/s"`, &least)
	one("max_rate", `a rate such as "100/s"`, &most)
	if t.values["rate"] == any(auto) {
		l.MinRate, l.Rate = least, most
	}
}

// places reads how many may be unfinished, or the bounds between which that is
// searched for: the upper one then stands for it.
func (t *table) places(l *Limit) {
	least := int64(0)
	if l.Algorithm == limiter.Concurrency {
		least = 1
	}
	t.describe("max_in_flight", &node{AnyOf: []*node{wholeNumber(least, math.MaxInt32), {Type: "string", Enum: []string{auto}}}})
	if t.values["max_in_flight"] != any(auto) {
		t.int("max_in_flight", &l.MaxInFlight, least, math.MaxInt32)
	} else {
		t.take("max_in_flight")
	}
	from, to := 1, DefaultMostInFlight
	t.int("min_in_flight", &from, 1, math.MaxInt32)
	t.int("max_in_flight_limit", &to, 1, math.MaxInt32)
	if t.values["max_in_flight"] == any(auto) {
		l.MinInFlight, l.MaxInFlight = from, to
	}
}

// searched checks the fields of what is searched for, in a limit that may have
// it.
func (t *table) searched(l *Limit) {
	if l.MinRate.Count > 0 {
		t.require("min_rate", `"1/s"`)
		t.require("max_rate", `"100/s"`)
		if !t.has("queue") || l.Queue == 0 {
			t.bad("rate", "\"auto\" needs queue, as what comes too fast for a rate that is still looked for has to wait; write queue = N for how many may")
		}
		if t.has("min_rate") && t.has("max_rate") && slower(l.Rate, l.MinRate) {
			t.bad("min_rate", "must not be above max_rate, which is %q; write a lower one", l.Rate)
		}
	} else {
		t.only([]string{"min_rate", "max_rate"}, "rate")
	}
	if l.MinInFlight > 0 {
		if l.MinInFlight > l.MaxInFlight {
			t.bad("min_in_flight", "must not be above max_in_flight_limit, which is %d; write a lower one", l.MaxInFlight)
		}
		if l.Shared {
			t.bad("store", "redis cannot search for max_in_flight, as each proxy sees the answers of its own requests only; remove it, or write a number")
		}
	} else {
		t.only([]string{"min_in_flight", "max_in_flight_limit"}, "max_in_flight")
	}
	if l.DryRun && (l.MinRate.Count > 0 || l.MinInFlight > 0) {
		t.bad("dry_run", "lets everything pass at once, so that nothing can be found out by it; write a number in the place of \"auto\", or remove it")
	}
}

// only refuses the bounds of a search that is not asked for.
func (t *table) only(fields []string, of string) {
	for _, f := range fields {
		if t.has(f) {
			t.bad(f, "has no effect without %s = \"auto\"; write that, or remove it", of)
		}
	}
}

func slower(a, b limiter.Rate) bool {
	return float64(a.Count)*float64(b.Per) < float64(b.Count)*float64(a.Per)
}

// found says in words that the places are searched for.
func (l Limit) found() string {
	return fmt.Sprintf("how many at once is found out by how long answers take: from %d up, never above %d", l.MinInFlight, l.MaxInFlight)
}
