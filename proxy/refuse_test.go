package proxy

import (
	"context"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// limiterRefusal is a refusal in queue form.
var limiterRefusal = limiter.Decision{
	Policy: "fragile", Reason: limiter.ReasonQueueFull, Status: 429, Limit: 101, Window: 100 * time.Millisecond,
	ResetAfter: 7200 * time.Millisecond, RetryAfter: 4200 * time.Millisecond,
}

// refuses is a Limiter that always refuses with d.
func refuses(d limiter.Decision) limiter.Limiter {
	return limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
		d.At = time.Now()
		return limiter.Permit{Decision: d, All: []limiter.Decision{d}}, nil
	})
}
