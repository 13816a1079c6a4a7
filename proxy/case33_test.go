package proxy

import (
	"net/http"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// envoyproxy/gateway #9078: Retry-After is a whole number of at least one second,
// and no less than what the fields say.
func TestCase33RetryAfter(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		1: "1", 20 * time.Millisecond: "1", time.Second: "1", time.Second + 1: "2", 39500 * time.Millisecond: "40",
	} {
		d := limiter.Decision{Policy: "p", Reason: limiter.ReasonLimit, Limit: 1, Window: time.Minute, ResetAfter: wait, RetryAfter: wait}
		h := http.Header{}
		p := limiter.Permit{Decision: d, All: []limiter.Decision{d}}
		WriteRateLimit(h, everyDialect, p)
		refusal(h, p)
		if got := h.Get("Retry-After"); got != want || h.Get("Ratelimit-Reset") != want {
			t.Errorf("%v: Retry-After %q, reset %q", wait, got, h.Get("Ratelimit-Reset"))
		}
	}
}
