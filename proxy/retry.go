package proxy

import (
	"bytes"
	"errors"
	"io"
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

const (
	// keptAnswer is the most of an answer that is kept while its request waits
	// for another turn, which it may not get.
	keptAnswer = 16 << 10
	// keptInAll bounds what is kept of all requests, to be sent again, and of
	// answers.
	keptInAll = 64 << 20
)

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

// RoundTrip implements http.RoundTripper.
func (s *sending) RoundTrip(req *http.Request) (*http.Response, error) {
	x, body := (*exchange)(s), req.Body
	up := x.route.Upstream
	up.retries.earn()
	x.keepBody()
	for {
		if x.route.Ask != nil {
			x.hear = x.route.Ask(x.keys)
		}
		res, err := x.dispatch.RoundTrip(req)
		why := x.futile(res, err)
		if why == "" || !up.retries.spend() {
			x.forgetBody()
			return res, err
		}
		if err == nil && !x.keepAnswer(res) {
			up.retries.giveBack()
			x.forgetBody()
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
			x.forgetBody()
			return res, err
		case err == nil:
			x.unreserve(keptAnswer) // nobody gets it
		}
		req.Body = body
		x.dispatch.again()
		if span := x.traced(); span != nil {
			span.Sent(&x.event, req.Header)
		}
	}
}

// heard tells those who listen of an answer, and reports whether it says that the
// upstream gets too many requests.
func (x *exchange) heard(res *http.Response) (throttled bool) {
	if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
		return false // it is none; see answered
	}
	x.permit.Report(limiter.Answer{Latency: time.Since(x.event.Departed), Throttled: saysThrottled(res)})
	if x.hear != nil {
		throttled = x.hear(res.StatusCode, res.Header)
	}
	x.dispatch.answered(res.StatusCode)
	return throttled
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

// keepBody reserves the room for the body of a request that can have another
// turn.
func (x *exchange) keepBody() {
	if x.permit.Again == nil {
		return
	}
	if x.body != nil {
		n := x.r.ContentLength
		if n < 0 {
			n = x.route.Retry.Body
		}
		if !x.reserve(n) {
			return
		}
		x.body.keep = int(n)
	}
	x.repeats = true
}

// forgetBody ends that when the request is sent no more, if its body has been.
func (x *exchange) forgetBody() {
	if x.kept > 0 && x.dispatch.forget() {
		x.unreserve(x.kept)
	}
}

// keepAnswer reads an answer to its end, so that its connection is free and it can
// be given after all; unless it is long, or broken.
func (x *exchange) keepAnswer(res *http.Response) bool {
	if !x.reserve(keptAnswer) {
		return false
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, keptAnswer+1))
	whole := err == nil && len(b) <= keptAnswer
	var rest io.Reader = bytes.NewReader(b)
	if whole {
		_ = res.Body.Close() // it has been read
	} else {
		rest = io.MultiReader(rest, res.Body)
	}
	res.Body = &readAhead{rest, res.Body}
	return whole
}

// A readAhead is a body of which some has been read already.
type readAhead struct {
	io.Reader
	io.Closer
}

// reserve takes of what may be kept in all, until unreserve.
func (x *exchange) reserve(n int64) bool {
	if x.proxy.kept.Add(n) > keptInAll {
		x.proxy.kept.Add(-n)
		return false
	}
	x.kept += n
	return true
}

func (x *exchange) unreserve(n int64) {
	x.proxy.kept.Add(-n)
	x.kept -= n
}
