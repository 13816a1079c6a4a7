package proxy

import "time"

// A BreakerPolicy says when an address that fails too often is left alone: a
// circuit breaker (Nygard, "Release It!").
//
// It opens when at least MinRequests of the last Window have ended and the
// share of them that failed is FailureRatio or more. Open, it lets nothing
// through for OpenFor. Then it is half-open: it lets single requests through,
// one after the other; Probes of them that succeed in a row close it, and one
// that fails opens it anew.
//
// The window slides in tenths: a request counts for nine tenths of Window at
// least, and for the whole at most.
type BreakerPolicy struct {
	FailureRatio float64 // above 0, at most 1
	Window       time.Duration
	MinRequests  int64 // at least 1
	OpenFor      time.Duration
	Probes       int   // at least 1
	Statuses     []int // of answers that count as failures
}

// A BreakerState is how much a breaker lets through.
type BreakerState int

// The values are those of the metric shapeproxy_breaker_state.
const (
	BreakerClosed   BreakerState = 0 // everything
	BreakerHalfOpen BreakerState = 1 // one request at a time
	BreakerOpen     BreakerState = 2 // nothing
)

func (s BreakerState) String() string {
	return [...]string{"closed", "half-open", "open"}[s]
}

const breakerSlices = 10

// A breaker is the state of one address under a BreakerPolicy. It reads no clock
// and takes no lock. Its zero value with a policy is closed; a nil one lets
// everything through.
type breaker struct {
	policy *BreakerPolicy
	began  time.Time // when the slice 0 began

	state   BreakerState // as the last event left it; an open one may be over
	until   time.Time    // when it is open: to when
	probing bool         // a probe is under way
	passed  int          // probes that succeeded in a row
	era     uint32       // grows with each change, so that results of requests from before do not count

	slices [breakerSlices]struct{ all, failed int64 } // a ring
	newest int64                                      // the number of the newest slice
}

// A pass lets one request through. It must be given back by done or by forgo.
type pass struct{ era uint32 }

// at is the state at now.
func (b *breaker) at(now time.Time) BreakerState {
	if b == nil {
		return BreakerClosed
	}
	if b.state == BreakerOpen && !now.Before(b.until) {
		return BreakerHalfOpen
	}
	return b.state
}

// ready reports whether allow would let a request through at now.
func (b *breaker) ready(now time.Time) bool {
	switch b.at(now) {
	case BreakerClosed:
		return true
	case BreakerHalfOpen:
		return !b.probing
	}
	return false
}

// allow lets a request through at now, or does not.
func (b *breaker) allow(now time.Time) (pass, bool) {
	if b == nil {
		return pass{}, true
	}
	if !b.ready(now) {
		return pass{}, false
	}
	if b.at(now) == BreakerHalfOpen {
		if b.state == BreakerOpen {
			b.become(BreakerHalfOpen)
		}
		b.probing = true
	}
	return pass{b.era}, true
}

// done tells how the request of p ended. It reports whether that changed the
// state.
func (b *breaker) done(now time.Time, p pass, failed bool) bool {
	if b == nil || p.era != b.era {
		return false
	}
	if b.state == BreakerHalfOpen {
		b.probing = false
		switch b.passed++; {
		case failed:
			b.open(now)
		case b.passed >= b.policy.Probes:
			b.become(BreakerClosed)
		default:
			return false
		}
		return true
	}
	b.slide(now)
	slice := &b.slices[b.newest%breakerSlices]
	slice.all++
	if !failed {
		return false
	}
	slice.failed++
	var all, bad int64
	for _, s := range b.slices {
		all += s.all
		bad += s.failed
	}
	if all < b.policy.MinRequests || float64(bad) < b.policy.FailureRatio*float64(all) {
		return false
	}
	b.open(now)
	return true
}

// forgo gives p back for a request that told nothing of the upstream: it was
// not sent, or its client is to blame, or left.
func (b *breaker) forgo(p pass) {
	if b != nil && p.era == b.era && b.state == BreakerHalfOpen {
		b.probing = false
	}
}

func (b *breaker) open(now time.Time) {
	b.become(BreakerOpen)
	b.until = now.Add(b.policy.OpenFor)
}

func (b *breaker) become(s BreakerState) {
	b.state, b.probing, b.passed = s, false, 0
	b.era++
	clear(b.slices[:])
}

// slide has the ring end with the slice of now.
func (b *breaker) slide(now time.Time) {
	if b.began.IsZero() {
		b.began = now
	}
	slice := int64(now.Sub(b.began) / max(1, b.policy.Window/breakerSlices))
	for range min(slice-b.newest, breakerSlices) {
		b.newest++
		b.slices[b.newest%breakerSlices] = struct{ all, failed int64 }{}
	}
	b.newest = max(b.newest, slice)
}
