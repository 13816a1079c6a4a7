package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"

	"github.com/shapeproxy/shapeproxy/internal/h1"
)

// A sender is the transport for HTTP/2, which is net/http's.
//
// Left to itself, net/http's sends a request again when it has no body, its
// method is idempotent, and a kept connection closed without an answer: one
// admission would become two requests upstream. It does not where the body is
// neither nil nor http.NoBody and cannot be had anew, so every request gets
// such a body. What that takes away, a kept connection found dead before a
// byte was written, is told by an unsentError; one that ended under the request,
// by an h1.LostError.
type sender struct{ *http.Transport }

func newSender(a *address, connect func(context.Context) (net.Conn, error)) sender {
	o := &a.up.opts
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) }
	t := &http.Transport{
		DialContext:            dial,
		DialTLSContext:         dial,
		ResponseHeaderTimeout:  o.ResponseHeaderTimeout,
		MaxIdleConns:           o.MaxIdleConns,
		MaxIdleConnsPerHost:    o.MaxIdleConns,
		IdleConnTimeout:        o.IdleConnTimeout,
		MaxResponseHeaderBytes: maxResponseHeaderBytes,
		DisableCompression:     true, // bodies pass as they are
		Protocols:              new(http.Protocols),
	}
	if o.Scheme == "https" {
		t.Protocols.SetHTTP2(true)
	} else {
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return sender{t}
}

// maxInterim bounds the interim answers to one request: they pass at once, so
// nothing else would.
const maxInterim = 10

var (
	errInterim  = errors.New("the upstream gives interim answers without end")
	errLongHead = errors.New("the request's header is longer than the upstream takes")
)

// RoundTrip sends req once. Its context must have a httptrace.ClientTrace, of
// which GotConn, GotFirstResponseByte and Got1xxResponse are replaced.
func (s sender) RoundTrip(req *http.Request) (*http.Response, error) {
	var conn *h1.Counted
	var before int64
	reused := false
	// The one who sends has just made a trace for this request; adding to it
	// saves a second one and the reflection that joins the two.
	trace := httptrace.ContextClientTrace(req.Context())
	trace.GotConn = func(info httptrace.GotConnInfo) {
		if conn = counted(info.Conn); conn != nil {
			before = conn.Written()
		}
		reused = info.Reused
	}
	var answered atomic.Bool
	trace.GotFirstResponseByte = func() { answered.Store(true) }
	pass, interim := trace.Got1xxResponse, 0
	trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		switch interim++; {
		case code == http.StatusSwitchingProtocols: // HTTP/2 has no such (RFC 9113, section 8.6)
			return errUnaskedUpgrade
		case interim > maxInterim:
			return errInterim
		case pass == nil:
			return nil
		}
		return pass(code, header)
	}
	if req.Body == nil {
		sendEmpty(req)
	}
	req = withTarget(req)
	res, err := s.Transport.RoundTrip(req)
	if err == nil {
		return res, nil
	}
	switch {
	case isConnectError(err):
		err = &unsentError{error: err}
	case strings.Contains(err.Error(), "larger than peer's advertised limit"): // net/http has no value for it
		err = errLongHead // SETTINGS_MAX_HEADER_LIST_SIZE: it would be so on every connection
	case conn != nil && conn.Written() == before:
		err = &unsentError{error: err, kept: reused}
	case reused && !answered.Load() && ended(err):
		err = &h1.LostError{Err: err}
	}
	return nil, err
}

// withTarget is req in a form in which net/http sends a path that begins with two
// slashes. It takes an opaque part of that form for an authority and a path, and
// sends the path if the authority is the request's.
func withTarget(req *http.Request) *http.Request {
	if !strings.HasPrefix(req.URL.Opaque, "//") {
		return req
	}
	to := *req.URL
	to.Opaque = "//" + cmp.Or(req.Host, to.Host) + to.Opaque
	other := *req
	other.URL = &to
	return &other
}

func counted(c net.Conn) *h1.Counted {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	counted, _ := c.(*h1.Counted)
	return counted
}
