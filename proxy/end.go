package proxy

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// end tells the story of the request, also when it ends in a panic: an answer
// that cannot be completed is cut by http.ErrAbortHandler.
func (x *exchange) end() {
	e := &x.event
	p := recover()
	x.endWatches()
	if x.parked {
		return
	}
	x.endRoom()
	x.countReset()
	x.endSocket()
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
	if span := x.traced(); span != nil {
		span.End(e)
	}
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
	case x.timed != nil && errors.Is(context.Cause(x.timed), errStalled):
		e.Error = "connection_read_timeout"
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
