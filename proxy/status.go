package proxy

import (
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// An UpstreamStatus is one upstream as it stands at the instant it was asked
// for.
type UpstreamStatus struct {
	Name      string
	InFlight  int64           // requests sent, or being sent, whose answers have not ended
	Addresses []AddressStatus // in use now, each once
	Guarded   bool            // whether there are circuit breakers
	Breaker   BreakerState    // of the address that lets most through, of those that are in; closed if none is
	Refused   []Refusals      // for each reason

	// What its owner has heard in its answers; see Route.Ask.
	Throttled     uint64 // requests that it refused for there being too many
	FieldsIgnored uint64 // fields about its limits that were malformed or contradicted others
}

// An AddressStatus is one address of an upstream.
type AddressStatus struct {
	Address  string // host:port as dialled, or unix:/path
	Healthy  bool   // whether requests go there: it is in, and its breaker is not open
	InFlight int64
}

// Refusals counts the requests that an upstream did not take.
type Refusals struct {
	Reason limiter.Reason
	Count  uint64
}

// Status is u as it stands now.
func (u *Upstream) Status() UpstreamStatus {
	s := UpstreamStatus{Name: u.opts.Name, InFlight: u.inFlight.Load(), Guarded: u.opts.Breaker != nil}
	best, anyIn := BreakerOpen, false
	now := time.Now()
	all := u.known()
	alone := len(all) == 1
	for _, a := range all {
		a.mu.Lock()
		state := a.breaker.at(now)
		one := AddressStatus{Address: a.name(), Healthy: !a.health.out && state != BreakerOpen, InFlight: a.inFlight.Load()}
		out := a.out(alone)
		a.mu.Unlock()
		if !out {
			best, anyIn = min(best, state), true
		}
		if !slices.ContainsFunc(s.Addresses, func(b AddressStatus) bool { return b.Address == one.Address }) {
			s.Addresses = append(s.Addresses, one)
		}
	}
	if anyIn {
		s.Breaker = best
	}
	for i, r := range refusals {
		s.Refused = append(s.Refused, Refusals{r, u.refused[i].Load()})
	}
	return s
}
