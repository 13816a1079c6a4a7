// Package metrics tells Prometheus what the proxy does. It is the only
// importer of its client library.
//
// Nothing that a client sends becomes the value of a label: every series is of
// a route, a limit or an upstream that Configure was told, so the number of
// series is bounded by the configuration.
package metrics

import (
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// Options says where the gauges come from. All fields but Log are needed.
type Options struct {
	Version  string // of the program, as the build info tells it
	Revision string // the commit that it was built from

	// Limits and Upstreams say how things stand; they are asked at each scrape,
	// must be safe for concurrent use and name each limit and upstream once.
	Limits    func() []limiter.Status
	Upstreams func() []proxy.UpstreamStatus
	// Connections says the same of clients' connections.
	Connections func() Connections

	// Store reports whether the store of shared limits answers, and how many
	// proxies shared it when it did last: none if there is no store. It may be nil.
	Store func() (up bool, proxies int)

	// Expiries is when each certificate ends, by the domain or the file that it
	// is from; nil: there is none.
	Expiries func() map[string]time.Time

	Log *slog.Logger // for scrapes that fail; nil means slog.Default
}

// Metrics is a proxy.Observer that counts, and the page that Prometheus reads.
// It is safe for concurrent use.
type Metrics struct {
	log      *slog.Logger
	registry *prometheus.Registry

	requests          *prometheus.CounterVec
	duration          *prometheus.HistogramVec
	decisions         *prometheus.CounterVec
	queueWait         *prometheus.HistogramVec
	upstreamDuration  *prometheus.HistogramVec
	upstreamResponses *prometheus.CounterVec
	retries           *prometheus.CounterVec
	storeDuration     prometheus.Histogram

	reloadOK   prometheus.Gauge
	reloadTime prometheus.Gauge

	configuring sync.Mutex // one Configure at a time
	known       atomic.Pointer[series]
}

var _ proxy.Observer = (*Metrics)(nil)

// A request may wait for max_wait, 30 s unless set, and then be served.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	storeBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
	waitBuckets    = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}
)

// New returns Metrics that know no route, limit or upstream yet.
func New(opts Options) *Metrics {
	m := &Metrics{
		log:      opts.Log,
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shapeproxy_requests_total",
			Help: "Requests whose answer has ended, by route and status code; 499 when the client left.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shapeproxy_request_duration_seconds",
			Help:    "Time from a request's head to the end of its answer, waiting included.",
			Buckets: requestBuckets,
		}, []string{"route"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shapeproxy_limit_decisions_total",
			Help: "What limits decided: admitted at once, queued and then released, rejected, or gone: left while waiting.",
		}, []string{"limit", "decision", "reason"}),
		queueWait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shapeproxy_queue_wait_seconds",
			Help:    "How long released requests waited in the queue; 0 for those that passed at once.",
			Buckets: waitBuckets,
			// Native too, for servers that scrape it: waits of milliseconds and of
			// minutes at the same relative resolution.
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  160,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"limit"}),
		upstreamDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shapeproxy_upstream_duration_seconds",
			Help:    "Time from a request's release to the head of the upstream's answer, or to the failure.",
			Buckets: requestBuckets,
		}, []string{"upstream"}),
		upstreamResponses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shapeproxy_upstream_responses_total",
			Help: "What upstreams answered, by status code; error when there was no answer, 499 when the client left before it.",
		}, []string{"upstream", "code"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "shapeproxy_retries_total",
			Help: "Requests that were sent again with another turn, by why the try before came to nothing.",
		}, []string{"reason"}),
		storeDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "shapeproxy_store_duration_seconds",
			Help:    "Time that the store of shared limits took for an answer that came in time.",
			Buckets: storeBuckets,
		}),
		reloadOK: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "shapeproxy_config_last_reload_successful",
			Help: "Whether the last attempt to load the configuration succeeded.",
		}),
		reloadTime: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "shapeproxy_config_last_reload_success_timestamp_seconds",
			Help: "When the configuration was last loaded successfully, in Unix time.",
		}),
	}
	if m.log == nil {
		m.log = slog.Default()
	}
	for _, reason := range proxy.RetryReasons {
		m.retries.WithLabelValues(reason)
	}
	m.known.Store(&series{})
	m.Configure(nil, nil, nil)

	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "shapeproxy_build_info",
		Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{
			"version": opts.Version, "revision": opts.Revision, "goversion": runtime.Version(),
		},
	})
	build.Set(1)
	m.registry.MustRegister(
		m.requests, m.duration, m.decisions, m.queueWait, m.upstreamDuration, m.upstreamResponses, m.retries, m.storeDuration,
		m.reloadOK, m.reloadTime, build,
		state{opts.Limits, opts.Upstreams, opts.Store, opts.Expiries, opts.Connections},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Reloaded tells whether the configuration could be loaded, at the start and
// at each reload.
func (m *Metrics) Reloaded(ok bool) {
	if !ok {
		m.reloadOK.Set(0)
		return
	}
	m.reloadOK.Set(1)
	m.reloadTime.SetToCurrentTime()
}

// StoreAnswered counts an answer of the store of shared limits.
func (m *Metrics) StoreAnswered(d time.Duration) { m.storeDuration.Observe(d.Seconds()) }

// Handler answers a scrape. More than a few at once get 503.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.log.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError, // one bad gauge must not hide the rest
		MaxRequestsInFlight: 8,
	})
}
