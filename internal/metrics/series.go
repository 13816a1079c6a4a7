package metrics

import (
	"maps"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// series are the ready-made series of everything in the configuration, so that
// a request looks up a name and never a set of labels. It is not changed once
// it is published.
type series struct {
	routes    map[string]*routeSeries
	limits    map[string]*limitSeries
	upstreams map[string]*upstreamSeries
}

type routeSeries struct {
	requests byCode
	duration prometheus.Observer
}

type limitSeries struct {
	admitted, queued, gone prometheus.Counter
	rejected               map[limiter.Reason]prometheus.Counter
	wait                   prometheus.Observer // nil in reject mode
}

type upstreamSeries struct {
	responses byCode
	duration  prometheus.Observer
}

// Configure tells the names that may become labels. Call it before the
// configuration that holds them takes requests. What it was told before stays
// known, as requests of the configuration before may still be under way, and
// as a counter that vanishes and comes back would look like a restart.
func (m *Metrics) Configure(routes []string, limits []limiter.Status, upstreams []string) {
	m.configuring.Lock()
	defer m.configuring.Unlock()
	old := m.known.Load()
	next := &series{
		routes:    make(map[string]*routeSeries),
		limits:    make(map[string]*limitSeries),
		upstreams: make(map[string]*upstreamSeries),
	}
	maps.Copy(next.routes, old.routes)
	maps.Copy(next.limits, old.limits)
	maps.Copy(next.upstreams, old.upstreams)

	for _, name := range append([]string{""}, routes...) { // "": no route matched
		if next.routes[name] == nil {
			next.routes[name] = &routeSeries{
				requests: byCode{vec: m.requests.MustCurryWith(prometheus.Labels{"route": name})},
				duration: m.duration.WithLabelValues(name),
			}
		}
	}
	for _, l := range limits {
		next.limits[l.Name] = m.limitSeries(l)
	}
	for _, name := range upstreams {
		if next.upstreams[name] == nil {
			up := &upstreamSeries{
				responses: byCode{vec: m.upstreamResponses.MustCurryWith(prometheus.Labels{"upstream": name})},
				duration:  m.upstreamDuration.WithLabelValues(name),
			}
			up.responses.counter(proxy.UpstreamError)
			next.upstreams[name] = up
		}
	}
	m.known.Store(next)
}

// limitSeries makes the series that l can have, so that each is there with 0
// before the first such decision and a rate over it misses none.
func (m *Metrics) limitSeries(l limiter.Status) *limitSeries {
	counter := func(o limiter.Outcome, r limiter.Reason) prometheus.Counter {
		return m.decisions.WithLabelValues(l.Name, string(o), string(r))
	}
	s := &limitSeries{
		admitted: counter(limiter.OutcomeAdmitted, limiter.ReasonNone),
		rejected: make(map[limiter.Reason]prometheus.Counter),
	}
	reasons := []limiter.Reason{limiter.ReasonLimit, limiter.ReasonPaused}
	if l.Queue > 0 {
		s.queued = counter(limiter.OutcomeQueued, limiter.ReasonNone)
		s.gone = counter(limiter.OutcomeGone, limiter.ReasonClientGone)
		s.wait = m.queueWait.WithLabelValues(l.Name)
		reasons = []limiter.Reason{
			limiter.ReasonQueueFull, limiter.ReasonMaxWait, limiter.ReasonPaused, limiter.ReasonShutdown,
		}
	}
	if l.StoreDown == "closed" {
		reasons = append(reasons, limiter.ReasonStoreDown)
	}
	if l.Key != "global" {
		reasons = append(reasons, limiter.ReasonMissingKey)
	}
	for _, r := range reasons {
		s.rejected[r] = counter(limiter.OutcomeRejected, r)
	}
	return s
}

// byCode are one route's or upstream's counters by status code, made when a
// code is first seen: there are 500 of them, and few ever occur.
type byCode struct {
	vec  *prometheus.CounterVec // all labels set but code
	seen [600]atomic.Pointer[prometheus.Counter]
}

const (
	slotOther = iota // below 100, where no status is
	slotError
)

func (c *byCode) counter(code int) prometheus.Counter {
	slot, label := slotOther, "other"
	switch {
	case code == proxy.UpstreamError:
		slot, label = slotError, "error"
	case code >= 100 && code <= 599:
		slot, label = code, ""
	}
	if known := c.seen[slot].Load(); known != nil {
		return *known
	}
	if label == "" {
		label = strconv.Itoa(code)
	}
	made := c.vec.WithLabelValues(label) // the same one whoever makes it
	c.seen[slot].Store(&made)
	return made
}
