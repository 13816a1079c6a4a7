package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"runtime/debug"
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
	// RateLimitHeaders are put on every answer of a route with limits.
	RateLimitHeaders []Dialect

	table *routeTable
}

// A Proxy is the handler in front: it picks a request's route, asks the
// route's Limiter, and forwards or refuses. It is safe for concurrent use.
type Proxy struct {
	site    atomic.Pointer[Site]
	observe Observer
	log     *slog.Logger
	buffers buffers
	// parkAfter is how long a request must have to wait to be parked.
	parkAfter time.Duration
	room      atomic.Int64   // what is left of unreadInAll
	running   sync.WaitGroup // one for each request, upgraded connections included
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
	body   *clientBody // nil: the request has none
	permit limiter.Permit
	event  Event
	timed  context.Context // the request's, with the route's timeout

	peerTrusted bool
	upgrade     bool    // it asks to become a WebSocket
	before      *parked // it comes back from the lot
	room        int64   // what the kernel was asked to take in of its body
	parked      bool    // it has gone to the lot, and is told of from there
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
		if r.ProtoMajor == 1 {
			// Else net/http reads up to 256 KiB of the body before it sends
			// the head of an answer, and a slow client waits for its refusal.
			_ = http.NewResponseController(x.w.ResponseWriter).EnableFullDuplex()
		}
		x.body = &clientBody{ReadCloser: r.Body}
		// A copy, for net/http looks at the type of the body in its own request
		// to tell whether the connection can serve another one: with ours in
		// there, an unread rest of a body was read as the next request.
		in := *r
		in.Body = x.body
		x.r, r = &in, &in
	}

	to, bad := readTarget(r)
	if bad != nil {
		x.fail(bad.status, "http_request_error", bad.detail)
		return
	}
	x.to = to
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
		x.body.ReadCloser = http.MaxBytesReader(x.w.ResponseWriter, x.body.ReadCloser, most)
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

// admitted asks the route's limits, and answers the request if it may not go
// on.
func (x *exchange) admitted(found *lookup) bool {
	x.permit.Allowed = true
	if x.route.Limiter == nil {
		return x.stillThere()
	}
	keys, err := x.identify(found)
	if err != nil {
		x.fail(http.StatusBadRequest, "http_request_error", err.Error())
		return false
	}
	x.makeRoom()
	switch {
	case x.before != nil:
		x.permit, err = x.before.permit, x.before.err
	case x.park(keys):
		x.room = 0 // it has gone along
		return false
	default:
		x.permit, err = x.route.Limiter.Acquire(x.r.Context(), limiter.Request{Keys: keys, Gone: x.clientGone})
		x.proxy.observe.Decided(x.route.Match, x.permit.All)
	}
	x.endRoom()
	x.event.decided(x.permit)
	switch {
	case err != nil && x.clientLeft(err):
		x.abandon()
	case err != nil:
		x.proxy.log.Error("a limiter failed", "route", x.route.Match, "error", err)
		x.fail(http.StatusInternalServerError, "proxy_internal_error", "the limits could not be asked")
	case !x.permit.Allowed:
		x.refuse(x.permit)
	default:
		return x.stillThere()
	}
	return false
}

// look has the answer to a request that its limits are not asked about tell how
// they stand.
func (x *exchange) look(found *lookup) {
	looker, ok := x.route.Limiter.(interface {
		Look(limiter.Request) limiter.Permit
	})
	if !ok {
		return
	}
	if keys, err := x.identify(found); err == nil {
		x.permit = looker.Look(limiter.Request{Keys: keys})
	}
}

func (x *exchange) identify(found *lookup) ([]limiter.Key, error) {
	return x.route.Identify(Identity{
		Request: x.r, Client: x.event.Client, Host: x.to.host,
		Route: x.route.Match, PathValue: found.shadow.PathValue,
	})
}

// unreadKept is how much of the unread body of a waiting request the kernel is
// asked to take in: the end of the connection comes behind it. Of a body that
// is larger, it is not seen while it waits that its client leaves.
const unreadKept = 1<<20 + 64<<10

// unreadInAll bounds what the kernel is asked to take in for all that wait. It
// takes twice the memory, of which all connections of the machine have a share
// (net.ipv4.tcp_mem): a long queue of uploads must not take it from the rest.
const unreadInAll = 128 << 20

