package replay

import (
	"fmt"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Report is a Result in the words of the configuration. Times are in seconds.
type Report struct {
	File      string                    `json:"file"`
	Log       LogReport                 `json:"log"`
	Limits    map[string]LimitReport    `json:"limits"`
	Routes    map[string]RouteReport    `json:"routes"`
	Upstreams map[string]UpstreamReport `json:"upstreams"`
	Notes     []string                  `json:"notes,omitempty"`
	Compare   *Report                   `json:"compare,omitempty"`
	Suggest   []Suggestion              `json:"suggest,omitempty"`

	result *Result
}

// A LogReport says what was replayed.
type LogReport struct {
	Tally
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	NoRoute   int       `json:"no_route"`
	Malformed int       `json:"malformed"` // answered with 400
}

// A LimitReport is what one limit decided. Admitted went at once and Queued
// after waiting; those in the queue longest ago are all gone at the end.
type LimitReport struct {
	Offered   int            `json:"offered"`
	Admitted  int            `json:"admitted"`
	Queued    int            `json:"queued"`
	Rejected  map[string]int `json:"rejected"`
	Wait      Wait           `json:"wait"`
	PeakDepth int            `json:"peak_depth"`
	Keys      int            `json:"keys"`
	Busiest   []KeyReport    `json:"busiest,omitempty"`
	DryRun    bool           `json:"dry_run,omitempty"`
}

// A KeyReport is what one key asked of a limit and was refused.
type KeyReport struct {
	Key      string `json:"key"`
	Offered  int    `json:"offered"`
	Rejected int    `json:"rejected"`
}

// A RouteReport is what became of the requests of one route.
type RouteReport struct {
	Offered   int            `json:"offered"`
	Forwarded int            `json:"forwarded"`
	Rejected  map[string]int `json:"rejected"`
	Wait      Wait           `json:"wait"`
}

// An UpstreamReport is what one upstream was sent.
type UpstreamReport struct {
	Requests   int `json:"requests"`
	PeakSecond int `json:"peak_per_second"` // the most within any second
}

// Report sums a Result up, with so many of the busiest keys.
func (r *Result) Report(busiest int) *Report {
	s := r.stats
	out := &Report{
		File: r.config.File, result: r,
		Log: LogReport{
			Tally: r.log.Tally, First: time.Unix(0, s.began).UTC(), Last: time.Unix(0, s.last).UTC(),
			NoRoute: s.noRoute, Malformed: s.malformed,
		},
		Limits: make(map[string]LimitReport), Routes: make(map[string]RouteReport), Upstreams: make(map[string]UpstreamReport),
		Notes: r.notes(),
	}
	for _, l := range s.limits {
		one := LimitReport{
			Offered: l.asked, Admitted: l.once, Queued: l.later, Rejected: words(l.no), Wait: l.waits.wait(),
			PeakDepth: l.peak, Keys: len(l.keys), DryRun: l.conf.DryRun,
		}
		if len(l.conf.Key.Parts()) == 0 {
			one.Keys = 1
		} else {
			for _, name := range l.busiest(busiest) {
				one.Busiest = append(one.Busiest, KeyReport{Key: name, Offered: l.keys[name].Offered, Rejected: l.keys[name].Rejected})
			}
		}
		out.Limits[l.conf.Name] = one
	}
	for _, one := range s.routes {
		out.Routes[one.Match] = RouteReport{Offered: one.Offered, Forwarded: one.Forwarded, Rejected: words(one.no), Wait: one.waits.wait()}
	}
	for _, u := range s.upstreams {
		out.Upstreams[u.name] = UpstreamReport{Requests: u.sent, PeakSecond: u.peak}
	}
	return out
}

func words(by map[limiter.Reason]int) map[string]int {
	all := make(map[string]int, len(by))
	for reason, n := range by {
		all[string(reason)] = n
	}
	return all
}

// notes say what of the result is an assumption.
func (r *Result) notes() (notes []string) {
	say := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	t := r.log.Tally
	if t.Unread > 0 {
		say("%d of %d lines are not in the log's format, the first of them %s; they were left out", t.Unread, t.Lines, t.FirstUnread)
	}
	if t.NoRequest > 0 {
		say("%d lines are about something that was no HTTP request; they were left out", t.NoRequest)
	}
	if r.log.spread {
		say("the log's time stamps are whole seconds: where in its second a request came is an assumption (--spread)")
	}
	if r.log.moved > 0 {
		say("%d lines came before an earlier one; all were sorted by time", r.log.moved)
	}
	if r.stats.noRoute > 0 {
		say("%d requests match no route, and would get 404 or 405", r.stats.noRoute)
	}
	if r.stats.malformed > 0 {
		say("%d requests would get 400", r.stats.malformed)
	}
	return append(notes, r.plan.doubts(r.log.known)...)
}
