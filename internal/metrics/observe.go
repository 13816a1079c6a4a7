package metrics

import (
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// Decided counts one decision of each limit that was asked. In dry run it is
// what the limit would have done.
func (m *Metrics) Decided(_ string, decisions []limiter.Decision) {
	limits := m.known.Load().limits
	for i := range decisions {
		d := &decisions[i]
		l := limits[d.Policy]
		if d.Peeked || l == nil {
			continue
		}
		switch o := d.Outcome(); {
		case o == limiter.OutcomeAdmitted:
			l.admitted.Inc()
		case o == limiter.OutcomeQueued && l.queued != nil:
			l.queued.Inc()
		case o == limiter.OutcomeGone && l.gone != nil:
			l.gone.Inc()
		case o == limiter.OutcomeRejected && l.rejected[d.Reason] != nil:
			l.rejected[d.Reason].Inc()
		default: // of a queue that the configuration has since taken away
			reason := d.Reason
			if d.Allowed {
				reason = limiter.ReasonNone
			}
			m.decisions.WithLabelValues(d.Policy, string(o), string(reason)).Inc()
		}
		if d.Allowed && l.wait != nil {
			l.wait.Observe(d.Waited.Seconds())
		}
	}
}

// Done counts one request whose answer has ended.
func (m *Metrics) Done(e *proxy.Event) {
	known := m.known.Load()
	route := known.routes[e.Route]
	if route == nil {
		route = known.routes[""]
	}
	route.requests.counter(e.Status).Inc()
	route.duration.Observe(e.Duration.Seconds())
	up := known.upstreams[e.Upstream]
	for _, r := range e.Retries {
		m.retries.WithLabelValues(r.Reason).Inc()
		if up != nil {
			up.responses.counter(r.Status).Inc()
			up.duration.Observe(r.Duration.Seconds())
		}
	}
	if up != nil && e.UpstreamStatus != 0 {
		code := e.UpstreamStatus
		if code == proxy.UpstreamError && e.Status == proxy.StatusClientGone {
			code = proxy.StatusClientGone // no mark against the upstream
		}
		up.responses.counter(code).Inc()
		up.duration.Observe(e.UpstreamDuration.Seconds())
	}
}
