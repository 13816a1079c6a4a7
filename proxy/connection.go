package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// connKey is the key of a request's *place in its context.
type connKey struct{}

// A place is the connection of a request as its context has it.
type place struct {
	conn net.Conn  // the client's, or TLS on top of it
	lot  *lot      // nil: requests cannot be parked
	back *returned // what came back from the lot; nil: it never was there

	// Of HTTP/2, whose requests share it.
	waiting atomic.Int64 // requests that their limits have not answered
	resets  resets
	flooded atomic.Bool // it was closed for them
}

// place is that of x's connection; nil if the handler runs on a server that is
// not ours.
func (x *exchange) place() *place {
	at, _ := x.r.Context().Value(connKey{}).(*place)
	return at
}

// resets counts the streams that a client gave up, by the generic cell rate
// algorithm: free is when all of them will be forgotten.
type resets struct {
	mu   sync.Mutex
	free time.Time
}

// add counts one at now and reports whether it is one too many.
func (r *resets) add(most int, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free.Before(now) {
		r.free = now
	}
	r.free = r.free.Add(time.Minute / time.Duration(most))
	return r.free.Sub(now) > time.Minute
}

// countReset notes that the client gave the stream up, and closes a connection
// on which that is done too often: each costs the client a few bytes, and us a
// request's way to its place in a queue and back (CVE-2023-44487). net/http has
// a bound of its own for streams that are given up faster than handlers begin.
func (x *exchange) countReset() {
	most := x.site.Bounds.Resets
	if x.r.ProtoMajor != 2 || most <= 0 || x.peerTrusted || x.r.Context().Err() == nil {
		return
	}
	at := x.place()
	if at == nil || errors.Is(context.Cause(x.r.Context()), limiter.ErrShutdown) {
		return
	}
	if at.resets.add(most, time.Now()) && at.flooded.CompareAndSwap(false, true) {
		x.proxy.floods.Add(1)
		x.proxy.log.Debug("a connection is closed whose client resets too many streams", "client", x.event.Client)
		_ = at.conn.Close()
	}
}

// Floods is how many connections were closed as their clients reset too many
// streams.
func (p *Proxy) Floods() uint64 { return p.floods.Load() }

// acquire asks the limits of a request. It is false when too many requests of
// its connection wait already, and this one has been answered.
func (x *exchange) acquire(keys []limiter.Key) (bool, error) {
	if at := x.place(); at != nil && x.r.ProtoMajor == 2 {
		most := int64(x.site.Bounds.Waiting)
		defer at.waiting.Add(-1)
		if n := at.waiting.Add(1); most > 0 && n > most {
			x.event.Reason = limiter.ReasonQueueFull
			x.w.Header().Set("Retry-After", "1")
			x.fail(http.StatusTooManyRequests, "http_request_denied", "too many requests of this connection are waiting")
			return false, nil
		}
	}
	var err error
	x.permit, err = x.route.Limiter.Acquire(x.r.Context(), limiter.Request{Keys: keys, Gone: x.clientGone, Again: x.mayRepeat()})
	x.proxy.observe.Decided(x.route.Match, x.permit.All)
	return true, err
}
