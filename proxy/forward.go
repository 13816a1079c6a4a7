package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// forward sends the request upstream and its answer back.
func (x *exchange) forward() {
	r := x.r
	ctx, cut := context.WithCancelCause(r.Context())
	defer cut(nil)
	x.timed, r = ctx, r.WithContext(ctx)
	if x.route.Timeout > 0 {
		x.timer = time.AfterFunc(x.route.Timeout, func() { cut(errRouteTimeout) })
		defer x.timer.Stop()
	}
	up := x.route.Upstream
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
	to := dispatch{up: up, body: x.body, leave: x.leaveBody, cut: cut, held: x.held(), gone: x.clientGone}
	x.dispatch = &to
	defer to.done()
	x.kept.all = &x.proxy.kept
	defer x.kept.end()
	reverse := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = x.to.forwarded(up.scheme(), up.opts.BasePath, x.route.StripPrefix)
			x.rewrite(pr.In, pr.Out)
		},
		Transport:      (*sending)(x),
		ModifyResponse: x.answered,
		ErrorHandler:   x.failed,
		BufferPool:     x.proxy.buffers,
		ErrorLog:       discard,
	}
	reverse.ServeHTTP(&x.w, r)
}

// leaveBody ends a read of the request's body that waits for the client, for
// good. The answer is not touched.
func (x *exchange) leaveBody() {
	switch {
	case x.body.ended.Load():
	case x.r.ProtoMajor == 2:
		x.body.Close()
	default:
		// Closing would read on. What is left of the body ends the connection.
		_ = http.NewResponseController(x.w.ResponseWriter).SetReadDeadline(time.Unix(1, 0))
	}
}

// held reports whether the request comes through the upstream's Gate.
func (x *exchange) held() bool { return x.route.Held && x.route.Upstream.opts.Gate != nil }

// answered is called with the head of the upstream's answer.
func (x *exchange) answered(res *http.Response) error {
	if x.event.UpstreamStatus == 0 { // else it has waited for another turn
		x.event.UpstreamDuration = time.Since(x.event.Departed)
	}
	if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
		return errStatus // "000" and "099" pass net/http's HTTP/2
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		x.becomeSocket(res)
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
	if errors.Is(err, errClientLeft) {
		x.abandon()
	}
	if x.brokenBody() {
		return
	}
	if unavailable := (*unavailableError)(nil); errors.As(err, &unavailable) {
		x.event.Upstream, x.event.Departed, x.event.UpstreamDuration = "", time.Time{}, 0 // it never left
		x.unavailable(unavailable)
		return
	}
	switch {
	case errors.Is(err, errLongHead):
		x.fail(http.StatusRequestHeaderFieldsTooLarge, "http_request_error", errLongHead.Error())
		return
	case errors.Is(err, errOnlyTwo):
		x.fail(http.StatusBadGateway, "http_upgrade_failed", errOnlyTwo.Error())
		return
	}
	x.dispatch.failed(err)
	f := explain(err, x.timedOut())
	if f.status == http.StatusGatewayTimeout {
		x.permit.Report(limiter.Answer{Latency: x.event.UpstreamDuration, Late: true})
	}
	x.event.UpstreamStatus = UpstreamError
	x.proxy.log.Warn("no answer from upstream", "upstream", x.event.Upstream, "route", x.event.Route,
		"kind", f.kind, "error", err)
	x.fail(f.status, f.kind, f.detail)
}

// saysThrottled reports whether an answer says that there are too many requests.
func saysThrottled(res *http.Response) bool {
	return res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable && res.Header["Retry-After"] != nil
}

// brokenBody answers a request that failed by its client's fault, and reports
// whether it did.
func (x *exchange) brokenBody() bool {
	switch fault := x.body.fault(); {
	case tooLarge(fault):
		x.fail(http.StatusRequestEntityTooLarge, "http_request_error", "the body is larger than this route takes")
	case fault == errSlowBody, x.body != nil && x.body.patience.gone():
		// net/http ends the context too, and that may be seen first.
		x.fail(http.StatusRequestTimeout, "http_request_error", "the body comes too slowly")
	case x.r.Context().Err() != nil:
		x.abandon()
	case fault != nil:
		x.fail(http.StatusBadRequest, "http_request_error", "the body is broken or stops before its end")
	default:
		return false
	}
	return true
}

// timedOut reports whether the route's timeout ended the exchange.
func (x *exchange) timedOut() bool {
	return x.timed != nil && errors.Is(context.Cause(x.timed), errRouteTimeout)
}

// errRouteTimeout is the cause with which a route's timeout ends a request.
var errRouteTimeout = errors.New("the route's timeout is over")
