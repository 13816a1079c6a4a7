package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// admitted asks the route's limits, and answers the request if it may not go
// on.
func (x *exchange) admitted(found *lookup) bool {
	x.permit.Allowed = true
	if x.route.Limiter == nil && x.route.Ask == nil {
		return x.stillThere()
	}
	keys, err := x.identify(found)
	if err != nil {
		x.fail(http.StatusBadRequest, "http_request_error", err.Error())
		return false
	}
	x.keys = keys
	if x.route.Limiter == nil {
		return x.stillThere()
	}
	if !x.bodyBegins(keys) {
		return false
	}
	x.makeRoom()
	switch {
	case x.before != nil:
		x.permit, err = x.before.permit, x.before.err
	case x.park(keys):
		x.room = 0 // it has gone along
		return false
	default:
		var asked bool
		if asked, err = x.acquire(keys); !asked {
			return false
		}
	}
	x.endRoom()
	x.event.decided(x.permit)
	switch {
	case err != nil && x.clientLeft(err):
		x.abandon()
	case err != nil:
		x.proxy.log.Error("a limiter failed", "route", x.route.Match, "error", err)
		x.fail(http.StatusInternalServerError, "proxy_internal_error", "the limits could not be asked")
	case !x.permit.Allowed:
		x.refuse(x.permit)
	default:
		return x.stillThere()
	}
	return false
}

// look has the answer to a request that its limits are not asked about tell how
// they stand.
func (x *exchange) look(found *lookup) {
	looker, ok := x.route.Limiter.(interface {
		Look(limiter.Request) limiter.Permit
	})
	if !ok {
		return
	}
	if keys, err := x.identify(found); err == nil {
		x.permit = looker.Look(limiter.Request{Keys: keys})
	}
}

// bodyBegins waits for the first bytes of a body with a length, before its
// request takes a turn or a place that others could use: a client that sends
// none takes nothing. It does not wait where the request is going to be refused
// at once, or the client waits for us, of which net/http tells nothing in
// HTTP/2: to read would send the 100 before the turn. If it does not begin, the
// request is answered.
func (x *exchange) bodyBegins(keys []limiter.Key) bool {
	if x.body == nil || x.body.patience == nil || x.r.ProtoMajor != 1 || x.r.ContentLength <= 0 || x.before != nil || x.r.Header.Get("Expect") != "" {
		return true
	}
	chain, ok := x.route.Limiter.(interface {
		Refuses(limiter.Request) bool
	})
	if !ok || chain.Refuses(limiter.Request{Keys: keys}) {
		return true
	}
	if x.body.begin(x.r.ContentLength) == nil {
		return true
	}
	x.brokenBody()
	return false
}

func (x *exchange) identify(found *lookup) ([]limiter.Key, error) {
	return x.route.Identify(Identity{
		Request: x.r, Client: x.event.Client, Host: x.to.host,
		Route: x.route.Match, PathValue: found.shadow.PathValue,
	})
}

// unreadKept is how much of the unread body of a waiting request the kernel is
// asked to take in: the end of the connection comes behind it. Of a body that
// is larger, it is not seen while it waits that its client leaves.
const unreadKept = 1<<20 + 64<<10

// unreadInAll bounds what the kernel is asked to take in for all that wait. It
// takes twice the memory, of which all connections of the machine have a share
// (net.ipv4.tcp_mem): a long queue of uploads must not take it from the rest.
const unreadInAll = 128 << 20

// makeRoom does so for a body of HTTP/1 that may have to wait.
func (x *exchange) makeRoom() {
	at, ok := x.r.Context().Value(connKey{}).(*place)
	if !ok || x.body == nil || x.body.ended.Load() || x.r.ProtoMajor != 1 || x.before != nil {
		return
	}
	n := int64(unreadKept)
	if length := x.r.ContentLength; length > 0 && length < n {
		n = min(n, length+64<<10)
	}
	if x.proxy.room.Add(-n) < 0 {
		x.proxy.room.Add(n)
		return
	}
	x.room = n
	roomForBody(at.conn, int(n))
}

// endRoom ends what makeRoom did.
func (x *exchange) endRoom() {
	if x.room > 0 {
		roomForBody(x.r.Context().Value(connKey{}).(*place).conn, 0)
		x.proxy.room.Add(x.room)
		x.room = 0
	}
}

// clientLeft reports whether err, from waiting, says that the client left.
func (x *exchange) clientLeft(err error) bool {
	return x.r.Context().Err() != nil || errors.Is(err, limiter.ErrClientGone)
}

// stillThere looks at the client once more before its request is sent. A
// request without a body that did not wait need not be looked at: net/http
// reads on behind it, and would have ended its context.
func (x *exchange) stillThere() bool {
	if x.r.Context().Err() != nil || (x.body != nil || x.event.Waited > 0) && x.clientGone() {
		x.abandon()
		return false
	}
	return true
}

// clientGone asks the kernel whether an HTTP/1 client has left. HTTP/2 clients
// leave by a frame, which ends the context.
func (x *exchange) clientGone() bool {
	if x.r.Context().Err() != nil {
		return true
	}
	at, ok := x.r.Context().Value(connKey{}).(*place)
	return ok && x.r.ProtoMajor == 1 && hasLeft(at.conn)
}

// abandon ends a request whose client has gone, or which is cut at shutdown.
func (x *exchange) abandon() {
	if cause := context.Cause(x.r.Context()); errors.Is(cause, limiter.ErrShutdown) {
		x.shutdown()
		return
	}
	x.event.Reason = limiter.ReasonClientGone
	panic(http.ErrAbortHandler) // nobody is there for an answer
}

// shutdown answers a request that the proxy had no time for before it stopped.
func (x *exchange) shutdown() {
	p := x.permit
	p.Allowed, p.Reason = false, limiter.ReasonShutdown
	p.Status, p.RetryAfter = http.StatusServiceUnavailable, time.Second
	x.refuse(p)
}
