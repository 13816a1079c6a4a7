package proxy

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/h1"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// A RetryPolicy says which requests are sent to their upstream again, each time
// with another turn: those that it throttled, and those that a kept connection
// was closed under before a byte of an answer came. A queue must have held the
// request, which it goes back to. What asks for a WebSocket, and gRPC, is sent
// once.
type RetryPolicy struct {
	Most int   // how often one request is sent again; 0: never
	Any  bool  // also those whose method is neither safe nor idempotent
	Body int64 // a body of at most so many bytes is kept to be sent again
}

// Reasons for which a request is sent again.
const (
	RetryThrottled = "throttled"         // the upstream refused it for there being too many
	RetryLost      = "connection_closed" // a kept connection ended under it, and no byte was answered
)

// RetryReasons are all of them.
var RetryReasons = [...]string{RetryThrottled, RetryLost}

// A Retry is a try at sending a request that came to nothing, and was followed by
// another.
type Retry struct {
	Reason   string
	Status   int       // as of Event.UpstreamStatus
	Departed time.Time // as of Event
	Duration time.Duration
}

// A budget bounds the retries of an upstream to a tenth of the requests, so that
// they are never what keeps it overloaded: as the retry budgets of Finagle and
// Linkerd, and the throttling of gRPC (A6). What is not used adds up to a hundred,
// which is there to begin with.
type budget struct{ spent atomic.Int64 } // in tenths of a retry

const (
	retryCost  = 10
	budgetMost = 100 * retryCost
)

// earn counts a request.
func (b *budget) earn() {
	if b.spent.Load() > 0 {
		b.spent.Add(-1)
	}
}

// spend takes a retry, if there is one left.
func (b *budget) spend() bool {
	if b.spent.Add(retryCost) > budgetMost {
		b.spent.Add(-retryCost)
		return false
	}
	return true
}

func (b *budget) giveBack() { b.spent.Add(-retryCost) }

// mayRepeat reports whether the request may be sent more than once (RFC 9110,
// section 9.2.2).
func (x *exchange) mayRepeat() bool {
	p := &x.route.Retry
	if p.Most == 0 || x.r.ContentLength > p.Body || isGRPC(x.r) || wantsWebSocket(x.r) {
		return false
	}
	switch x.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return p.Any
}

// A sending is the RoundTripper of httputil.ReverseProxy: a dispatch for each turn
// that the request gets.
type sending exchange

// RoundTrip implements http.RoundTripper. A further try of which nothing is sent
// is as if it had not been: the client gets the upstream's answer to the last one.
func (s *sending) RoundTrip(req *http.Request) (*http.Response, error) {
	x, body := (*exchange)(s), req.Body
	up := x.route.Upstream
	up.retries.earn()
	x.keepBody()
	var last struct { // try
		res *http.Response
		err error
	}
	for {
		if x.route.Ask != nil {
			x.hear = x.route.Ask(x.keys)
		}
		res, err := x.dispatch.RoundTrip(req)
		if len(x.event.Retries) > 0 {
			if x.unsent(err) {
				up.retries.giveBack()
				x.takeBack(err)
				x.dispatch.forget()
				return last.res, last.err
			}
			if last.err == nil {
				x.kept.giveBack(keptAnswer) // nobody gets it
			}
		}
		why := x.futile(res, err)
		if why == "" || !up.retries.spend() {
			x.dispatch.forget()
			return res, err
		}
		if err == nil && !x.keepAnswer(res) {
			up.retries.giveBack()
			x.dispatch.forget()
			return res, nil
		}
		granted, waiting := x.nextTurn(why, err)
		if !granted {
			up.retries.giveBack()
		}
		switch {
		case waiting != nil:
			return nil, waiting
		case !granted:
			x.dispatch.forget()
			return res, err
		}
		last.res, last.err = res, err
		req.Body = body
		x.dispatch.again()
		if span := x.traced(); span != nil {
			span.Sent(&x.event, req.Header)
		}
	}
}

