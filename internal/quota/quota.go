// Package quota reads what a server says of its limits in the head of an
// answer: Retry-After and its relatives, and RateLimit fields in the forms that
// are in use.
//
// It is told the time and keeps nothing. Fields come from a server that may be
// broken or hostile: what is malformed or contradicts itself is counted and
// otherwise as if it were not there.
package quota

import (
	"net/http"
	"strings"
	"time"
)

// A Reading is what one answer says.
type Reading struct {
	// Throttled: the request was refused for there being too many.
	Throttled bool
	// Pause is for how long the server wants to be left alone. It is meaningful
	// if Paused.
	Pause  time.Duration
	Paused bool
	// Left is what is left of a quota, the one of several that allows the least
	// in the long run. It is meaningful if Known.
	Left  Left
	Known bool
	// Ignored is how many fields were malformed or contradicted others.
	Ignored int
}

// Left is how many requests are left until a quota is as good as new, and how
// long that is, more than zero. A server's own unit that is not a request, such
// as the tokens of a language model, is only of interest when nothing is left.
type Left struct {
	Requests int64
	Reset    time.Duration
}

// tighter reports whether l allows less than o.
func (l Left) tighter(o Left) bool {
	return float64(l.Requests)*float64(o.Reset) < float64(o.Requests)*float64(l.Reset) ||
		l.Requests == 0 && o.Requests == 0 && l.Reset > o.Reset
}

// Read reads the head of an answer that came at now. Without trust, RateLimit
// fields are not read.
//
// A request was throttled if its status is 429, 503 with a Retry-After (RFC 9110,
// section 15.6.4), or, as GitHub does it, 403 with nothing left.
func Read(status int, h http.Header, now time.Time, trust bool) Reading {
	r := reader{header: h, now: now}
	r.sent = now
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		// Instants are by the server's clock, which need not be ours.
		r.sent = date
	}
	r.retryAfter()
	r.Throttled = status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && r.Paused
	if trust {
		r.rateLimits()
		r.Throttled = r.Throttled || status == http.StatusForbidden && (r.Paused || r.Known && r.Left.Requests == 0)
	}
	return r.Reading
}

type reader struct {
	Reading
	header    http.Header
	now, sent time.Time
}

// one is the value of a field that may stand once; "" if it does not. Servers
// behind each other add it twice: alike is well.
func (r *reader) one(name string) string {
	lines := r.header[http.CanonicalHeaderKey(name)]
	for _, v := range lines {
		if v != lines[0] || len(v) > 256 {
			r.Ignored++
			return ""
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.TrimSpace(lines[0])
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), with a fraction too,
// and retry-after-ms, which is more exact where both are sent.
func (r *reader) retryAfter() {
	if v := r.one("Retry-After-Ms"); v != "" {
		if d, ok := number(v, time.Millisecond); ok {
			r.Pause, r.Paused = d, true
			return
		}
		r.Ignored++
	}
	v := r.one("Retry-After")
	if v == "" {
		return
	}
	if d, ok := number(v, time.Second); ok {
		r.Pause, r.Paused = d, true
	} else if at, err := http.ParseTime(v); err == nil {
		r.Pause, r.Paused = min(max(0, at.Sub(r.sent)), longest), true
	} else {
		r.Ignored++
	}
}

// rateLimits reads every form, and keeps what allows the least.
func (r *reader) rateLimits() {
	r.list(r.header["Ratelimit"])
	for _, f := range forms {
		r.form(f)
	}
	r.callLimit(r.one("X-Shopify-Shop-Api-Call-Limit"))
}

// note takes what is left of one quota into account.
func (r *reader) note(l Left) {
	if l.Reset <= 0 {
		return // it is as good as new
	}
	if !r.Known || l.tighter(r.Left) {
		r.Left, r.Known = l, true
	}
}

// A form is a family of fields, each of which has one number.
type form struct {
	limit, remaining string
	reset            []string // the first that stands counts
	units            bool     // not of requests
}

var forms = []form{
	// draft-ietf-httpapi-ratelimit-headers-03 and those before; GitLab has Unix
	// seconds in it.
	{limit: "RateLimit-Limit", remaining: "RateLimit-Remaining", reset: []string{"RateLimit-Reset"}},
	// GitHub and many others; Discord; Twitter and Okta.
	{limit: "X-RateLimit-Limit", remaining: "X-RateLimit-Remaining", reset: []string{"X-RateLimit-Reset-After", "X-RateLimit-Reset"}},
	{limit: "X-Rate-Limit-Limit", remaining: "X-Rate-Limit-Remaining", reset: []string{"X-Rate-Limit-Reset"}},
	// OpenAI and those who do as it does; Anthropic.
	{limit: "X-RateLimit-Limit-Requests", remaining: "X-RateLimit-Remaining-Requests", reset: []string{"X-RateLimit-Reset-Requests"}},
	{limit: "X-RateLimit-Limit-Tokens", remaining: "X-RateLimit-Remaining-Tokens", reset: []string{"X-RateLimit-Reset-Tokens"}, units: true},
	{limit: "Anthropic-RateLimit-Requests-Limit", remaining: "Anthropic-RateLimit-Requests-Remaining", reset: []string{"Anthropic-RateLimit-Requests-Reset"}},
	{limit: "Anthropic-RateLimit-Tokens-Limit", remaining: "Anthropic-RateLimit-Tokens-Remaining", reset: []string{"Anthropic-RateLimit-Tokens-Reset"}, units: true},
	{limit: "Anthropic-RateLimit-Input-Tokens-Limit", remaining: "Anthropic-RateLimit-Input-Tokens-Remaining", reset: []string{"Anthropic-RateLimit-Input-Tokens-Reset"}, units: true},
	{limit: "Anthropic-RateLimit-Output-Tokens-Limit", remaining: "Anthropic-RateLimit-Output-Tokens-Remaining", reset: []string{"Anthropic-RateLimit-Output-Tokens-Reset"}, units: true},
}

// form reads one family. Without both what remains and when it resets it says
// nothing that a pace could be made of.
func (r *reader) form(f form) {
	said := r.one(f.remaining)
	if said == "" {
		return
	}
	var when string
	for _, name := range f.reset {
		if when = r.one(name); when != "" {
			break
		}
	}
	if when == "" {
		return
	}
	n, ok := count(said)
	reset, fine := r.until(when)
	if !ok || !fine || r.exceeds(n, r.one(f.limit)) {
		r.Ignored++
		return
	}
	if !f.units || n == 0 {
		r.note(Left{n, reset})
	}
}

// exceeds reports whether more remains than there ever is. The limit may be a
// list whose first number counts: "10, 10;w=1, 50;w=60".
func (r *reader) exceeds(n int64, limit string) bool {
	first, _, _ := strings.Cut(limit, ",")
	first, _, _ = strings.Cut(first, ";")
	most, ok := count(strings.TrimSpace(first))
	return ok && n > most
}

// callLimit reads Shopify's used/size. The bucket leaks a twentieth of its size
// each second, whatever its size: 2 of 40, 20 of 400. So until it is empty as
// many requests fit as its size is.
func (r *reader) callLimit(v string) {
	if v == "" {
		return
	}
	before, after, _ := strings.Cut(v, "/")
	used, ok := count(before)
	size, fine := count(after)
	if !ok || !fine || size == 0 || size > 1<<30 || used > size {
		r.Ignored++
		return
	}
	r.note(Left{size, time.Duration(float64(used) / float64(size) * float64(20*time.Second))})
}
