package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// parkAfter is how long a request must be expected to wait for parking it to be
// worth the second reading of its head.
const parkAfter = time.Second

// A foreseer is a Limiter that can say how long a request would wait.
type foreseer interface {
	// Foresee is how long a request that came now would wait in queues, as far
	// as that is known; 0 if it would be refused.
	Foresee(limiter.Request) time.Duration
}

// A lot is where HTTP/1 requests wait that have long to wait. net/http holds two
// goroutines, three buffers and a dozen objects for each request that a handler
// is at work on, which is more than 20 KB; a parked one is its connection, its
// head as text, and a goroutine that has only just begun. See docs/design.
//
// A request is parked by taking its connection away from net/http, and comes
// back, when its turn has come or it is refused, by handing the connection to
// a second http.Server, which reads the head once more. While it is parked, the
// kernel is asked to tell when its client leaves: that is seen at once, also
// with a body unread, where net/http would see nothing.
type lot struct {
	proxy *Proxy
	base  context.Context // of every request
	again *http.Server
	done  chan struct{} // closed by close

	mu     sync.Mutex
	watch  *departures // nil until open
	warned bool        // that it could not be opened
	shut   bool
}

// comesBack is what waited in the lot, if r is that.
func comesBack(r *http.Request) *parked {
	if at, ok := r.Context().Value(connKey{}).(*place); ok && at.back != nil {
		return at.back.take()
	}
	return nil
}

// A parked is a request in the lot, and afterwards what its limits said.
type parked struct {
	site   *Site
	route  *Route
	event  Event
	keys   []limiter.Key
	again  bool  // it may be sent again
	room   int64 // see exchange
	permit limiter.Permit
	err    error
}

// newLot returns a lot whose requests come back to a server made by again.
func newLot(base context.Context, p *Proxy, again *http.Server) *lot {
	return &lot{proxy: p, base: base, again: again, done: make(chan struct{})}
}

// park takes the request off net/http if it has long to wait, and reports
// whether it did: the handler is then to return without a word.
func (x *exchange) park(keys []limiter.Key) bool {
	at := x.place()
	if at == nil || at.lot == nil || x.r.ProtoMajor != 1 {
		return false
	}
	seer, ok := x.route.Limiter.(foreseer)
	if !ok || seer.Foresee(limiter.Request{Keys: keys}) < x.proxy.parkAfter {
		return false
	}
	// Nobody would tell when the client leaves; of TLS the kernel does not know
	// when it ends.
	if x.r.TLS != nil || descriptor(at.conn) < 0 || !at.lot.ready() {
		return false
	}
	said := head(x.r)
	if len(said) > cmp.Or(at.lot.again.MaxHeaderBytes, http.DefaultMaxHeaderBytes) {
		return false // many short lines: they grow, and would be too long to be read again
	}
	conn, rw, err := http.NewResponseController(x.w.ResponseWriter).Hijack()
	if err != nil {
		return false
	}
	// What the client sent behind the head: of its body, or further requests.
	if x.body != nil {
		said = append(said, x.body.pending...) // of a body with a length, so as it came
	}
	rest, _ := rw.Reader.Peek(rw.Reader.Buffered())
	said = append(said, rest...)
	if again, ok := conn.(*returned); ok {
		// It was parked before, and net/http may not have read all it said then.
		conn, said = again.Conn, append(said, again.said...)
	}
	p := &parked{site: x.site, route: x.route, event: x.event, keys: keys, again: x.mayRepeat(), room: x.room}
	x.proxy.running.Add(1) // until it is served again, or has gone
	go at.lot.wait(p, conn, said)
	x.parked = true
	return true
}

