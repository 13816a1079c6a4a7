package proxy

import (
	"context"
	"errors"
	"slices"
	"time"
)

// How an address stands: what its health and its breaker are told, and who is
// told when that changes.

// out reports whether requests pass a by for its health. There is nothing to
// turn to from the only address of an upstream, so that failed requests do not
// take it out, only checks do.
func (a *address) out(alone bool) bool {
	return a.health.out && !(alone && !a.up.opts.Health.checks())
}

// free ends what keeps requests from a: once nobody checks it any more, those
// that are still to come must not wait for it.
func (a *address) free() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.health, a.breaker = health{}, nil
}

// in reports whether a is.
func (a *address) in() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.health.out
}

// ready reports whether a takes a request at now.
func (a *address) ready(now time.Time, alone bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.out(alone) && a.breaker.ready(now)
}

// admit lets a request through to a, or does not.
func (a *address) admit(now time.Time, alone bool) (pass, bool) {
	a.mu.Lock()
	if a.out(alone) {
		a.mu.Unlock()
		return pass{}, false
	}
	before := a.breaker.at(now)
	p, ok := a.breaker.allow(now)
	probe := ok && before == BreakerHalfOpen
	first := probe && a.breaker.passed == 0
	a.mu.Unlock()
	if probe {
		a.up.regate()
	}
	if first {
		a.up.opts.Log.Info("the circuit breaker lets single requests through", "upstream", a.up.opts.Name, "address", a.name())
	}
	return p, ok
}

// wait is how long it takes until a may be tried, 0 if nobody knows, and
// whether it is out.
func (a *address) wait(now time.Time, alone bool) (d time.Duration, out bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch out = a.out(alone); {
	case out && a.up.opts.Health.checks():
		return 0, true
	case out:
		d = a.health.until.Sub(now)
	}
	if a.breaker.at(now) == BreakerOpen {
		d = max(d, a.breaker.until.Sub(now))
	}
	if d <= 0 {
		d = time.Second // something is being tried: it tells soon
	}
	return d, out
}

// due reports whether a connection is to be tried, and claim takes that on
// itself.
func (a *address) due(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.health.due(&a.up.opts.Health, now)
}

func (a *address) claim(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.health.due(&a.up.opts.Health, now) {
		return false
	}
	a.health.probing = true
	return true
}

// probe tries a connection to an address that is out, after claim. No request
// is sent on it.
func (a *address) probe(ctx context.Context) bool {
	conn, err := a.reach(ctx, a.tls)
	if err == nil {
		conn.Close()
	}
	a.mu.Lock()
	if err != nil && ctx.Err() != nil {
		a.health.probing = false // the one who waited for it left
		a.mu.Unlock()
		return false
	}
	back := a.health.probed(&a.up.opts.Health, time.Now(), err == nil)
	a.mu.Unlock()
	if back {
		a.tellIn("a connection came about")
	}
	return err == nil
}

// failed tells of a connection that could not be made, or took nothing.
func (a *address) failed(err error) {
	a.mu.Lock()
	out := a.health.failed(&a.up.opts.Health, time.Now())
	a.mu.Unlock()
	if out {
		a.tellOut("connections failed in a row", err)
	}
}

// checked tells of a health check.
func (a *address) checked(err error) {
	a.mu.Lock()
	changed := a.health.checked(&a.up.opts.Health, time.Now(), err == nil)
	a.mu.Unlock()
	switch {
	case changed && err == nil:
		a.tellIn("health checks passed")
	case changed:
		a.tellOut("health checks failed", err)
	}
}

// answered tells of the answer to a request that had p.
func (a *address) answered(p pass, status int) {
	a.mu.Lock()
	back := a.health.answered(&a.up.opts.Health)
	a.mu.Unlock()
	if back {
		a.tellIn("it answered")
	}
	a.ended(p, a.up.opts.Breaker != nil && slices.Contains(a.up.opts.Breaker.Statuses, status))
}

// lost tells of a request that had p and no answer, for which a is to blame. One
// that was sent is no mark against its health: a client who finds a request
// that takes too long, or that makes the upstream close the connection, could
// take one address after the other out with it.
func (a *address) lost(p pass, err error) {
	var unsent *unsentError
	if errors.As(err, &unsent) && !isConnectError(err) { // else connect has told
		a.failed(err)
	}
	a.ended(p, true)
}

// ended tells the breaker how the request that had p ended.
func (a *address) ended(p pass, failed bool) {
	a.mu.Lock()
	now := time.Now()
	probed := a.breaker.at(now) == BreakerHalfOpen
	changed := a.breaker.done(now, p, failed)
	open := changed && failed
	a.mu.Unlock()
	if probed || changed {
		a.up.regate()
	}
	log := a.up.opts.Log
	switch {
	case open:
		log.Warn("the circuit breaker opens", "upstream", a.up.opts.Name, "address", a.name(), "for", a.up.opts.Breaker.OpenFor)
	case changed:
		log.Info("the circuit breaker closes", "upstream", a.up.opts.Name, "address", a.name())
	}
}

// forgo gives back the pass of a request that tells nothing of a.
func (a *address) forgo(p pass) {
	a.mu.Lock()
	probed := a.breaker.at(time.Now()) == BreakerHalfOpen
	a.breaker.forgo(p)
	a.mu.Unlock()
	if probed {
		a.up.regate()
	}
}

func (a *address) tellOut(why string, err error) {
	a.up.regate()
	a.up.opts.Log.Warn("an address is out", "upstream", a.up.opts.Name, "address", a.name(), "why", why, "error", err)
}

func (a *address) tellIn(why string) {
	a.up.regate()
	a.up.opts.Log.Info("an address is in again", "upstream", a.up.opts.Name, "address", a.name(), "why", why)
}