// unsent reports whether err is that the upstream takes no requests now, or cannot
// be reached, so that nothing was sent.
func (x *exchange) unsent(err error) bool {
	if err == nil || x.timed.Err() != nil || errors.Is(err, errClientLeft) {
		return false
	}
	var unsent *unsentError
	return x.dispatch.at == nil || errors.As(err, &unsent)
}

// takeBack has the last try be the one before, as of this one nothing was sent.
func (x *exchange) takeBack(err error) {
	e := &x.event
	var unsent *unsentError
	if errors.As(err, &unsent) {
		x.dispatch.failed(err)
		x.proxy.log.Warn("could not be sent again", "upstream", e.Upstream, "route", e.Route, "error", err)
	}
	n := len(e.Retries) - 1
	tried := e.Retries[n]
	e.Retries = e.Retries[:n]
	e.UpstreamStatus, e.Departed, e.UpstreamDuration = tried.Status, tried.Departed, tried.Duration
}

// heard tells those who listen of an answer, and reports whether it says that the
// upstream gets too many requests.
func (x *exchange) heard(res *http.Response) (throttled bool) {
	if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
		return false // it is none; see answered
	}
	throttled = saysThrottled(res)
	if x.hear != nil {
		throttled = x.hear(res.StatusCode, res.Header)
	}
	x.permit.Report(limiter.Answer{Latency: time.Since(x.event.Departed), Throttled: throttled})
	x.dispatch.answered(res.StatusCode)
	return throttled && x.hear != nil
}

// futile takes note of what came of a try. Its reason is not empty if the request
// is to be sent again.
func (x *exchange) futile(res *http.Response, err error) (why string) {
	var lost *h1.LostError
	switch {
	case err == nil && x.heard(res):
		why = RetryThrottled
	case errors.As(err, &lost):
		why = RetryLost
	}
	if !x.repeats || len(x.event.Retries) >= x.route.Retry.Most || x.timed.Err() != nil || !x.dispatch.whole() {
		return ""
	}
	return why
}

// nextTurn has the request go back to its queue, and waits for another turn. The
// error is that of a client that left.
func (x *exchange) nextTurn(why string, err error) (granted bool, _ error) {
	e, up := &x.event, x.route.Upstream
	e.UpstreamDuration = time.Since(e.Departed)
	if e.UpstreamStatus = x.dispatch.status; err != nil {
		e.UpstreamStatus = UpstreamError
		x.dispatch.failed(err)
	}
	tried := Retry{why, e.UpstreamStatus, e.Departed, e.UpstreamDuration}
	x.dispatch.done()
	x.permit.Release()
	x.permit.Done = nil
	up.inFlight.Add(-1)
	defer up.inFlight.Add(1)
	if x.timer != nil {
		if !x.timer.Stop() {
			return false, nil
		}
		defer x.timer.Reset(x.route.Timeout)
	}
	if at := x.place(); at != nil && x.r.ProtoMajor == 2 {
		at.waiting.Add(1)
		defer at.waiting.Add(-1)
	}
	p, err := x.permit.Again(x.r.Context(), x.clientGone)
	e.Waited += p.TotalWait()
	switch {
	case err != nil && x.clientLeft(err):
		return false, errClientLeft
	case err != nil:
		x.proxy.log.Error("a limiter failed", "route", x.route.Match, "error", err)
		return false, nil
	case !p.Allowed:
		return false, nil
	}
	x.permit = p
	if x.clientGone() {
		return false, errClientLeft
	}
	e.Retries = append(e.Retries, tried)
	if e.Departed = p.Departed(); e.Departed.IsZero() {
		e.Departed = time.Now()
	}
	e.UpstreamStatus, e.UpstreamDuration = 0, 0
	return true, nil
}

// keepBody has the body be kept of a request that can have another turn.
func (x *exchange) keepBody() {
	if x.permit.Again == nil {
		return
	}
	if x.body != nil {
		x.body.keep, x.body.share = int(x.route.Retry.Body), &x.kept
	}
	x.repeats = true
}
