// Package admin is what the operator looks at, on a listener of its own:
// health, metrics, the API and the live page. It watches the proxy and never
// stands in its way.
package admin

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// Options says what an Admin shows and to whom. Metrics, Limits, Upstreams,
// Tally and Reload are needed.
type Options struct {
	Listen string   // the address it is served on, as configured: a Host it answers to
	Hosts  []string // further Host names that it answers to
	Token  string   // asked for everywhere but /healthz and /readyz; empty: not asked for
	Pprof  bool     // serve Go's profiles at /debug/pprof/

	Metrics http.Handler // answers /metrics

	// Limits and Upstreams say how things stand, in the file's order; they are
	// asked each second and must be safe for concurrent use.
	Limits    func() []limiter.Status
	Upstreams func() []proxy.UpstreamStatus
	// Tally has what the limits decided.
	Tally *Tally
	// Reload loads the configuration as SIGHUP does. With problems, everything
	// is as it was. Each is one line. Two calls at a time must be safe.
	Reload func() (problems, warnings []string)
	// Uncertified names the domains whose certificates are yet to come; nil: none
	// are obtained. The proxy is not ready while there are such.
	Uncertified func() []string

	Log *slog.Logger // nil means slog.Default
}

// An Admin answers the admin listener's requests. It is safe for concurrent
// use.
//
// Answers have no time limit of their own but those of /api/events, which
// never end by themselves: each event must be taken within some seconds. They
// end when Run does, so that a server can be shut down.
type Admin struct {
	opts  Options
	log   *slog.Logger
	guard atomic.Pointer[guard]
	ready atomic.Bool

	mu          sync.Mutex
	tracks      map[string]*track        // the last minute of each limit
	last        snapshot                 // as of the last tick
	subscribers map[chan []byte]struct{} // nil once Run has ended; sent to under mu only
}

// New returns an Admin that is not ready yet.
func New(opts Options) *Admin {
	a := &Admin{
		opts:        opts,
		log:         opts.Log,
		tracks:      make(map[string]*track),
		last:        snapshot{Limits: []liveLimit{}, Upstreams: []liveUpstream{}},
		subscribers: make(map[chan []byte]struct{}),
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	a.Admit(opts.Hosts, opts.Token)
	return a
}

// Admit changes who may ask, by the Host names and the token of Options, from
// the next request on.
func (a *Admin) Admit(hosts []string, token string) {
	a.guard.Store(newGuard(a.opts.Listen, hosts, token))
}

// SetReady says whether the proxy takes requests: not while it starts or
// drains.
func (a *Admin) SetReady(ready bool) { a.ready.Store(ready) }

// Handler is the whole of the admin listener.
//
// Paths are compared as a whole, decoded and never cleaned, so that
// /healthz/../api/limits is not found rather than let past the token.
func (a *Admin) Handler() http.Handler { return http.HandlerFunc(a.serve) }

func (a *Admin) serve(w http.ResponseWriter, r *http.Request) {
	setSecurityHeaders(w.Header())
	if refused := a.guard.Load().check(r); refused != nil {
		refused.write(w)
		return
	}
	if r.ContentLength != 0 {
		// Bodies are a line of JSON: one that does not come holds nothing up.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	}
	get, post := a.route(r.URL.Path)
	allow := "GET, HEAD"
	switch {
	case get == nil && post == nil:
		writeError(w, http.StatusNotFound, "there is nothing at this path; GET / is the live page, GET /api/limits the limits")
		return
	case get != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		get(w, r)
		return
	case post != nil && r.Method == http.MethodPost:
		post(w, r)
		return
	case get == nil:
		allow = "POST"
	}
	w.Header().Set("Allow", allow)
	writeError(w, http.StatusMethodNotAllowed, "this path takes "+allow)
}

// route finds what answers GET and what answers POST at path.
func (a *Admin) route(path string) (get, post http.HandlerFunc) {
	switch path {
	case "/healthz":
		return a.healthz, nil
	case "/readyz":
		return a.readyz, nil
	case "/metrics":
		return a.opts.Metrics.ServeHTTP, nil
	case "/api/limits":
		return a.getLimits, nil
	case "/api/events":
		return a.getEvents, nil
	case "/api/reload":
		return nil, a.postReload
	}
	if name, ok := limitPath(path); ok {
		return func(w http.ResponseWriter, _ *http.Request) { a.getLimit(w, name) }, nil
	}
	if h := a.profile(path); h != nil {
		return h, nil
	}
	if file, ok := pageFiles[path]; ok {
		return file.ServeHTTP, nil
	}
	return nil, nil
}

// bodyTimeout is how long the body of a call may take.
const bodyTimeout = 10 * time.Second

func (a *Admin) healthz(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "ok\n")
}

func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	why := a.unready()
	if why == "" {
		writeText(w, http.StatusOK, "ok\n")
		return
	}
	writeText(w, http.StatusServiceUnavailable, why+"\n")
}

// unready says why the proxy does not take requests, or not all; "" if it does.
func (a *Admin) unready() string {
	if !a.ready.Load() {
		return "starting or draining"
	}
	if a.opts.Uncertified == nil {
		return ""
	}
	if domains := a.opts.Uncertified(); len(domains) > 0 {
		return "no certificate yet for " + strings.Join(domains, ", ")
	}
	return ""
}
