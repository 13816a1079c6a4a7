package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Site is what a Proxy serves: routes, and how clients are told apart and
// told about limits. It must not change once a Proxy has it.
type Site struct {
	Routes []*Route
	// Client finds the client behind trusted proxies from the address of the
	// connection and the lines of X-Forwarded-For, and reports whether the
	// peer itself is trusted. The address is invalid when it is unknown.
	Client func(remoteAddr string, forwardedFor []string) (client netip.Addr, peerTrusted bool)
	// Misdirected reports whether a TLS connection does not meet the rules for
	// clients' certificates that are in force by now; nil: all do. Its requests
	// are answered with 421, upon which clients make a new one.
	Misdirected func(*tls.ConnectionState) bool
	// RateLimitHeaders are put on every answer of a route with limits.
	RateLimitHeaders []Dialect
	Bounds           Bounds

	table *routeTable
}

// A Proxy is the handler in front: it picks a request's route, asks the
// route's Limiter, and forwards or refuses. It is safe for concurrent use.
type Proxy struct {
	site    atomic.Pointer[Site]
	tracer  atomic.Pointer[Tracer] // nil, or of nil: nobody follows
	observe Observer
	log     *slog.Logger
	buffers buffers
	// parkAfter is how long a request must have to wait to be parked.
	parkAfter time.Duration
	room      atomic.Int64   // what is left of unreadInAll
	kept      atomic.Int64   // of keptInAll
	running   sync.WaitGroup // one for each request, upgraded connections included
	tunnels   tunnels
	floods    atomic.Uint64 // see Floods
}

// New returns a Proxy that answers 404 until Serve gives it a Site.
func New(observe Observer, log *slog.Logger) *Proxy {
	p := &Proxy{observe: observe, log: log, buffers: newBuffers(), parkAfter: parkAfter}
	p.room.Store(unreadInAll)
	p.site.Store(&Site{table: &routeTable{mux: http.NewServeMux()}})
	return p
}

// Check reports what is wrong with a Site's patterns: invalid, equal or
// conflicting ones.
func (s *Site) Check() error {
	table, err := newRouteTable(s.Routes)
	s.table = table
	return err
}

// Serve makes s what requests see from now on. Requests that are under way end
// with the Site that they began with. It panics if s was not Checked.
func (p *Proxy) Serve(s *Site) {
	if s.table == nil {
		panic("proxy: Serve of a Site that was not checked")
	}
	p.site.Store(s)
}

// Wait returns when no request is under way, upgraded connections included.
func (p *Proxy) Wait() { p.running.Wait() }

// An exchange is one request and its answer.
type exchange struct {
	proxy  *Proxy
	site   *Site
	w      answer
	r      *http.Request
	to     target
	route  *Route
	body   *clientBody   // nil: the request has none
	keys   []limiter.Key // nil: it has not been asked for any
	permit limiter.Permit
	event  Event
	timed  context.Context // the request's, which the timeouts of the route and of the answer's body end

	hear     func(status int, header http.Header) (throttled bool) // nil: nobody does
	dispatch *dispatch                                             // once it is forwarded
	timer    *time.Timer                                           // of the route's timeout; nil: it has none
	repeats  bool                                                  // it may be sent again
	kept     share                                                 // of keptInAll
	span     Span                                                  // nil: not yet, or nobody follows

	peerTrusted bool
	upgrade     bool       // it asks to become a WebSocket
	before      *parked    // it comes back from the lot
	room        int64      // what the kernel was asked to take in of its body
	parked      bool       // it has gone to the lot, and is told of from there
	socket      *webSocket // it has become one
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.running.Add(1)
	defer p.running.Done()
	x := &exchange{proxy: p, site: p.site.Load(), r: r}
	began := time.Now()
	if before := comesBack(r); before != nil {
		p.running.Done() // as it was counted when it was parked
		x.before, x.site, x.room, began = before, before.site, before.room, before.event.Start
	}
	x.w = answer{ResponseWriter: w, final: x.finalFields, finalOnly: !r.ProtoAtLeast(1, 1)}
	x.event = Event{Start: began, Proto: r.Proto, Method: clip(r.Method, 32), Host: clip(r.Host, 256)}
	defer x.end()
	x.serve()
}

