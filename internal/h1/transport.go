// Package h1 is the client's side of HTTP/1.1 for a proxy: an
// [http.RoundTripper] to one server that does the exchange on its caller's
// goroutine.
//
// What it promises beyond net/http's Transport:
//
//   - A request is sent once. Only a kept connection that turns out dead before
//     a byte of the request was written to it is replaced.
//   - Where an answer ends is read by the letter of RFC 9112, section 6.3; one
//     that two readers could end at different places is an error.
//   - The fields of a connection end with it (RFC 9110, section 7.6.1): those of
//     an answer are gone, with all that its Connection field names. Only a 101
//     keeps its Upgrade.
//   - A connection is used again only after a request whose last bytes were
//     written when its answer came, and an answer behind which nothing came.
//
// It needs no goroutine but one for a request's body, while that is sent.
package h1

import (
	"context"
	"net"
	"net/http"
	"time"
)

// A Transport sends requests to one server and keeps connections to it. Its
// fields must not change once it is used. It is safe for concurrent use.
type Transport struct {
	// Dial returns a new connection, with TLS after its handshake. What a
	// *tls.Conn stands on should be a *Counted.
	Dial func(context.Context) (net.Conn, error)

	// MaxIdle connections are kept, each for IdleTimeout; 0: for ever.
	MaxIdle     int
	IdleTimeout time.Duration

	// HeaderTimeout is how long the head of an answer may take from when the
	// request is written; 0: for ever.
	HeaderTimeout time.Duration

	// MaxHeaderBytes bounds each head of an answer, and its trailers. A field
	// counts 32 bytes more than it has, as in HTTP/2 (RFC 9113, section
	// 6.5.2), for what it takes to hold it.
	MaxHeaderBytes int

	pool pool
}

// maxDead bounds how many dead kept connections one request goes through. A
// server that restarts leaves as many as were kept.
const maxDead = 300

// RoundTrip implements http.RoundTripper.
//
// Interim answers are told to the Got1xxResponse of the request's httptrace,
// and the body of a 101 is an io.ReadWriteCloser. An Expect field is sent as it
// is, and the body does not wait for what it asks for.
//
// If there is no connection, the error is Dial's own, and the request's body
// has been neither read nor closed. An *UnsentError says that nothing was sent
// either, but that some of the body may have been read; a *LostError, that
// maybe nobody has seen it. When the request's context ends, the error is its
// cause.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	head := heads.Get().(*buffer)
	defer heads.put(head)
	var err error
	if head.b, err = appendHead(head.b[:0], req); err != nil {
		closeBody(req)
		return nil, err
	}
	var up *upload // of the body, if there is one, as soon as there is a connection
	for dead := 0; ; dead++ {
		c, kept, err := t.connect(ctx)
		if err != nil {
			up.abandon()
			if up != nil && ctx.Err() == nil {
				err = &UnsentError{err, true}
			}
			return nil, err
		}
		x := newExchange(t, c, req)
		x.kept = kept
		if up == nil && hasBody(req) {
			up = newUpload(req)
			if head.b, err = up.begin(ctx, head.b); err != nil {
				x.unused()
				return nil, err
			}
		}
		res, unsent, err := x.do(head.b, up)
		if unsent && ctx.Err() == nil {
			if kept && dead < maxDead {
				continue
			}
			err = &UnsentError{err, kept}
		}
		up.abandon() // unless it went on
		return res, err
	}
}

// An UnsentError is why not a byte of a request was written.
type UnsentError struct {
	Err  error
	Kept bool // kept connections were dead; a new one may not be
}

func (e *UnsentError) Error() string { return "nothing was sent: " + e.Err.Error() }

// Unwrap is the error of the connection.
func (e *UnsentError) Unwrap() error { return e.Err }

// A LostError is that a kept connection ended under a request of which some may
// have been sent, before a byte of an answer had come: it may be that the server
// closed it as idle at that very time, and has not seen the request (RFC 9112,
// section 9.3.1).
type LostError struct{ Err error }

func (e *LostError) Error() string { return "a kept connection ended: " + e.Err.Error() }

// Unwrap is the error of the connection.
func (e *LostError) Unwrap() error { return e.Err }

// connect returns a connection, and whether it was kept from an earlier
// request.
func (t *Transport) connect(ctx context.Context) (c *conn, kept bool, err error) {
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	for c := t.pool.take(t.IdleTimeout); c != nil; c = t.pool.take(t.IdleTimeout) {
		if c.quiet() {
			return c, true, nil
		}
		c.abort()
	}
	dialed, err := t.Dial(ctx)
	if err != nil {
		return nil, false, err
	}
	return newConn(dialed), false, nil
}

// Close closes the connections that no request uses, now and when requests
// that are under way have ended.
func (t *Transport) Close() { t.pool.close() }

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}
