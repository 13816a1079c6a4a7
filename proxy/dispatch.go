package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
)

// A dispatch sends one request to an address of its upstream, once: it is the
// RoundTripper of httputil.ReverseProxy. A request of which nothing was sent,
// for its connection could not be made or a kept one was dead, goes on to
// another connection or address at once.
type dispatch struct {
	up   *Upstream
	body *clientBody // nil: the request has none
	at   *address    // where it went
	cut  context.CancelCauseFunc
}

// deadConns bounds how many dead kept connections one request goes through. A
// server that restarts leaves as many as were kept.
const deadConns = 300

// maxInterim bounds the interim answers to one request: they pass at once, so
// nothing else would.
const maxInterim = 10

var errInterim = errors.New("the upstream gives interim answers without end")

// RoundTrip implements http.RoundTripper. Where it went counts as in flight
// until done.
func (d *dispatch) RoundTrip(req *http.Request) (*http.Response, error) {
	boundInterim(req)
	all, err := d.up.current(req.Context())
	if err != nil {
		return nil, err
	}
	d.at = d.up.take(all, nil)
	body := req.Body
	var failed []*address
	for dead := 0; ; {
		a := d.at
		req.URL.Host = a.host
		if d.up.opts.SendHost == "upstream" {
			req.Host = a.host
		}
		req.Body = nil
		var sent *attempt
		if d.body != nil {
			sent = &attempt{body: body}
			req.Body = sent
		}
		res, err := a.transport.RoundTrip(req)
		var unsent *unsentError
		if err == nil {
			d.watch(res)
			return res, nil
		}
		if !errors.As(err, &unsent) || req.Context().Err() != nil {
			return nil, err
		}
		if dead++; !unsent.kept || dead > deadConns {
			failed = append(failed, a)
			next := d.up.take(all, failed)
			if next == nil {
				return nil, err
			}
			d.done()
			d.at = next
		}
		if sent != nil && !(sent.stop() && d.body.rewind()) {
			return nil, err
		}
	}
}

// done ends the request.
func (d *dispatch) done() {
	if d.at != nil {
		d.at.inFlight.Add(-1)
		d.at = nil
	}
}

// boundInterim lets a request have so many interim answers and no more. The
// trace is the one that httputil.ReverseProxy has just made for it.
func boundInterim(req *http.Request) {
	trace := httptrace.ContextClientTrace(req.Context())
	pass, interim := trace.Got1xxResponse, 0
	trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		if interim++; interim > maxInterim {
			return errInterim
		}
		return pass(code, header)
	}
}
