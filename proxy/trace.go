package proxy

import "net/http"

// A Tracer follows requests over machines, by the W3C Trace Context. Its methods
// are called on the request's goroutine, must be safe for concurrent use and
// must not block.
type Tracer interface {
	// Begin is called once for a request, when it is sent for the first time or
	// has ended without that, with the fields that it came with; those are nil of
	// a client that left while its request was parked. The Event must not be
	// kept.
	Begin(came http.Header, e *Event) Span
}

// A Span is one request in a trace.
type Span interface {
	// Sent is called each time that the request is sent, with the fields that it
	// is sent with, to put the context into them.
	Sent(e *Event, fields http.Header)
	// End is called last.
	End(e *Event)
}

// Trace has requests be followed by t from now on; nil by nobody.
func (p *Proxy) Trace(t Tracer) { p.tracer.Store(&t) }

// traced is the request's span; nil if nobody follows it.
func (x *exchange) traced() Span {
	t := x.proxy.tracer.Load()
	if x.span == nil && t != nil && *t != nil {
		x.span = (*t).Begin(x.r.Header, &x.event)
	}
	return x.span
}
