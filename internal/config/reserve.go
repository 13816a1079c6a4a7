package config

import (
	"fmt"
	"slices"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// reserveField is the field of a limit's share for high priority.
const reserveField = "reserve"

// reserve reads the share that is kept for routes of high priority.
func (t *table) reserve(l *Limit) {
	if v, ok := t.values[reserveField]; ok {
		if _, isTable := v.(map[string]any); !isTable {
			t.take(reserveField)
			t.bad(reserveField, "must be a table, not %s; write reserve = { high = 0.2 } to keep a fifth for routes of high priority", kindOf(v))
			return
		}
	}
	r := t.sub(reserveField, "the reserve of a limit")
	if r.values != nil && len(r.values) == 0 {
		r.require("high", "0.2")
	}
	share := 0.0
	r.ratio("high", &share)
	r.finish()
	rounded := float64(limiter.Parts(share)) / 1000
	switch {
	case share == 0:
	case share == 1:
		t.d.problem(r.at("high"), "leaves nothing for other priorities; write a share below 1")
	case share != rounded:
		t.d.problem(r.at("high"), "must be in whole thousandths, from 0.001 to 0.999; write %g", max(0.001, min(0.999, rounded)))
	default:
		l.ReserveHigh = share
	}
}

// reservable checks that there is something to reserve, and something left.
func (t *table) reservable(l *Limit) {
	if l.ReserveHigh == 0 || l.Queue == 0 && l.Algorithm != limiter.Concurrency {
		return
	}
	if l.MaxInFlight == 1 {
		text := "leaves nothing to reserve with max_in_flight = 1; write max_in_flight = 2 or more, or remove it"
		if l.MinInFlight > 0 {
			text = "leaves nothing to reserve with max_in_flight_limit = 1; write max_in_flight_limit = 2 or more, or remove it"
		}
		t.bad(reserveField, "%s", text)
	}
	if l.Algorithm == limiter.Concurrency {
		return
	}
	n := limiter.Parts(l.ReserveHigh)
	for _, rate := range []limiter.Rate{l.Rate, l.MinRate} {
		for _, share := range []int64{n, 1000 - n} {
			if _, exact := rate.Thousandths(share); !exact {
				t.bad(reserveField, "a share of %q is less than 1 in 100 years; write a higher rate, or remove it", rate)
				return
			}
		}
	}
}

// warnNobodyHigh warns of what is reserved for nobody.
func (d *decoder) warnNobodyHigh(c *Config, limits []*table) {
	for i, l := range c.Limits {
		if l.ReserveHigh > 0 && len(c.users(l.Name)) > 0 && !slices.ContainsFunc(c.Routes, func(r Route) bool {
			return r.Priority == "high" && slices.Contains(r.Limits, l.Name)
		}) {
			d.warn(limits[i].at(reserveField), "no route that names this limit has priority = \"high\", so that nobody ever uses what is reserved; write it in one, or remove reserve")
		}
	}
}

// reserved says in words what is kept for high priority, and what others have.
func (l Limit) reserved() string {
	parts := limiter.Parts(l.ReserveHigh)
	left := float64(1000-parts) / 10
	text := fmt.Sprintf("%g%% is kept for high priority, also while nobody uses it", float64(parts)/10)
	var rest []string
	if l.Algorithm != limiter.Concurrency {
		part, _ := l.Rate.Thousandths(1000 - parts)
		switch {
		case l.MinRate.Count > 0:
			rest = append(rest, fmt.Sprintf("%g%% of the rate that is in force", left))
		case l.Burst > 1:
			rest = append(rest, fmt.Sprintf("%s, %d at once", perUnit(part), limiter.RestOf(l.Burst, parts)))
		default:
			rest = append(rest, perUnit(part))
		}
	}
	switch {
	case l.MinInFlight > 0:
		rest = append(rest, fmt.Sprintf("%g%% of the places in force, but always one", left))
	case l.MaxInFlight > 0:
		rest = append(rest, fmt.Sprintf("%d of the %d places", limiter.RestOf(int64(l.MaxInFlight), parts), l.MaxInFlight))
	}
	text += "; other priorities have " + allOf(rest)
	if l.DryRun {
		text += "; in a dry run all have all of it"
	}
	return text
}
