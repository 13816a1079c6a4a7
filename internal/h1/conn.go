package h1

import (
	"crypto/tls"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// A Counted is a connection that counts what it is written, and bounds how long
// that takes. Below TLS, it tells a kept connection that was dead before a byte
// was written from one that died with a request on it, and one that TLS ended
// from one that was cut.
type Counted struct {
	net.Conn
	timeout time.Duration
	written atomic.Int64
	ended   bool // it was read to its end; known to whoever reads
}

// Count returns c with a counter. No Write may take longer than timeout; 0: no
// bound.
func Count(c net.Conn, timeout time.Duration) *Counted {
	return &Counted{Conn: c, timeout: timeout}
}

// Write implements net.Conn.
func (c *Counted) Write(b []byte) (int, error) {
	if c.timeout > 0 {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.timeout)) // a closed connection fails the Write
	}
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// Read implements net.Conn.
func (c *Counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF {
		c.ended = true
	}
	return n, err
}

// CloseWrite implements what half-closes, if the connection below can.
func (c *Counted) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite lets one direction of a connection end before the other, or both
// at once where that is all that can be done.
func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// Written is how many bytes went out so far.
func (c *Counted) Written() int64 { return c.written.Load() }

// A conn is a connection that is kept between requests.
type conn struct {
	net.Conn                  // TLS, if there is TLS
	raw      net.Conn         // below it
	counted  *Counted         // raw, if that counts
	socket   syscall.RawConn  // of raw; nil: it is no socket
	polled   func(fd uintptr) // asks whether it is quiet
	isQuiet  bool             // what polled found
	byte     [1]byte          // for readAhead
	since    time.Time        // when it became idle
}

func newConn(c net.Conn) *conn {
	kept := &conn{Conn: c, raw: c}
	if t, ok := c.(*tls.Conn); ok {
		kept.raw = t.NetConn()
	}
	under := kept.raw
	if counted, ok := under.(*Counted); ok {
		kept.counted, under = counted, counted.Conn
	}
	if s, ok := under.(syscall.Conn); ok {
		if socket, err := s.SyscallConn(); err == nil {
			kept.socket = socket
			kept.polled = func(fd uintptr) { kept.isQuiet = quiet(fd) }
		}
	}
	return kept
}

// quiet reports whether nothing has come on an idle connection. An end or a
// reset makes it useless; bytes that nobody asked for would be taken for the
// next answer. What cannot be asked is taken to be quiet.
func (c *conn) quiet() bool {
	if c.socket == nil {
		return true
	}
	c.isQuiet = false
	err := c.socket.Control(c.polled)
	return err == nil && c.isQuiet
}

// readAhead reports whether TLS has taken more from the socket than was read, of
// which the kernel knows nothing any more: whole records are read, and of what
// is there behind them some too.
func (c *conn) readAhead() bool {
	if c.raw == c.Conn {
		return false
	}
	_ = c.SetReadDeadline(time.Unix(1, 0)) // so that nothing is read from the socket
	n, err := c.Read(c.byte[:])
	_ = c.SetReadDeadline(time.Time{})
	return n > 0 || !isLate(err)
}

// written is how many bytes are known to have gone out.
func (c *conn) written() int64 {
	if c.counted != nil {
		return c.counted.Written()
	}
	return 0
}

// cut reports, of a connection whose end was read, whether anybody on the way
// may have made that end: it is of TLS, and its alert close_notify has not come.
// crypto/tls does not tell. It returns io.EOF for the alert, and also, as
// "popular web sites seem to do this", for an end of TCP between two records;
// but only of the latter is the end of the connection below read.
func (c *conn) cut() bool { return c.raw != c.Conn && c.counted != nil && c.counted.ended }

// abort ends the connection at once, without the farewell of TLS: whoever reads
// or writes gets an error.
func (c *conn) abort() { _ = c.raw.Close() }
