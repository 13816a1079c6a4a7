package edge

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Conn is a client's connection behind a Gate. What is written to it must be
// taken by the client in good time; what is read is not looked at.
type Conn struct {
	net.Conn
	gate   *Gate
	peer   netip.Addr // of the socket; invalid for a Unix socket
	since  time.Time  // when it was accepted
	intro  *intro     // nil: the peer does not introduce its clients
	closed sync.Once

	// Guarded by the gate's mu.
	client netip.Prefix // whose connection it counts as; invalid: nobody's
	gone   bool         // it was closed, and counts no more

	theirs atomic.Bool  // whoever has the connection has set a deadline for writing
	until  atomic.Int64 // our own deadline for writing, counted from since; 0: none
}

// Write writes p within the limits of the Gate. The deadline is set anew when a
// quarter of its time has gone, so that most writes cost no more than a look at
// the clock, and moves on with what the client takes.
func (c *Conn) Write(p []byte) (n int, err error) {
	limits := c.gate.limits.Load()
	most := limits.SendTimeout
	if most <= 0 || c.theirs.Load() {
		return c.Conn.Write(p)
	}
	for {
		if now := time.Since(c.since); time.Duration(c.until.Load())-now < most {
			until := now + most + most/4
			c.until.Store(int64(until))
			if err := c.Conn.SetWriteDeadline(c.since.Add(until)); err != nil {
				return n, err
			}
		}
		taken, err := c.Conn.Write(p[n:])
		n += taken
		if err == nil || c.theirs.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if taken == 0 || float64(taken) < float64(limits.MinSendRate)*most.Seconds() {
			c.gate.slowRead.Add(1)
			c.gate.log.Debug("a client is cut that reads too slowly", "taken", taken, "in", most.String())
			c.abort()
			return n, err
		}
	}
}

// SetWriteDeadline hands the bounding of writes to whoever calls it; the zero
// Time gives it back.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.theirs.Store(!t.IsZero())
	c.until.Store(0)
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.theirs.Store(!t.IsZero())
	c.until.Store(0)
	return errors.Join(c.SetReadDeadline(t), c.Conn.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.intro != nil {
		c.intro.keepDeadline(t)
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if c.intro == nil {
		return c.Conn.Read(p)
	}
	return c.intro.read(c, p)
}

// RemoteAddr is the client's. It waits for the header of the PROXY protocol
// where one is to come.
func (c *Conn) RemoteAddr() net.Addr {
	if c.intro == nil {
		return c.Conn.RemoteAddr()
	}
	return c.intro.source(c)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.closed.Do(func() { c.gate.forget(c) })
	return c.Conn.Close()
}

// abort closes a connection that is refused, or of a client that does not read:
// by a reset, which leaves nothing behind in the kernel. What is written would
// stay there for as long as such a client likes.
func (c *Conn) abort() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// CloseWrite lets net/http send an answer to its end before it closes.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SyscallConn is the socket's, for who asks the kernel about the client.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.Conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