// makeRoom does so for a body of HTTP/1 that may have to wait.
func (x *exchange) makeRoom() {
	at, ok := x.r.Context().Value(connKey{}).(*place)
	if !ok || x.body == nil || x.r.ProtoMajor != 1 || x.before != nil {
		return
	}
	n := int64(unreadKept)
	if length := x.r.ContentLength; length > 0 && length < n {
		n = min(n, length+64<<10)
	}
	if x.proxy.room.Add(-n) < 0 {
		x.proxy.room.Add(n)
		return
	}
	x.room = n
	roomForBody(at.conn, int(n))
}

// endRoom ends what makeRoom did.
func (x *exchange) endRoom() {
	if x.room > 0 {
		roomForBody(x.r.Context().Value(connKey{}).(*place).conn, 0)
		x.proxy.room.Add(x.room)
		x.room = 0
	}
}

// clientLeft reports whether err, from waiting, says that the client left.
func (x *exchange) clientLeft(err error) bool {
	return x.r.Context().Err() != nil || errors.Is(err, limiter.ErrClientGone)
}

// stillThere looks at the client once more before its request is sent. A
// request without a body that did not wait need not be looked at: net/http
// reads on behind it, and would have ended its context.
func (x *exchange) stillThere() bool {
	if x.r.Context().Err() != nil || (x.body != nil || x.event.Waited > 0) && x.clientGone() {
		x.abandon()
		return false
	}
	return true
}

// clientGone asks the kernel whether an HTTP/1 client has left. HTTP/2 clients
// leave by a frame, which ends the context.
func (x *exchange) clientGone() bool {
	if x.r.Context().Err() != nil {
		return true
	}
	at, ok := x.r.Context().Value(connKey{}).(*place)
	return ok && x.r.ProtoMajor == 1 && hasLeft(at.conn)
}

// abandon ends a request whose client has gone, or which is cut at shutdown.
func (x *exchange) abandon() {
	if cause := context.Cause(x.r.Context()); errors.Is(cause, limiter.ErrShutdown) {
		x.shutdown()
		return
	}
	x.event.Reason = limiter.ReasonClientGone
	panic(http.ErrAbortHandler) // nobody is there for an answer
}

// shutdown answers a request that the proxy had no time for before it stopped.
func (x *exchange) shutdown() {
	p := x.permit
	p.Allowed, p.Reason = false, limiter.ReasonShutdown
	p.Status, p.RetryAfter = http.StatusServiceUnavailable, time.Second
	x.refuse(p)
}

// forward sends the request upstream and its answer back.
func (x *exchange) forward() {
	r := x.r
	if x.route.Timeout > 0 {
		ctx, cancel := context.WithTimeoutCause(r.Context(), x.route.Timeout, errRouteTimeout)
		defer cancel()
		x.timed, r = ctx, r.WithContext(ctx)
	}
	up := x.route.Upstream
	url, ok := x.to.forwarded(up.scheme(), up.opts.Host, up.opts.BasePath, x.route.StripPrefix)
	if !ok {
		x.fail(http.StatusBadRequest, "http_request_error", "the path begins with two slashes and has characters that must be percent-encoded")
		return
	}
	x.upgrade = wantsWebSocket(x.r) && up.opts.Scheme != "h2c"
	if !x.upgrade {
		// Else httputil.ReverseProxy judges it, and what it does not like would
		// be the upstream's fault.
		delete(x.r.Header, "Upgrade")
	}

	x.event.Upstream = up.opts.Name
	if x.event.Departed = x.permit.Departed(); x.event.Departed.IsZero() {
		x.event.Departed = time.Now()
	}
	up.inFlight.Add(1)
	defer up.inFlight.Add(-1)
	reverse := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = url
			x.rewrite(pr.In, pr.Out)
		},
		Transport:      sender{base: up.base, body: x.body},
		ModifyResponse: x.answered,
		ErrorHandler:   x.failed,
		BufferPool:     x.proxy.buffers,
		ErrorLog:       discard,
	}
	reverse.ServeHTTP(&x.w, r)
}

