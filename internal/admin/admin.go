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
	"github.com/shapeproxy/shapeproxy/shaping"
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
	// Change changes fields of a limit until the next reload, as if the file had
	// said so, and says what is wrong with them; then nothing has changed. Pause
	// stops its queue, for a time or with 0 until Resume; the error says why there
	// is nothing to pause. They are asked for limits that there are.
	Change func(limit string, fields map[string]any) (problems []string)
	Pause  func(limit string, d time.Duration) error
	Resume func(limit string) error
	// Busiest is at most n of the keys that a limit is asked about most, Key how
	// one stands, and Reset makes it as good as new. A key is known by its value,
	// of several parts with their lengths before them.
	Busiest func(limit string, n int) ([]limiter.Busy, error)
	Key     func(limit, key string) (limiter.Decision, error)
	Reset   func(limit, key string) error
	// Waiting is at most n of those who wait in a queue; the error says why nobody
	// can.
	Waiting func(limit string, n int) ([]shaping.Waiting, error)
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
	// Bodies are a line of JSON: one that does not come holds nothing up. What has
	// none may take its time, as events and profiles do. The server's own
	// ReadTimeout is for whom the guard turns away, and whom net/http does.
	var until time.Time
	if r.ContentLength != 0 {
		until = time.Now().Add(bodyTimeout)
	}
	_ = http.NewResponseController(w).SetReadDeadline(until)
	var allow []string
	for i := range endpoints {
		e := &endpoints[i]
		name, key, ok := e.match(r.URL.Path)
		if !ok {
			continue
		}
		if r.Method == e.method || r.Method == http.MethodHead && e.method == http.MethodGet {
			var l limitJSON
			if name != "" {
				if l, ok = a.limit(name); !ok {
					noLimit(w)
					return
				}
			}
			e.serve(a, w, r, l, key)
			return
		}
		if allow = append(allow, e.method); e.method == http.MethodGet {
			allow = append(allow, http.MethodHead)
		}
	}
	file := a.profile(r.URL.Path)
	if page, ok := pageFiles[r.URL.Path]; ok {
		file = page.ServeHTTP
	}
	if file != nil && allow == nil {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			file(w, r)
			return
		}
		allow = []string{http.MethodGet, http.MethodHead}
	}
	if allow == nil {
		writeError(w, http.StatusNotFound, "there is nothing at this path; GET / is the live page, GET /api/openapi.json lists the calls")
		return
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	writeError(w, http.StatusMethodNotAllowed, "this path takes "+strings.Join(allow, ", "))
}

// An endpoint is one call. In its path, {name} is one segment, which names a limit
// that there is, and {key} at the end all that follows.
type endpoint struct {
	method, path string
	serve        func(a *Admin, w http.ResponseWriter, r *http.Request, l limitJSON, key string)
}

// plain is for what takes nothing from its path.
func plain(f func(*Admin, http.ResponseWriter, *http.Request)) func(*Admin, http.ResponseWriter, *http.Request, limitJSON, string) {
	return func(a *Admin, w http.ResponseWriter, r *http.Request, _ limitJSON, _ string) { f(a, w, r) }
}

var endpoints = []endpoint{
	{"GET", "/healthz", plain((*Admin).healthz)},
	{"GET", "/readyz", plain((*Admin).readyz)},
	{"GET", "/metrics", plain(func(a *Admin, w http.ResponseWriter, r *http.Request) { a.opts.Metrics.ServeHTTP(w, r) })},
	{"GET", "/api/openapi.json", plain((*Admin).getOpenAPI)},
	{"GET", "/api/limits", plain((*Admin).getLimits)},
	{"GET", "/api/limits/{name}", (*Admin).getLimit},
	{"PATCH", "/api/limits/{name}", (*Admin).patchLimit},
	{"POST", "/api/limits/{name}/pause", (*Admin).postPause},
	{"POST", "/api/limits/{name}/resume", (*Admin).postResume},
	{"GET", "/api/limits/{name}/keys", (*Admin).getKeys},
	{"GET", "/api/limits/{name}/keys/{key}", (*Admin).getKey},
	{"DELETE", "/api/limits/{name}/keys/{key}", (*Admin).deleteKey},
	{"GET", "/api/limits/{name}/waiting", (*Admin).getWaiting},
	{"GET", "/api/limits/{name}/refusals", (*Admin).getRefusals},
	{"POST", "/api/reload", plain((*Admin).postReload)},
	{"GET", "/api/events", plain((*Admin).getEvents)},
}

// match compares a path as a whole.
func (e *endpoint) match(path string) (name, key string, ok bool) {
	before, after, named := strings.Cut(e.path, "{name}")
	if !named {
		return "", "", path == e.path
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", "", false
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		name, rest = rest[:i], rest[i:]
	} else {
		name, rest = rest, ""
	}
	if head, keyed := strings.CutSuffix(after, "{key}"); keyed {
		key, ok = strings.CutPrefix(rest, head)
		return name, key, ok && name != "" && key != ""
	}
	return name, "", rest == after && name != ""
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
