package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// An Upstream is a server that requests are forwarded to, at one address or
// several, with the connections kept to each. It is safe for concurrent use;
// Start begins its health checks, and Close ends them and gives its idle
// connections back.
type Upstream struct {
	opts UpstreamOptions
	// dial makes every connection; tests put networks of their own here.
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	resolved *resolution
	inFlight atomic.Int64

	checking sync.WaitGroup
	stop     context.CancelFunc // of the checks; nil unless they run
	refused  [len(refusals)]atomic.Uint64
	retries  budget

	gating sync.Mutex    // held while the Gate is moved; guards the next two
	moved  chan struct{} // closed when a breaker has changed
	closed bool          // the Gate is another's
	first  chan struct{} // holds one: the first who waits for a breaker

	taking sync.Mutex // held while the least in flight is found, so that no two find the same
	turn   int        // rotates among addresses with equally much in flight
}

// UpstreamOptions describe an Upstream. Two Upstreams with equal options are
// interchangeable.
type UpstreamOptions struct {
	Name     string
	Scheme   string  // http, https, or h2c for HTTP/2 without TLS
	Places   []Place // at least one; each request goes to the one with the least in flight
	BasePath string  // put before every target; percent-encoded, without trailing slash

	// SendHost is the Host that it is sent: "upstream" for the Place's own,
	// "client" for the one the client named, or a literal name, which TLS asks
	// for too.
	SendHost string

	// ResolveInterval is how long what DNS says of a Place's name is good for.
	ResolveInterval time.Duration
	Resolver        *net.Resolver // nil: the system's

	DialTimeout           time.Duration // to resolve a name, and to make a connection
	TLSHandshakeTimeout   time.Duration
	ResponseHeaderTimeout time.Duration
	BodyTimeout           time.Duration // the longest silence within a body; 0: no bound
	MaxIdleConns          int           // of each address
	IdleConnTimeout       time.Duration
	// TLS has RootCAs, client certificates and a ServerName other than the
	// Host for https; nil: the system's, and none. It must not change.
	TLS *tls.Config

	Health  HealthPolicy
	Breaker *BreakerPolicy // of each address; nil: none
	Gate    Gate           // holds back who waits while no breaker lets a request through; nil: they are refused
	Log     *slog.Logger   // told when an address goes out or comes in; nil: nobody
}

// A Place is where an Upstream can be reached.
type Place struct {
	Host       string // host[:port] of its URL
	Address    string // host:port to dial, unless UnixSocket is set
	UnixSocket string // path of the socket to dial
}

// NewUpstream returns an Upstream. It dials nothing yet.
func NewUpstream(o UpstreamOptions) *Upstream {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dialer := &net.Dialer{KeepAlive: 30 * time.Second, Resolver: o.Resolver}
	u := &Upstream{opts: o, dial: dialer.DialContext, moved: make(chan struct{}), first: make(chan struct{}, 1)}
	u.resolved = u.newResolution()
	return u
}

// Options are those that u was made with.
func (u *Upstream) Options() UpstreamOptions { return u.opts }

// Close ends the health checks and closes the connections that no request uses.
// Requests that are still to come are served all the same.
func (u *Upstream) Close() {
	if u.stop != nil {
		u.stop()
		u.checking.Wait()
	}
	for _, a := range u.known() {
		a.free()
	}
	u.leaveGate()
	for _, a := range u.known() {
		a.transport.CloseIdleConnections()
	}
}

// scheme is that of the URLs that net/http's Transport takes.
func (u *Upstream) scheme() string {
	if u.opts.Scheme == "https" {
		return "https"
	}
	return "http"
}
