package proxy

import (
	"context"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Reasons why an upstream takes no requests, in the words of answers, logs and
// metrics.
const (
	ReasonUnhealthy   limiter.Reason = "unhealthy"    // every address is out
	ReasonBreakerOpen limiter.Reason = "breaker_open" // the breakers of those that are in are open
)

// refusals are the reasons that are counted.
var refusals = [...]limiter.Reason{ReasonUnhealthy, ReasonBreakerOpen}

// An unavailableError is why no address of an upstream takes a request.
type unavailableError struct {
	reason     limiter.Reason
	retryAfter time.Duration // until one may take a request; 0: nobody knows
}

func (e *unavailableError) Error() string {
	if e.reason == ReasonBreakerOpen {
		return "the upstream failed too often and is given time to recover"
	}
	return "the upstream is out of service"
}

func (u *Upstream) countRefusal(r limiter.Reason) {
	u.refused[slices.Index(refusals[:], r)].Add(1)
}

// take returns the one of all addresses with the least in flight that takes
// requests and is not in failed, with one more in flight there. Ties go round.
// Of addresses that are out it has a connection tried when that is due.
func (u *Upstream) take(all, failed []*address) (*address, pass, error) {
	now := time.Now()
	if len(all) == 1 && len(failed) == 0 {
		a := all[0]
		p, ok := a.admit(now, true)
		if !ok {
			return nil, pass{}, unavailable(all, now)
		}
		a.inFlight.Add(1)
		return a, p, nil
	}
	u.taking.Lock()
	defer u.taking.Unlock()
	u.turn++
	for {
		var best *address
		var least int64
		for i := range all {
			a := all[(u.turn+i)%len(all)]
			if n := a.inFlight.Load(); (best == nil || n < least) && !slices.Contains(failed, a) && a.ready(now, len(all) == 1) {
				best, least = a, n
			}
		}
		if best == nil {
			return nil, pass{}, unavailable(all, now)
		}
		p, ok := best.admit(now, len(all) == 1)
		if !ok {
			continue // its breaker has just opened
		}
		best.inFlight.Add(1)
		for _, a := range all {
			if a != best && a.claim(now) {
				go a.probe(context.Background())
			}
		}
		return best, p, nil
	}
}

// revive tries a connection to one that is out, if that is due.
func (u *Upstream) revive(ctx context.Context, all, failed []*address) bool {
	for _, a := range all {
		if !slices.Contains(failed, a) && a.claim(time.Now()) {
			return a.probe(ctx)
		}
	}
	return false
}

// refuses says why u takes no request now, as far as that is known without
// asking anybody; nil if it may take one.
func (u *Upstream) refuses() *unavailableError {
	all := u.known()
	now := time.Now()
	for _, a := range all {
		if a.ready(now, len(all) == 1) {
			return nil
		}
	}
	for _, a := range all {
		if a.due(now) {
			return nil
		}
	}
	if len(all) == 0 {
		return nil // not resolved yet
	}
	return unavailable(all, now)
}

// unavailable says for addresses none of which takes a request why, and when
// the first will.
func unavailable(all []*address, now time.Time) *unavailableError {
	e := &unavailableError{reason: ReasonUnhealthy}
	for _, a := range all {
		wait, out := a.wait(now, len(all) == 1)
		if !out {
			e.reason = ReasonBreakerOpen
		}
		if wait > 0 && (e.retryAfter == 0 || wait < e.retryAfter) {
			e.retryAfter = wait
		}
	}
	return e
}
