package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// state collects what is read rather than counted. It keeps nothing between
// scrapes, so the series of a removed limit end with it.
type state struct {
	limits    func() []limiter.Status
	upstreams func() []proxy.UpstreamStatus
	store     func() (up bool, proxies int)
	expiries  func() map[string]time.Time
	clients   func() Connections
}

// Connections are those of clients. The names of the bounds that refuse them or
// cut them off are the values of a label: they must not come from a client.
type Connections struct {
	Open         int64
	Refused, Cut map[string]uint64 // since the start, by the field of [server]
}

var (
	queueDepth = prometheus.NewDesc("shapeproxy_queue_depth",
		"Requests waiting now, over all keys.", []string{"limit"}, nil)
	fleetQueueDepth = prometheus.NewDesc("shapeproxy_fleet_queue_depth",
		"Requests waiting over all proxies that share the limit, as each said so last.", []string{"limit"}, nil)
	queueCapacity = prometheus.NewDesc("shapeproxy_queue_capacity",
		"Requests that may wait in one key's queue.", []string{"limit"}, nil)
	queueOldestWait = prometheus.NewDesc("shapeproxy_queue_oldest_wait_seconds",
		"How long the request has waited that waits longest; 0 when none does.", []string{"limit"}, nil)
	limitKeys = prometheus.NewDesc("shapeproxy_limit_keys",
		"Keys that the limit remembers.", []string{"limit"}, nil)
	limitKeysEvicted = prometheus.NewDesc("shapeproxy_limit_keys_evicted_total",
		"Keys that the limit forgot for want of room.", []string{"limit"}, nil)
	storeUp = prometheus.NewDesc("shapeproxy_store_up",
		"Whether the store of shared limits answers.", nil, nil)
	fleetProxies = prometheus.NewDesc("shapeproxy_fleet_proxies",
		"Proxies that shared the store of limits when it answered last, this one included.", nil, nil)
	certificateExpiry = prometheus.NewDesc("shapeproxy_certificate_expiry_timestamp_seconds",
		"When the certificate ends that is shown for the domain, or from the file.", []string{"certificate"}, nil)
	effectiveRate = prometheus.NewDesc("shapeproxy_effective_rate",
		"Requests a second that the limit lets through now, by its own rate and by what its upstream says; 0 while it is paused.", []string{"limit"}, nil)
	paused = prometheus.NewDesc("shapeproxy_paused",
		"Whether the limit lets nothing through, as its upstream or an operator has asked for.", []string{"limit"}, nil)
	upstreamThrottled = prometheus.NewDesc("shapeproxy_upstream_throttled_total",
		"Requests that the upstream refused for there being too many.", []string{"upstream"}, nil)
	upstreamFieldsIgnored = prometheus.NewDesc("shapeproxy_upstream_fields_ignored_total",
		"Fields of the upstream about its limits that were malformed or contradicted others.", []string{"upstream"}, nil)
	upstreamInFlight = prometheus.NewDesc("shapeproxy_upstream_in_flight",
		"Requests at the upstream whose answers have not ended.", []string{"upstream"}, nil)
	upstreamHealthy = prometheus.NewDesc("shapeproxy_upstream_healthy",
		"Whether requests go to this address of the upstream: 0 while it is out or its circuit breaker is open.", []string{"upstream", "address"}, nil)
	upstreamRefused = prometheus.NewDesc("shapeproxy_upstream_refused_total",
		"Requests answered with 503 as no address of the upstream takes any, by reason.", []string{"upstream", "reason"}, nil)
	breakerState = prometheus.NewDesc("shapeproxy_breaker_state",
		"What the upstream's circuit breakers let through at its best address: 0 everything, 1 one request at a time, 2 nothing.", []string{"upstream"}, nil)
	connections = prometheus.NewDesc("shapeproxy_connections",
		"Open connections of clients.", nil, nil)
	connectionsRefused = prometheus.NewDesc("shapeproxy_connections_refused_total",
		"Connections that were closed before a byte was served, by the bound that they were beyond.", []string{"reason"}, nil)
	connectionsCut = prometheus.NewDesc("shapeproxy_connections_cut_total",
		"Connections that were cut for what their clients did, by the bound that they went beyond.", []string{"reason"}, nil)
)

func (s state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		queueDepth, fleetQueueDepth, queueCapacity, queueOldestWait, limitKeys, limitKeysEvicted, storeUp, fleetProxies, certificateExpiry, upstreamInFlight,
		upstreamHealthy, upstreamRefused, breakerState,
		connections, connectionsRefused, connectionsCut,
		effectiveRate, paused, upstreamThrottled, upstreamFieldsIgnored,
	} {
		ch <- d
	}
}

func (s state) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	for _, l := range s.limits() {
		send(limitKeys, prometheus.GaugeValue, float64(l.Keys), l.Name)
		send(limitKeysEvicted, prometheus.CounterValue, float64(l.Evicted), l.Name)
		send(paused, prometheus.GaugeValue, number(l.Paused != ""), l.Name)
		if l.Rate.Count > 0 {
			send(effectiveRate, prometheus.GaugeValue, l.EffectivePerSecond, l.Name)
		}
		if l.Queue > 0 {
			send(queueDepth, prometheus.GaugeValue, float64(l.Depth), l.Name)
			if l.Store == "redis" {
				send(fleetQueueDepth, prometheus.GaugeValue, float64(l.FleetDepth), l.Name)
			}
			send(queueCapacity, prometheus.GaugeValue, float64(l.Queue), l.Name)
			send(queueOldestWait, prometheus.GaugeValue, l.OldestWait.Seconds(), l.Name)
		}
	}
	if s.store != nil {
		if up, proxies := s.store(); proxies > 0 {
			send(storeUp, prometheus.GaugeValue, number(up))
			send(fleetProxies, prometheus.GaugeValue, float64(proxies))
		}
	}
	if s.expiries != nil {
		for name, at := range s.expiries() {
			send(certificateExpiry, prometheus.GaugeValue, float64(at.Unix()), name)
		}
	}
	c := s.clients()
	send(connections, prometheus.GaugeValue, float64(c.Open))
	for reason, n := range c.Refused {
		send(connectionsRefused, prometheus.CounterValue, float64(n), reason)
	}
	for reason, n := range c.Cut {
		send(connectionsCut, prometheus.CounterValue, float64(n), reason)
	}
	for _, u := range s.upstreams() {
		send(upstreamInFlight, prometheus.GaugeValue, float64(u.InFlight), u.Name)
		send(upstreamThrottled, prometheus.CounterValue, float64(u.Throttled), u.Name)
		send(upstreamFieldsIgnored, prometheus.CounterValue, float64(u.FieldsIgnored), u.Name)
		for _, a := range u.Addresses {
			send(upstreamHealthy, prometheus.GaugeValue, number(a.Healthy), u.Name, a.Address)
		}
		for _, r := range u.Refused {
			send(upstreamRefused, prometheus.CounterValue, float64(r.Count), u.Name, string(r.Reason))
		}
		if u.Guarded {
			send(breakerState, prometheus.GaugeValue, float64(u.Breaker), u.Name)
		}
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
