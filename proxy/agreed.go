package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
)

// An agreed is the transport for https, where the upstream chooses between
// HTTP/1.1 and HTTP/2 whenever a connection is made (ALPN, RFC 7301). A request
// is taken to be for the version that was chosen last.
type agreed struct {
	address *address
	one     direct
	two     sender
	isTwo   atomic.Bool
	upgrade direct // for a WebSocket: HTTP/1.1, whatever the upstream likes better
}

// An otherVersionError is that a new connection speaks the other version.
type otherVersionError struct{ conn *tls.Conn }

func (*otherVersionError) Error() string {
	return "the upstream chose another version of HTTP than before"
}

// errOnlyTwo is that a WebSocket cannot be: whoever asks for one is told so, and
// the upstream, which lives, is not to blame.
var errOnlyTwo = errors.New("the upstream speaks HTTP/2 alone, which has no Upgrade")

// isNoProtocol reports whether a server ended a handshake as it speaks no protocol
// that it was offered (RFC 7301, section 3.2). crypto/tls exports no type for it.
func isNoProtocol(err error) bool {
	const noApplicationProtocol = tls.AlertError(120)
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err.Error() == noApplicationProtocol.Error()
}

func newAgreed(a *address) *agreed {
	t := &agreed{address: a}
	t.one = newDirect(a, func(ctx context.Context) (net.Conn, error) { return t.connect(ctx, false) })
	t.two = newSender(a, func(ctx context.Context) (net.Conn, error) { return t.connect(ctx, true) })
	onlyOne := a.tls.Clone()
	onlyOne.NextProtos = []string{"http/1.1"}
	t.upgrade = newDirect(a, func(ctx context.Context) (net.Conn, error) { return a.connectBy(ctx, onlyOne) })
	t.upgrade.MaxIdle = 0
	return t
}

// madeKey is the key, in the context of a request, of a *atomic.Pointer to the
// connection that was made for it already.
type madeKey struct{}

// connect makes a connection for one of the versions.
func (t *agreed) connect(ctx context.Context, two bool) (net.Conn, error) {
	if made, ok := ctx.Value(madeKey{}).(*atomic.Pointer[tls.Conn]); ok {
		if c := made.Swap(nil); c != nil {
			return c, nil
		}
	}
	c, err := t.address.connect(ctx)
	if err != nil {
		return nil, err
	}
	secure := c.(*tls.Conn)
	if chosen := secure.ConnectionState().NegotiatedProtocol == "h2"; chosen != two {
		return nil, &otherVersionError{secure}
	}
	return c, nil
}

// RoundTrip implements transport.
func (t *agreed) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header["Upgrade"] != nil {
		return t.upgrade.RoundTrip(req)
	}
	var other *otherVersionError
	if !t.isTwo.Load() {
		res, err := t.one.RoundTrip(req)
		if !errors.As(err, &other) {
			return res, err
		}
		t.isTwo.Store(true)
		made := new(atomic.Pointer[tls.Conn])
		made.Store(other.conn)
		defer func() {
			if c := made.Swap(nil); c != nil {
				_ = c.Close() // another one has come free meanwhile
			}
		}()
		if err != error(other) {
			return nil, err // some of its body has been read
		}
		req = req.WithContext(context.WithValue(req.Context(), madeKey{}, made))
	}
	res, err := t.two.RoundTrip(req)
	if errors.As(err, &other) {
		t.isTwo.Store(false)
		_ = other.conn.Close() // net/http may have told others too
		err = &unsentError{error: err, kept: true}
	}
	return res, err
}

// CloseIdleConnections implements transport.
func (t *agreed) CloseIdleConnections() {
	t.one.CloseIdleConnections()
	t.two.CloseIdleConnections()
}