// serve walks a request once through the proxy.
func (x *exchange) serve() {
	r := x.r
	trim(r.Header)
	path, _, _ := strings.Cut(r.RequestURI, "?")
	x.event.Path = clip(path, 1024)
	if x.site.Client != nil {
		x.event.Client, x.peerTrusted = x.site.Client(r.RemoteAddr, r.Header["X-Forwarded-For"])
	}
	if r.ContentLength != 0 {
		conn := http.NewResponseController(x.w.ResponseWriter)
		if r.ProtoMajor == 1 {
			// Else net/http reads up to 256 KiB of the body before it sends
			// the head of an answer, and a slow client waits for its refusal.
			_ = conn.EnableFullDuplex()
		}
		if x.place() != nil {
			_ = conn.SetReadDeadline(time.Time{}) // see newHTTPServer
		}
		x.body = &clientBody{ReadCloser: r.Body}
		x.watchBody()
		// A copy, for net/http looks at the type of the body in its own request
		// to tell whether the connection can serve another one: with ours in
		// there, an unread rest of a body was read as the next request.
		in := *r
		in.Body = x.body
		x.r, r = &in, &in
	}

	if x.tooManyHeaders() {
		x.fail(http.StatusRequestHeaderFieldsTooLarge, "http_request_error", "the header has too many lines")
		return
	}
	x.watchAnswer()
	to, bad := readTarget(r)
	if bad != nil {
		if bad.status == http.StatusMethodNotAllowed {
			x.w.Header()["Allow"] = []string{"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"} // RFC 9110, section 15.5.6
		}
		x.fail(bad.status, "http_request_error", bad.detail)
		return
	}
	x.to = to
	if f := x.site.Misdirected; f != nil && r.TLS != nil && f(r.TLS) {
		x.w.Header().Set("Connection", "close") // HTTP/2 says it by GOAWAY
		x.fail(http.StatusMisdirectedRequest, "http_request_denied", "what is asked of clients' certificates has changed since this connection was made; make a new one")
		return
	}
	if e := r.Header.Get("Expect"); e != "" && !strings.EqualFold(e, "100-continue") {
		x.fail(http.StatusExpectationFailed, "http_request_error", "the only expectation that is met is 100-continue")
		return
	}

	found := x.site.table.find(r.Method, to)
	if found.route == nil {
		if found.status == http.StatusMethodNotAllowed {
			x.w.Header()["Allow"] = found.header["Allow"]
			x.fail(found.status, "http_request_denied", "no route takes this method here")
		} else {
			x.fail(found.status, "destination_not_found", "no route matches")
		}
		return
	}
	x.route = found.route
	x.event.Route = x.route.Match
	if most := x.route.MaxBodyBytes; most > 0 && x.body != nil {
		if r.ContentLength > most {
			x.look(found)
			x.fail(http.StatusRequestEntityTooLarge, "http_request_error", "the body is larger than this route takes")
			return
		}
		// Not told of the answer: it would write to its header, and this is read
		// by another goroutine than answers. See lastOnConnection.
		x.body.ReadCloser = http.MaxBytesReader(nil, x.body.ReadCloser, most)
	}
	if refusal := x.route.Upstream.refuses(); refusal != nil && x.before == nil && !(x.held() && refusal.reason == ReasonBreakerOpen) {
		x.look(found) // no turn is spent on it
		x.unavailable(refusal)
		return
	}
	// However it ends, a panic included, what it holds is given back.
	defer func() { x.permit.Release() }()
	if x.admitted(found) {
		x.forward()
	}
}

// trim takes the white space around values away that net/http leaves there:
// behind an empty continuation line, and in HTTP/2. The upstream does not see
// it, so one key with more and more of it would be as many keys to a limit.
func trim(h http.Header) {
	for _, values := range h {
		for i, v := range values {
			if t := strings.Trim(v, " \t"); len(t) != len(v) {
				values[i] = t
			}
		}
	}
}