// answered is called with the head of the upstream's answer.
func (x *exchange) answered(res *http.Response) error {
	x.event.UpstreamDuration = time.Since(x.event.Departed)
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols && !x.upgrade:
		return errUnaskedUpgrade
	case res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols:
		return errStatus // "000" and "099" are three digits, and so pass net/http
	}
	x.event.UpstreamStatus = res.StatusCode
	if len(res.Trailer) > 0 && x.r.Method != http.MethodHead {
		// HTTP/2 has trailers beside a length; HTTP/1.1 behind chunks only.
		res.Header.Del("Content-Length")
	}
	return nil
}

// failed is called when the upstream gave no answer.
func (x *exchange) failed(_ http.ResponseWriter, _ *http.Request, err error) {
	if x.w.status == http.StatusSwitchingProtocols {
		return // a side of a new tunnel broke
	}
	if x.event.UpstreamStatus == 0 {
		x.event.UpstreamDuration = time.Since(x.event.Departed)
	}
	switch fault := x.body.fault(); {
	case tooLarge(fault):
		x.fail(http.StatusRequestEntityTooLarge, "http_request_error", "the body is larger than this route takes")
	case x.r.Context().Err() != nil:
		x.abandon()
	case fault != nil:
		x.fail(http.StatusBadRequest, "http_request_error", "the body is broken or stops before its end")
	default:
		f := explain(err, x.timedOut())
		x.event.UpstreamStatus = UpstreamError
		x.proxy.log.Warn("no answer from upstream", "upstream", x.event.Upstream, "route", x.event.Route,
			"kind", f.kind, "error", err)
		x.fail(f.status, f.kind, f.detail)
	}
}

// timedOut reports whether the route's timeout ended the exchange.
func (x *exchange) timedOut() bool {
	return x.timed != nil && errors.Is(context.Cause(x.timed), errRouteTimeout)
}

// end tells the story of the request, also when it ends in a panic: an answer
// that cannot be completed is cut by http.ErrAbortHandler.
func (x *exchange) end() {
	e := &x.event
	p := recover()
	if x.parked {
		return
	}
	x.endRoom()
	if p != nil && p != any(http.ErrAbortHandler) {
		x.proxy.log.Error("a request panicked", "route", e.Route, "panic", p, "stack", string(debug.Stack()))
		e.Error = "proxy_internal_error"
		if x.w.status == 0 {
			p = nil
			x.fail(http.StatusInternalServerError, "proxy_internal_error", "")
		} else {
			p = http.ErrAbortHandler
		}
	}
	e.Status = x.w.status
	if p != nil {
		x.explainCut()
	}
	e.Received, e.Sent = x.body.received()+x.w.received.Load(), x.w.sent.Load()
	if x.body != nil && !x.body.ended.Load() && x.r.ProtoMajor == 1 {
		// net/http reads on for a while before it closes, lest a reset should
		// overtake the answer.
		_ = http.NewResponseController(x.w.ResponseWriter).SetReadDeadline(time.Now().Add(linger))
	}
	e.Duration = time.Since(e.Start)
	x.proxy.observe.Done(e)
	if p != nil {
		panic(p)
	}
}

// linger is how long a client may go on to send the body of a request that has
// been answered.
const linger = 5 * time.Second

// explainCut says of an answer that was cut, or never given, who is to blame.
func (x *exchange) explainCut() {
	e := &x.event
	cause := context.Cause(x.r.Context())
	switch {
	case errors.Is(cause, limiter.ErrShutdown):
		e.Reason = limiter.ReasonShutdown
	case e.Reason == limiter.ReasonClientGone, x.w.failed, cause != nil:
		e.Status = StatusClientGone
	case x.timedOut():
		e.Error = "http_response_timeout"
	case e.Error == "":
		e.Error = "http_response_incomplete"
	}
}

// dryRun lists what limits in dry run would have done other than admit.
func dryRun(all []limiter.Decision) string {
	var b strings.Builder
	for i := range all {
		d := &all[i]
		if !d.DryRun || d.Peeked || d.Allowed && !d.Queued {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(d.Policy)
		if d.Allowed {
			b.WriteString(":delayed")
		} else {
			b.WriteString(":" + string(d.Reason))
		}
	}
	return b.String()
}

// clip bounds what a client can put into an Event.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}
