package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/shapeproxy/shapeproxy/internal/h1"
)

// An address is one of those at which an upstream is reached, with a Transport
// of its own and the connections kept to it.
type address struct {
	up        *Upstream
	host      string // the Host, and what the URL of requests names
	network   string
	target    string      // what is dialled
	tls       *tls.Config // nil unless the scheme is https
	transport transport
	inFlight  atomic.Int64

	mu      sync.Mutex // guards what follows
	health  health
	breaker *breaker // nil: none, or no longer
}

// name is what metrics and logs call it.
func (a *address) name() string {
	if a.network == "unix" {
		return "unix:" + a.target
	}
	return a.target
}

// A transport carries requests to one address, over connections made by the
// address's connect. RoundTrip sends a request at most once, however it ends.
// An error that is an *unsentError says that not a byte of it was written, so
// that it may be sent again; every other error leaves that open.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// An unsentError is the failure of a request that was not sent.
type unsentError struct {
	error
	kept bool // on a connection that was kept from an earlier request
}

func (e *unsentError) Unwrap() error { return e.error }

// A connectError is the failure to make a connection.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

func isConnectError(err error) bool {
	var e *connectError
	return errors.As(err, &e)
}

func (u *Upstream) newAddress(p Place) *address {
	a := &address{up: u, host: p.Host, network: "tcp", target: p.Address}
	if p.UnixSocket != "" {
		a.network, a.target = "unix", p.UnixSocket
	}
	if u.opts.Scheme == "https" {
		a.tls = u.opts.TLS.Clone()
		if a.tls == nil {
			a.tls = &tls.Config{}
		}
		a.tls.MinVersion = max(a.tls.MinVersion, tls.VersionTLS12)
		a.tls.NextProtos = []string{"h2", "http/1.1"}
		if send := u.opts.SendHost; a.tls.ServerName == "" && send != "upstream" && send != "client" {
			a.tls.ServerName = stripPort(send)
		}
		if a.tls.ServerName == "" {
			a.tls.ServerName = stripPort(a.host)
		}
	}
	if u.opts.Breaker != nil {
		a.breaker = &breaker{policy: u.opts.Breaker}
	}
	switch u.opts.Scheme {
	case "https":
		a.transport = newAgreed(a)
	case "h2c":
		a.transport = newSender(a, a.connect)
	default:
		a.transport = newDirect(a, a.connect)
	}
	return a
}

func stripPort(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return hostport
}

// errHandshakeTimeout is a TLS handshake that took too long.
var errHandshakeTimeout = errors.New("TLS handshake timeout")

// connect makes a connection, a *tls.Conn behind its handshake for https. The
// connection below is a *h1.Counted. Its error is a *connectError, or of
// connectBy errOnlyTwo.
func (a *address) connect(ctx context.Context) (net.Conn, error) {
	return a.connectBy(ctx, a.tls)
}

// connectBy is connect with other TLS than a's.
func (a *address) connectBy(ctx context.Context, by *tls.Config) (net.Conn, error) {
	conn, err := a.reach(ctx, by)
	if err != nil {
		if by != a.tls && isNoProtocol(err) {
			return nil, errOnlyTwo
		}
		if ctx.Err() == nil {
			a.failed(err)
		}
		return nil, &connectError{err}
	}
	return conn, nil
}

func (a *address) reach(ctx context.Context, by *tls.Config) (net.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, a.up.opts.DialTimeout)
	defer cancel()
	raw, err := a.up.dial(dialing, a.network, a.target)
	if err != nil {
		return nil, err
	}
	counted := h1.Count(raw, a.up.opts.BodyTimeout)
	if by == nil {
		return counted, nil
	}
	shaking, cancel := context.WithTimeoutCause(ctx, a.up.opts.TLSHandshakeTimeout, errHandshakeTimeout)
	defer cancel()
	conn := tls.Client(counted, by)
	if err := conn.HandshakeContext(shaking); err != nil {
		raw.Close()
		if ctx.Err() == nil && shaking.Err() != nil {
			err = errHandshakeTimeout
		}
		return nil, err
	}
	return conn, nil
}
