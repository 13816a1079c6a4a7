package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// Explain says in words what the configuration does: what each limit lets
// through and where it applies, then the routes. It names no header's value and
// no path of an upstream, as these may be secret.
func (c *Config) Explain() string {
	var b strings.Builder
	for _, l := range c.Limits {
		fmt.Fprintf(&b, "limit %s (%s)\n", l.Name, l.form())
		for _, line := range l.explain(c.Server.IPv6Prefix) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		if p, ok := findPreset(l.Preset); ok {
			for _, line := range p.explain(&l, c.Server.RateLimitHeaders) {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		}
		fmt.Fprintf(&b, "  used by: %s\n\n", cmp.Or(strings.Join(c.users(l.Name), ", "), "no route"))
	}
	for _, r := range c.Routes {
		fmt.Fprintf(&b, "route %s\n", r.Match)
		for _, line := range c.explainRoute(r) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "listening on %s, with %s\n", strings.Join(c.Server.Listen, ", "), c.TLS.words())
	for _, line := range c.TLS.explain() {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	if !reflect.DeepEqual(c.Server.Bounds, defaultBounds()) {
		for _, line := range c.Server.Bounds.words() {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	fmt.Fprintf(&b, "admin: %s\n", c.Admin.words())
	if slices.ContainsFunc(c.Limits, func(l Limit) bool { return l.Shared }) {
		fmt.Fprintf(&b, "shared limits are counted on %s\n", c.Redis.words())
	}
	if c.Server.StateFile != "" {
		fmt.Fprintf(&b, "quotas of limits without a queue survive a restart in %s, written each %s and at stop\n", c.Server.StateFile, limiter.FormatDuration(c.Server.StateInterval))
	}
	if trusted := c.Server.TrustedProxies; trusted.Empty() {
		b.WriteString("X-Forwarded-For is believed from nobody: behind a load balancer, set trusted_proxies\n")
	} else {
		fmt.Fprintf(&b, "X-Forwarded-For is believed from %s\n", trusted)
	}
	if c.Tracing.Endpoint != "" {
		fmt.Fprintf(&b, "traces: %g%% of them are sent to %s\n", 100*c.Tracing.Sample, c.Tracing.Endpoint)
	}
	return b.String()
}

func (l Limit) form() string {
	if l.Queue > 0 {
		return string(l.Algorithm) + " with queue"
	}
	return string(l.Algorithm)
}

func (l Limit) explain(ipv6Prefix int) []string {
	lines := append([]string{l.passes()}, l.turns(ipv6Prefix)...)
	lines = append(lines, l.counts(ipv6Prefix))
	if text := l.pays(); text != "" {
		lines = append(lines, text)
	}
	if who := without(l.Key); who != "" {
		lines = append(lines, who+map[string]string{
			"shared": " are counted together, as one",
			"skip":   " are not limited here",
			"reject": " are refused with 400",
		}[l.MissingKey])
	}
	if l.Shared && l.Queue > 0 {
		what, goes := "the rate is", "goes on at %s rate"
		switch {
		case l.Algorithm == limiter.Concurrency:
			what, goes = "the places are", "has %s places"
		case l.MaxInFlight > 0:
			what, goes = "the rate and the places are", "goes on at %s rate and places"
		}
		lines = append(lines, what+" kept on Redis, together with all proxies that share it, and the queue is each proxy's own; while it does not answer, "+map[string]string{
			"open":   "each proxy " + fmt.Sprintf(goes, "the full"),
			"closed": "whoever waits or comes is refused with 503",
			"local":  "each proxy " + fmt.Sprintf(goes, "its part of the"),
		}[l.StoreDown])
	} else if l.Shared {
		lines = append(lines, "counted on Redis, together with all proxies that share it; while it does not answer, "+map[string]string{
			"open":   "everything passes",
			"closed": "everything is refused with 503",
			"local":  "this proxy counts alone, by its part of the limit",
		}[l.StoreDown])
	}
	if !l.Exempt.Empty() {
		lines = append(lines, "not asked for clients in "+l.Exempt.String())
	}
	refused := fmt.Sprintf("what is refused gets %d", l.Status)
	if l.DryRun {
		refused = "dry run: everything passes at once; decisions are only counted and logged"
	}
	return append(lines, refused)
}

// passes is what the limit lets through.
func (l Limit) passes() string {
	if l.Algorithm.Windowed() {
		n, window := requests(l.Limit), limiter.FormatDuration(l.Window)
		if l.Calendar != "" {
			return fmt.Sprintf("%s in each calendar %s, by the clocks of %s; around its end twice as many can pass at once", n, l.Calendar, l.Location)
		}
		switch l.Algorithm {
		case limiter.FixedWindow:
			return fmt.Sprintf("%s in each %s window, windows aligned to UTC; around a boundary twice as many can pass within %s", n, window, window)
		case limiter.SlidingWindowLog:
			return fmt.Sprintf("%s in any %s, exactly; each is remembered for %s", n, window, window)
		}
		return fmt.Sprintf("%s in any %s, estimated: the window before counts by the share of it that is not over", n, window)
	}
	if l.Algorithm == limiter.Concurrency {
		text := fmt.Sprintf("at most %d at the upstream at once; ", l.MaxInFlight)
		if l.MinInFlight > 0 {
			text = l.found() + "; "
		}
		if l.Queue > 0 {
			return text + fmt.Sprintf("%d may wait for a free place, each up to %s", l.Queue, limiter.FormatDuration(l.MaxWait))
		}
		return text + "what comes on top is refused"
	}
	if l.MinRate.Count > 0 {
		text := fmt.Sprintf("the rate is found out by when the upstream throttles: from %s up, never above %s", perUnit(l.MinRate), perUnit(l.Rate))
		if l.Burst > 1 {
			text += fmt.Sprintf("; at most %d at once", l.Burst)
		}
		return text + fmt.Sprintf("; %d may wait, each up to %s (max_wait) by the rate that is in force", l.Queue, limiter.FormatDuration(l.MaxWait))
	}
	each := "one each " + interval(l.Rate)
	if l.Algorithm == limiter.LeakyBucket && l.Queue > 0 {
		return fmt.Sprintf("%s, %s; %s", perUnit(l.Rate), each, l.waits())
	}
	text := fmt.Sprintf("%s: at most %d at once, then %s", perUnit(l.Rate), l.Burst, each)
	if l.Queue > 0 {
		return text + "; " + l.waits()
	}
	return text + "; what comes sooner is refused"
}

// waits says how many may wait and for how long: the last of a full queue, or
// no longer than max_wait.
func (l Limit) waits() string {
	// Floats, as the longest queue at the slowest rate would take longer than
	// a Duration can say.
	each := float64(max(1, l.Cost)) * float64(l.Rate.Per) / float64(l.Rate.Count)
	last := float64(l.Queue) * each
	maxWait := limiter.FormatDuration(l.MaxWait)
	if last <= float64(l.MaxWait) {
		return fmt.Sprintf("%d may wait up to %s (max_wait %s)", l.Queue, round(time.Duration(last)), maxWait)
	}
	places := int64(float64(l.MaxWait) / each)
	if places == 0 {
		return fmt.Sprintf("turns come further apart than max_wait (%s), so only one that comes no more than that before its turn can wait for it; the others are refused at once", maxWait)
	}
	return fmt.Sprintf("%d may wait up to %s (max_wait), which only %d of them can keep to at this rate; the others are refused at once", l.Queue, maxWait, places)
}

// turns says how a queue is left, where that is not plain first in, first out
// at the rate.
func (l Limit) turns(ipv6Prefix int) (lines []string) {
	switch {
	case l.Algorithm == limiter.Concurrency:
	case l.MinInFlight > 0:
		lines = append(lines, l.found()+"; waits may then grow up to max_wait")
	case l.MaxInFlight > 0:
		lines = append(lines, fmt.Sprintf("released only while fewer than %d are unfinished; waits may then grow up to max_wait", l.MaxInFlight))
	}
	if len(l.FairBy.Parts()) > 0 {
		text := "those who wait take turns by " + combination(l.FairBy, ipv6Prefix)
		if who := without(l.FairBy); who != "" {
			text += "; " + who + " take theirs as one"
		}
		lines = append(lines, text)
	}
	if l.PromoteAfter > 0 {
		lines = append(lines, "higher priority goes first; who waits counts one priority higher for each "+limiter.FormatDuration(l.PromoteAfter))
	}
	if l.ReserveHigh > 0 {
		lines = append(lines, l.reserved())
	}
	if l.ShedAbove > 0 {
		d := limiter.FormatDuration(l.ShedAbove)
		lines = append(lines, fmt.Sprintf("when the oldest wait stays above %s, low priority is refused after %s of that and normal priority after %s more; they come back by quarters", d, d, d))
	}
	if l.DeadlineHeader != "" {
		lines = append(lines, "waits are shortened by the header "+l.DeadlineHeader)
	}
	return lines
}

// counts says what is counted separately.
func (l Limit) counts(ipv6Prefix int) string {
	if len(l.Key.Parts()) == 0 {
		return "all requests are counted together"
	}
	if l.Shared && l.Queue == 0 {
		return fmt.Sprintf("separately for each %s; at most %d remembered here while Redis does not answer", combination(l.Key, ipv6Prefix), l.MaxKeys)
	}
	return fmt.Sprintf("separately for each %s; at most %d remembered", combination(l.Key, ipv6Prefix), l.MaxKeys)
}

// without names the requests that have no value of the key; "" if all have one.
func without(key identity.Key) string {
	switch parts := key.Parts(); {
	case !slices.ContainsFunc(parts, identity.Part.MayLack):
		return ""
	case len(parts) > 1:
		return "requests that lack one of these"
	}
	return "requests without it"
}

// combination is what a key tells apart, in words.
func combination(key identity.Key, ipv6Prefix int) string {
	parts := key.Parts()
	words := make([]string, len(parts))
	for i, p := range parts {
		switch p.Kind {
		case identity.ClientIP:
			words[i] = fmt.Sprintf("client address (IPv6 by /%d)", ipv6Prefix)
		case identity.Host:
			words[i] = "host asked for"
		case identity.Route:
			words[i] = "route"
		case identity.ClientCert:
			words[i] = "client certificate"
		case identity.Header:
			words[i] = "value of the header " + p.Name
		case identity.Cookie:
			words[i] = "value of the cookie " + p.Name
		case identity.Query:
			words[i] = "value of the query parameter " + p.Name
		case identity.Path:
			words[i] = "{" + p.Name + "} in the path"
		}
	}
	if len(words) > 1 {
		return "combination of " + allOf(words)
	}
	return allOf(words)
}

func (c *Config) users(limit string) []string {
	var list []string
	for _, r := range c.Routes {
		if slices.Contains(r.Limits, limit) {
			list = append(list, r.Match)
		}
	}
	return list
}

func (c *Config) explainRoute(r Route) []string {
	u := c.Upstreams[slices.IndexFunc(c.Upstreams, func(u Upstream) bool { return u.Name == r.Upstream })]
	at := make([]string, len(u.Places))
	for i, p := range u.Places {
		at[i] = u.Scheme + "://" + p.Host
		if p.UnixSocket != "" {
			at[i] = identity.UnixWord + p.UnixSocket
		}
	}
	lines := []string{fmt.Sprintf("to %s (%s)", u.Name, strings.Join(at, ", ")), "not limited"}
	if len(at) > 1 {
		lines[0] += ", each to the address with the least in flight"
	}
	if h := u.Health; h.Path != "" {
		lines = append(lines, fmt.Sprintf("asks each address for its health each %s; out after %d failures in a row, back after %d that pass", limiter.FormatDuration(h.Interval), h.Fails, h.Passes))
	}
	if b := u.Breaker; b != nil {
		lines = append(lines, fmt.Sprintf("leaves an address alone for %s when %g%% of at least %s in %s failed", limiter.FormatDuration(b.OpenFor), 100*b.FailureRatio, requests(int64(b.MinRequests)), limiter.FormatDuration(b.Window)))
		if b.WhenOpen == "wait" && c.Holds(r) {
			lines[len(lines)-1] += "; meanwhile requests wait in their queue"
		}
	}
	if len(r.Limits) > 0 && u.Obey.On {
		lines = append(lines, u.Obey.explain())
	}
	if u.Retry.Most > 0 && c.Holds(r) {
		lines = append(lines, u.Retry.explain(u.Obey.On))
	}
	if len(r.Limits) > 0 {
		lines[1] = "limited by " + allOf(r.Limits)
	}
	if r.Priority != "normal" {
		lines = append(lines, r.Priority+" priority")
	}
	if r.StripPrefix != "" {
		lines = append(lines, "without the prefix "+r.StripPrefix)
	}
	if r.MaxBodyBytes > 0 {
		lines = append(lines, "request bodies of at most "+formatSize(r.MaxBodyBytes))
	}
	if r.Timeout > 0 {
		lines = append(lines, fmt.Sprintf("answers end within %s of the release", limiter.FormatDuration(r.Timeout)))
	}
	if r.ServerTiming {
		lines = append(lines, "answers tell how long they waited, and how long the upstream took (Server-Timing)")
	}
	if len(u.SetHeaders) > 0 {
		names := make([]string, len(u.SetHeaders))
		for i, h := range u.SetHeaders {
			names[i] = h.Name
		}
		lines = append(lines, "sets "+allOf(names))
	}
	return lines
}

func (a Admin) words() string {
	switch {
	case a.Listen == "":
		return "off"
	case a.Token == "":
		return a.Listen + ", without a token" + a.profiles()
	}
	return a.Listen + ", with a token" + a.profiles()
}

func (a Admin) profiles() string {
	if a.Pprof {
		return ", with profiles at /debug/pprof/"
	}
	return ""
}

// perUnit is a rate in words: "10 requests a second", "100 requests in 7s".
func perUnit(r limiter.Rate) string {
	n, unit, _ := strings.Cut(r.String(), "/")
	count, _ := strconv.ParseInt(n, 10, 64)
	if word := map[string]string{"s": "a second", "m": "a minute", "h": "an hour", "d": "a day"}[unit]; word != "" {
		return requests(count) + " " + word
	}
	return requests(count) + " in " + unit
}

func requests(n int64) string {
	if n == 1 {
		return "1 request"
	}
	return strconv.FormatInt(n, 10) + " requests"
}

// interval is the time between two requests, in a few digits.
func interval(r limiter.Rate) string {
	d := r.Per / time.Duration(r.Count)
	if text := limiter.FormatDuration(d); r.Per%time.Duration(r.Count) == 0 && text == round(d) {
		return text
	}
	return "about " + round(d)
}

// round shows a duration to a thousandth of its unit.
func round(d time.Duration) string {
	switch {
	case d >= time.Second:
		d = d.Round(time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(time.Microsecond)
	}
	return limiter.FormatDuration(d)
}
