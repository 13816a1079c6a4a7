package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Dialect names one way to tell clients what a limit has left.
type Dialect string

// The dialects, by the names of the configuration.
const (
	// DialectIETF is RateLimit-Policy and RateLimit, which name every limit
	// (draft-ietf-httpapi-ratelimit-headers-11).
	DialectIETF Dialect = "ietf"
	// DialectIETF03 is RateLimit-Limit, -Remaining and -Reset in delta seconds
	// (the same draft at version 3).
	DialectIETF03 Dialect = "ietf-03"
	// DialectX is X-RateLimit-Limit, -Remaining and -Reset in delta seconds.
	DialectX Dialect = "x-ratelimit"
	// DialectGitHub is the same with Reset as Unix seconds.
	DialectGitHub Dialect = "github"
	// DialectShopify is X-Shopify-Shop-Api-Call-Limit: used/size.
	DialectShopify Dialect = "shopify"
)

// WriteRateLimit puts the fields of the dialects for a permit on an answer.
// Limits in dry run are not told. Where the answer has such fields already,
// from the upstream, lists are added to, and of single values those with less
// remaining stay, or those that cannot be read, so that ours never loosen
// theirs.
func WriteRateLimit(h http.Header, dialects []Dialect, p limiter.Permit) {
	if p.Policy == "" {
		return
	}
	for _, dialect := range dialects {
		if p.Limit == 0 && dialect != DialectIETF {
			continue // refused for a missing key: there is no quota to tell
		}
		switch dialect {
		case DialectIETF:
			writeLists(h, p)
		case DialectIETF03:
			writeTriple(h, "Ratelimit-", p.Decision, resetSeconds(p.Decision))
		case DialectX:
			writeTriple(h, "X-Ratelimit-", p.Decision, resetSeconds(p.Decision))
		case DialectGitHub:
			at := p.At.Add(time.Duration(resetSeconds(p.Decision)) * time.Second)
			writeTriple(h, "X-Ratelimit-", p.Decision, at.Unix())
		case DialectShopify:
			writeShopify(h, p.Decision)
		}
	}
}

// misleads reports whether a client would be misled by the fields on an answer
// of that status. On a redirect that leaves nothing it would wait before it
// follows (draft-ietf-httpapi-ratelimit-headers-11, section 6). A cache would put
// what a 304 tells on the answer that it has stored (RFC 9111, section 3.2), and
// go on telling it when it is true no more (section 7.3 of the draft).
func misleads(status int, p limiter.Permit) bool {
	if status == http.StatusNotModified {
		return true
	}
	return status/100 == 3 && slices.ContainsFunc(p.All, func(d limiter.Decision) bool {
		return !d.DryRun && d.Limit > 0 && d.Remaining == 0
	})
}

// writeLists adds the two structured fields: lists of strings with parameters
// (RFC 9651). Names of limits need no escaping.
func writeLists(h http.Header, p limiter.Permit) {
	var policies, states []byte
	for i := range p.All {
		d := &p.All[i]
		if d.DryRun || d.Limit == 0 {
			continue
		}
		if len(policies) > 0 {
			policies = append(policies, ", "...)
			states = append(states, ", "...)
		}
		policies = appendParameter(appendName(policies, d.Policy), "q", d.Limit)
		if d.Window > 0 {
			policies = appendParameter(policies, "w", Seconds(d.Window))
		}
		states = appendParameter(appendName(states, d.Policy), "r", d.Remaining)
		reset := resetSeconds(*d)
		if !p.Allowed {
			// Retry-After is the longest wait that a refused client is told of.
			reset = min(reset, Seconds(p.RetryAfter))
		}
		states = appendParameter(states, "t", reset)
	}
	if len(policies) > 0 {
		h.Add("Ratelimit-Policy", string(policies))
		h.Add("Ratelimit", string(states))
	}
}

func appendName(b []byte, name string) []byte {
	return append(append(append(b, '"'), name...), '"')
}

func appendParameter(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(append(append(b, ';'), name...), '='), n, 10)
}

func writeTriple(h http.Header, prefix string, d limiter.Decision, reset int64) {
	if theirs := h.Get(prefix + "Remaining"); theirs != "" {
		left, err := strconv.ParseInt(theirs, 10, 64)
		until, _ := strconv.ParseInt(h.Get(prefix+"Reset"), 10, 64)
		if err != nil || left < d.Remaining || left == d.Remaining && until > reset {
			return
		}
	}
	h.Set(prefix+"Limit", strconv.FormatInt(d.Limit, 10))
	h.Set(prefix+"Remaining", strconv.FormatInt(d.Remaining, 10))
	h.Set(prefix+"Reset", strconv.FormatInt(reset, 10))
}

func writeShopify(h http.Header, d limiter.Decision) {
	const name = "X-Shopify-Shop-Api-Call-Limit"
	if theirs := h.Get(name); theirs != "" {
		used, size, _ := strings.Cut(theirs, "/")
		u, err1 := strconv.ParseInt(used, 10, 64)
		s, err2 := strconv.ParseInt(size, 10, 64)
		if err1 != nil || err2 != nil || s-u < d.Remaining {
			return
		}
	}
	h.Set(name, strconv.FormatInt(d.Limit-d.Remaining, 10)+"/"+strconv.FormatInt(d.Limit, 10))
}

// resetSeconds is the time until more becomes available, on a refusal never
// more than Retry-After says.
func resetSeconds(d limiter.Decision) int64 {
	if !d.Allowed && d.RetryAfter < d.ResetAfter {
		return Seconds(d.RetryAfter)
	}
	return Seconds(d.ResetAfter)
}

// Seconds is d in whole seconds as the fields of an answer tell it: rounded
// up, and at least 1, as a client told 0 would try again at once.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return max(s, 1)
}

// serverTiming is the value of a Server-Timing field (W3C Server Timing), in
// milliseconds: what the request waited in queues, and for the upstream.
func serverTiming(queue, upstream time.Duration) string {
	b := append([]byte(nil), "queue;dur="...)
	b = strconv.AppendFloat(b, float64(queue)/float64(time.Millisecond), 'f', 3, 64)
	b = append(b, ", upstream;dur="...)
	return string(strconv.AppendFloat(b, float64(upstream)/float64(time.Millisecond), 'f', 3, 64))
}

// proxyStatus is the value of a Proxy-Status field (RFC 9209) with an error of
// its registry. Details may say more; it is text of our own without quotes.
func proxyStatus(kind, details string) string {
	var b strings.Builder
	b.WriteString("shapeproxy; error=")
	b.WriteString(kind)
	if details != "" {
		b.WriteString(`; details="`)
		b.WriteString(details)
		b.WriteByte('"')
	}
	return b.String()
}
