package limiter

import (
	"context"
	"net/http"
	"time"
)

// Acquire makes a Limit a Limiter of one key, which answers at once. The error
// is always nil. Several limits are a Limiter as a shaping.Chain.
func (l *Limit) Acquire(_ context.Context, req Request) (p Permit, _ error) {
	key := &req.Keys[0]
	if key.Skip {
		p.Allowed = true
		return p, nil
	}
	var d Decision
	if key.Missing {
		of := l.Policy()
		d = Decision{
			Policy: of.Name, Reason: ReasonMissingKey, Status: http.StatusBadRequest, DryRun: of.DryRun,
			RetryAfter: Never, At: time.Now(),
		}
	} else {
		d = l.Take(key.Value, key.Charge())
	}
	if p.All = []Decision{d}; d.DryRun {
		p.Allowed = true
	} else {
		p.Decision = d
	}
	return p, nil
}
