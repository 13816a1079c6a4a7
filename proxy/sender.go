package proxy

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
)

// A sender is the transport that is net/http's.
//
// Left to itself, net/http's sends a request again when it has no body, its
// method is idempotent, and a kept connection closed without an answer: one
// admission would become two requests upstream. It does not where the body is
// neither nil nor http.NoBody and cannot be had anew, so every request gets
// such a body. What that takes away, a kept connection found dead before a
// byte was written, is told by an unsentError.
type sender struct{ *http.Transport }

// maxResponseHeaderBytes bounds what an upstream may send before its body.
const maxResponseHeaderBytes = 1 << 20

func newSender(a *address) sender {
	o := &a.up.opts
	connect := func(ctx context.Context, _, _ string) (net.Conn, error) { return a.connect(ctx) }
	t := &http.Transport{
		DialContext:            connect,
		DialTLSContext:         connect,
		ResponseHeaderTimeout:  o.ResponseHeaderTimeout,
		MaxIdleConns:           o.MaxIdleConns,
		MaxIdleConnsPerHost:    o.MaxIdleConns,
		IdleConnTimeout:        o.IdleConnTimeout,
		MaxResponseHeaderBytes: maxResponseHeaderBytes,
		DisableCompression:     true, // bodies pass as they are
		Protocols:              new(http.Protocols),
	}
	switch o.Scheme {
	case "h2c":
		t.Protocols.SetUnencryptedHTTP2(true)
	case "https":
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
	default:
		t.Protocols.SetHTTP1(true)
	}
	return sender{t}
}

// RoundTrip sends req once. Its context must have a httptrace.ClientTrace, of
// which GotConn is replaced.
func (s sender) RoundTrip(req *http.Request) (*http.Response, error) {
	var conn *countedConn
	var before int64
	reused := false
	// The one who sends has just made a trace for this request; adding to it
	// saves a second one and the reflection that joins the two.
	httptrace.ContextClientTrace(req.Context()).GotConn = func(info httptrace.GotConnInfo) {
		if conn = counted(info.Conn); conn != nil {
			before = conn.writes.Load()
		}
		reused = info.Reused
	}
	if req.Body == nil {
		sendEmpty(req)
	}
	res, err := s.Transport.RoundTrip(req)
	if err == nil {
		return res, nil
	}
	switch {
	case isConnectError(err):
		err = &unsentError{error: err}
	case conn != nil && conn.writes.Load() == before:
		err = &unsentError{error: err, kept: reused}
	}
	return nil, err
}
