package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/shapeproxy/shapeproxy/internal/h1"
)

// A direct is the transport for HTTP/1: the exchange is done on the goroutine of
// the request.
type direct struct{ *h1.Transport }

// maxResponseHeaderBytes bounds what an upstream may send before its body.
const maxResponseHeaderBytes = 1 << 20

func newDirect(a *address, connect func(context.Context) (net.Conn, error)) direct {
	o := &a.up.opts
	return direct{&h1.Transport{
		Dial:           connect,
		MaxIdle:        o.MaxIdleConns,
		IdleTimeout:    o.IdleConnTimeout,
		HeaderTimeout:  o.ResponseHeaderTimeout,
		MaxHeaderBytes: maxResponseHeaderBytes,
	}}
}

// RoundTrip implements transport. It replaces dead kept connections by itself.
func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := d.Transport.RoundTrip(req)
	if err != nil {
		var unsent *h1.UnsentError
		if isConnectError(err) {
			err = &unsentError{error: err}
		} else if errors.As(err, &unsent) {
			err = &unsentError{error: err, kept: unsent.Kept}
		}
		return nil, err
	}
	return res, nil
}

// CloseIdleConnections implements transport.
func (d direct) CloseIdleConnections() { d.Close() }
