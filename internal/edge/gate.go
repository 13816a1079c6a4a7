// Package edge is what stands before net/http: how many connections are taken,
// and from whom; whose address a connection has; and how long a client may keep
// what is sent to it waiting.
//
// It knows nothing of HTTP. What can be bounded only with a request in hand is
// in package proxy.
package edge

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Limits are what a Gate holds connections to. The zero Limits bound nothing.
type Limits struct {
	// Connections is how many may be open in all; 0: no bound.
	Connections int
	// PerClient is how many may be open from one client address; 0: no bound.
	// Unix sockets have none, and are counted in all only.
	PerClient int
	// IPv6Prefix is how many bits of an IPv6 address tell clients apart.
	IPv6Prefix int
	// Exempt reports whether PerClient does not hold for a peer: a proxy in
	// front, whose connections are those of many clients. nil: for nobody.
	Exempt func(peer netip.Addr) bool

	// SendTimeout is how long a client may take nothing of what is sent to it,
	// and MinSendRate how much it must take on average in such a time, in bytes
	// a second. A connection on which nothing is to be sent may be silent. 0: no
	// bound.
	SendTimeout time.Duration
	MinSendRate int64

	// Introduced reports whether a peer begins its connections with a header of
	// the PROXY protocol, whose source is then the address of the connection.
	// The invalid Addr is a peer over a Unix socket. nil: nobody does.
	Introduced func(peer netip.Addr) bool
	// IntroTimeout is how long such a header may take.
	IntroTimeout time.Duration
}

// Counts are a Gate's connections, now and since it was made.
type Counts struct {
	Open int64
	// RefusedInAll and RefusedByClient were beyond Connections and PerClient,
	// RefusedIntro began with no good header of the PROXY protocol.
	RefusedInAll, RefusedByClient, RefusedIntro uint64
	// SlowReaders were cut by SendTimeout or MinSendRate.
	SlowReaders uint64
}

// A Gate counts the connections of any number of listeners and refuses those
// beyond its Limits, by closing them before a byte is read: with an answer, or
// with TLS, a refusal would cost more than the connection. It is safe for
// concurrent use.
type Gate struct {
	log    *slog.Logger
	limits atomic.Pointer[Limits]

	open                                atomic.Int64
	inAll, byClient, badIntro, slowRead atomic.Uint64
	warned                              atomic.Int64 // when a refusal was last logged, in Unix nanoseconds

	mu      sync.Mutex
	clients map[netip.Prefix]int // open connections; no more entries than connections
}

// NewGate returns a Gate without limits.
func NewGate(log *slog.Logger) *Gate {
	g := &Gate{log: log, clients: make(map[netip.Prefix]int)}
	g.Limit(Limits{})
	return g
}

// Limit changes the limits. Connections that are open stay, and are held to
// the new times.
func (g *Gate) Limit(l Limits) { g.limits.Store(&l) }

// Counts are those of now.
func (g *Gate) Counts() Counts {
	return Counts{
		Open: g.open.Load(), RefusedInAll: g.inAll.Load(), RefusedByClient: g.byClient.Load(),
		RefusedIntro: g.badIntro.Load(), SlowReaders: g.slowRead.Load(),
	}
}

// Listener returns l behind the gate.
func (g *Gate) Listener(l net.Listener) net.Listener {
	boundUnsent(l)
	return &listener{l, g}
}

type listener struct {
	net.Listener
	gate *Gate
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if conn := l.gate.admit(c); conn != nil {
			return conn, nil
		}
	}
}

// admit counts c, or closes it and returns nil.
func (g *Gate) admit(c net.Conn) *Conn {
	limits := g.limits.Load()
	conn := &Conn{Conn: c, gate: g, since: time.Now(), peer: addrOf(c.RemoteAddr())}
	if n := g.open.Add(1); limits.Connections > 0 && n > int64(limits.Connections) {
		g.refuse(&g.inAll, "every connection is taken", "max_connections", limits.Connections)
		conn.abort()
		return nil
	}
	if limits.Introduced != nil && limits.Introduced(conn.peer) {
		conn.intro = &intro{} // the client is known when that has been read
		return conn
	}
	if !conn.count(limits, conn.peer) {
		conn.abort()
		return nil
	}
	return conn
}

// count adds c to the connections of a client; it is false when these are too
// many.
func (c *Conn) count(limits *Limits, client netip.Addr) bool {
	if !client.IsValid() || limits.Exempt != nil && limits.Exempt(client) {
		return true
	}
	bits := client.BitLen()
	if client.Is6() && limits.IPv6Prefix > 0 {
		bits = limits.IPv6Prefix
	}
	prefix, err := client.Prefix(bits)
	if err != nil {
		return true // bits fit every address that there is
	}
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.gone {
		return false
	}
	if limits.PerClient > 0 && g.clients[prefix] >= limits.PerClient {
		g.refuse(&g.byClient, "a client has too many connections", "max_connections_per_client", limits.PerClient)
		return false
	}
	g.clients[prefix]++
	c.client = prefix
	return true
}

// forget takes c off the counts.
func (g *Gate) forget(c *Conn) {
	g.open.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	c.gone = true
	if !c.client.IsValid() {
		return
	}
	if g.clients[c.client]--; g.clients[c.client] <= 0 {
		delete(g.clients, c.client)
	}
}

// refusalWarnings is how long a warning of refused connections stands for those
// that follow: clients bring them about.
const refusalWarnings = 10 * time.Second

func (g *Gate) refuse(counter *atomic.Uint64, what, name string, value any) {
	n := counter.Add(1)
	now, last := time.Now().UnixNano(), g.warned.Load()
	if now-last >= int64(refusalWarnings) && g.warned.CompareAndSwap(last, now) {
		g.log.Warn("connections are refused: "+what, name, value, "refused", n)
	}
}

// addrOf is the address behind a; invalid if it has none, as for Unix sockets.
func addrOf(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