// head writes the request's head as it came: net/http has taken a few fields
// out of it and keeps them elsewhere.
func head(r *http.Request) []byte {
	var b bytes.Buffer
	b.Grow(512)
	b.WriteString(r.Method + " " + r.RequestURI + " " + r.Proto + "\r\nHost: " + r.Host + "\r\n")
	for name, values := range r.Header {
		for _, v := range values {
			b.WriteString(name + ": " + v + "\r\n")
		}
	}
	if len(r.TransferEncoding) > 0 {
		b.WriteString("Transfer-Encoding: " + strings.Join(r.TransferEncoding, ", ") + "\r\n")
	}
	for name := range r.Trailer {
		b.WriteString("Trailer: " + name + "\r\n")
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// wait asks the limits for a parked request, and brings it back.
func (l *lot) wait(p *parked, conn net.Conn, said []byte) {
	ctx, cancel := context.WithCancelCause(l.base)
	defer cancel(nil)
	unwatch := l.watch.watch(conn, func() { cancel(limiter.ErrClientGone) })
	p.permit, p.err = p.route.Limiter.Acquire(ctx, limiter.Request{
		Keys: p.keys, Gone: func() bool { return ctx.Err() != nil || hasLeft(conn) }, Again: p.again,
	})
	unwatch()
	p.keys = nil
	l.proxy.observe.Decided(p.route.Match, p.permit.All)
	if errors.Is(p.err, limiter.ErrClientGone) {
		l.gone(p, conn)
		return
	}
	l.bringBack(p, &returned{Conn: conn, said: said, lot: l, parked: p})
}

// bringBack has the second server read the request again. It is given a listener
// with this one connection: one listener for all would put a goroutine more
// between a departure and its request.
func (l *lot) bringBack(p *parked, conn *returned) {
	only := &onlyConn{conn: conn}
	select {
	case <-l.done:
	default:
		_ = l.again.Serve(only)
	}
	if only.conn != nil {
		l.gone(p, conn.Conn) // the server is closed
	}
}

// gone ends a parked request that is not to come back.
func (l *lot) gone(p *parked, conn net.Conn) {
	_ = conn.Close()
	p.permit.Release()
	l.proxy.room.Add(p.room)
	e := &p.event
	e.Status, e.Reason = StatusClientGone, limiter.ReasonClientGone
	if !errors.Is(p.err, limiter.ErrClientGone) && errors.Is(context.Cause(l.base), limiter.ErrShutdown) {
		e.Status, e.Reason = 0, limiter.ReasonShutdown // there was no time for an answer
	}
	e.decided(p.permit)
	e.Duration = time.Since(e.Start)
	l.proxy.observe.Done(e)
	if t := l.proxy.tracer.Load(); t != nil && *t != nil {
		(*t).Begin(nil, e).End(e)
	}
	l.proxy.running.Done()
}

// decided notes what the limits said.
func (e *Event) decided(p limiter.Permit) {
	e.Waited = p.TotalWait()
	e.DryRun = dryRun(p.All)
}

// ready opens the lot when it is first needed, and reports whether requests can
// be parked.
func (l *lot) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut || l.watch != nil {
		return !l.shut
	}
	watch, err := watchDepartures()
	if err != nil { // the next one tries again: descriptors may be short just now
		if !l.warned {
			l.warned = true
			l.proxy.log.Warn("waiting requests take more memory, as nobody tells when their clients leave", "error", err)
		}
		return false
	}
	l.watch = watch
	return true
}

// close ends the lot. Requests that are still in it must have been cut.
func (l *lot) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.shut {
		l.shut = true
		close(l.done)
		l.watch.close()
	}
}

// An onlyConn is a listener that one connection comes to.
type onlyConn struct{ conn net.Conn }

// Accept implements net.Listener.
func (o *onlyConn) Accept() (net.Conn, error) {
	if o.conn == nil {
		return nil, net.ErrClosed
	}
	c := o.conn
	o.conn = nil
	return c, nil
}

// Close implements net.Listener. There is nothing to close but the connection.
func (o *onlyConn) Close() error { return nil }

// Addr implements net.Listener.
func (o *onlyConn) Addr() net.Addr { return &net.UnixAddr{Name: "lot", Net: "unix"} }

// A returned is a connection that comes back from the lot: it begins with what
// the client has said already.
type returned struct {
	net.Conn
	said   []byte
	lot    *lot
	parked *parked
	taken  atomic.Bool
}

func (c *returned) Read(p []byte) (int, error) {
	if len(c.said) > 0 {
		n := copy(p, c.said)
		if c.said = c.said[n:]; len(c.said) == 0 {
			c.said = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// Close ends the request too if net/http did not understand its head the second
// time, which cannot happen and must not leave it unfinished if it does.
func (c *returned) Close() error {
	if p := c.take(); p != nil {
		c.lot.gone(p, c.Conn)
		return nil
	}
	return c.Conn.Close()
}

// take is the parked request, for whoever asks first.
func (c *returned) take() *parked {
	if c.taken.Swap(true) {
		return nil
	}
	return c.parked
}

// CloseWrite lets net/http send an answer to the end before it closes.
func (c *returned) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
