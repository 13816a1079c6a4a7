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
	up    *Upstream
	body  *clientBody // nil: the request has none
	leave func()      // ends a read of body that waits for the client
	cut   context.CancelCauseFunc
	held  bool        // it came through the upstream's Gate
	gone  func() bool // whether its client has left

	interim func(int, textproto.MIMEHeader) error // passes interim answers on
	at      *address                              // where it went, and is in flight until done
	pass    pass                                  // of the address's breaker
	told    bool                                  // what came of it
	sent    *attempt                              // at sending body, the last
	status  int                                   // of the answer
}

// deadConns bounds how many dead kept connections one request goes through. A
// server that restarts leaves as many as were kept.
const deadConns = 300

// RoundTrip implements http.RoundTripper. Its error is an *unavailableError if
// the upstream takes no requests now.
func (d *dispatch) RoundTrip(req *http.Request) (*http.Response, error) {
	all, err := d.up.current(req.Context())
	if err != nil {
		return nil, err
	}
	if err := d.goTo(req.Context(), all, nil); err != nil {
		return nil, err
	}
	trace := httptrace.ContextClientTrace(req.Context())
	if d.interim == nil {
		d.interim = trace.Got1xxResponse
	}
	body := req.Body
	var failed []*address
	for dead := 0; ; {
		req.URL.Host = d.at.host
		if d.up.opts.SendHost == "upstream" {
			req.Host = d.at.host
		}
		req.Body, trace.Got1xxResponse = nil, d.interim // a sender has put its own there
		var sent *attempt
		if d.body != nil {
			sent = &attempt{body: body, leave: d.leave}
			d.sent, req.Body = sent, sent
		}
		res, err := d.at.transport.RoundTrip(req)
		if err == nil {
			if sent != nil {
				sent.settle()
			}
			d.watch(res)
			return res, nil
		}
		var unsent *unsentError
		if !errors.As(err, &unsent) || req.Context().Err() != nil {
			return nil, err
		}
		if sent != nil && !(sent.stop() && d.body.rewind()) {
			return nil, err
		}
		if dead++; unsent.kept && dead <= deadConns {
			continue
		}
		failed = append(failed, d.at)
		d.failed(err)
		d.done()
		if d.goTo(req.Context(), all, failed) != nil {
			return nil, err
		}
	}
}

// goTo chooses the address, of all, where the request goes.
func (d *dispatch) goTo(ctx context.Context, all, failed []*address) error {
	err := d.try(ctx, all, failed)
	var held *unavailableError
	if d.held && failed == nil && errors.As(err, &held) && held.reason == ReasonBreakerOpen {
		return d.wait(ctx, all)
	}
	return err
}

func (d *dispatch) try(ctx context.Context, all, failed []*address) (err error) {
	d.at, d.pass, err = d.up.take(all, failed)
	if err != nil && d.up.revive(ctx, all, failed) {
		d.at, d.pass, err = d.up.take(all, failed)
	}
	d.told = false
	return err
}

// answered tells the address that it answered.
func (d *dispatch) answered(status int) {
	d.told, d.status = true, status
	d.at.answered(d.pass, status)
}

// whole reports whether all of the body has been read, and is kept.
func (d *dispatch) whole() bool {
	if d.body == nil {
		return true
	}
	if !d.body.ended.Load() || d.sent == nil {
		return false
	}
	d.sent.mu.Lock() // reads do not wait any more
	defer d.sent.mu.Unlock()
	return !d.body.lost && d.body.fault() == nil
}

// again has the body, all of which has been read, begin anew for another try. The
// last one's may not have been sent in whole, as the answer came before: whoever
// still sends it must not take from this one's.
func (d *dispatch) again() {
	if d.body == nil {
		return
	}
	d.sent.over.Store(true)
	d.sent.mu.Lock() // reads do not wait any more
	defer d.sent.mu.Unlock()
	d.body.rewind()
}

// forget lets go of what is kept of the body, if all of it has been read: it is
// sent no more.
func (d *dispatch) forget() {
	if d.body == nil || !d.body.ended.Load() || d.sent == nil {
		return
	}
	d.sent.mu.Lock()
	defer d.sent.mu.Unlock()
	d.body.letGo()
}

// failed tells the address that it did not, and is to blame.
func (d *dispatch) failed(err error) {
	if d.at == nil || d.told {
		return
	}
	d.told = true
	d.at.lost(d.pass, err)
}

// done ends the request. Whoever was not told by then is not to blame.
func (d *dispatch) done() {
	if d.at == nil {
		return
	}
	if !d.told {
		d.at.forgo(d.pass)
	}
	d.at.inFlight.Add(-1)
	d.at = nil
}
