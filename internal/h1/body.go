package h1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// errEnded is what a body says that has been closed.
var errEnded = errors.New("the answer's body is closed")

var errCut = fmt.Errorf("TLS was not ended by the server, so that the answer may be cut; it needs a Content-Length or chunks: %w", io.ErrUnexpectedEOF)

// A body is what an exchange knows about the body of its answer.
type body struct {
	reading sync.Mutex // held while it is read; guards what follows
	chunks  io.Reader  // nil: by length, or up to the end of the connection
	left    int64      // of its length; -1: until the connection ends
	keep    bool       // the connection may serve another request afterwards
	end     error      // why it is not read any more; nil: it is
}

// Read implements the io.Reader of an answer's body. The connection is given
// back with the last bytes.
func (x *exchange) Read(p []byte) (n int, err error) {
	x.reading.Lock()
	defer x.reading.Unlock()
	switch {
	case x.end != nil:
		return 0, x.end
	case x.chunks != nil:
		if n, err = x.chunks.Read(p); err == io.EOF {
			err = x.readTrailer()
		}
	case x.left < 0:
		// Such an answer "is complete only if a valid closure alert has been
		// received" (RFC 9112, section 9.8). net/http's Transport takes it as
		// whole without, and so what an attacker cut.
		if n, err = x.br.Read(p); err == io.EOF && x.c.cut() {
			err = errCut
		}
	default:
		n, err = x.br.Read(p[:min(int64(len(p)), x.left)])
		if x.left -= int64(n); x.left == 0 {
			err = io.EOF
		} else if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	switch err {
	case nil:
	case io.EOF:
		x.over(io.EOF, x.keep)
	default:
		err = x.why(err)
		x.over(err, false)
	}
	return n, err
}

// Close implements the io.Closer of an answer's body. Of what is left, it reads
// only what is there: to end a connection is cheaper than to wait.
func (x *exchange) Close() error {
	if !x.reading.TryLock() {
		x.abort() // a read that waits
		x.reading.Lock()
	}
	defer x.reading.Unlock()
	if x.end == nil {
		all := x.chunks == nil && x.left >= 0 && x.left == int64(x.br.Buffered())
		if all {
			_, _ = x.br.Discard(int(x.left))
		}
		x.over(errEnded, all && x.keep)
	}
	return nil
}

// over ends the body, once.
func (x *exchange) over(why error, clean bool) {
	x.end = why
	x.finish(clean)
	x.chunks = nil
}

// readTrailer reads what follows the last chunk, and returns io.EOF if all is
// well.
func (x *exchange) readTrailer() error {
	b, err := x.br.Peek(2)
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case b[0] == '\r' && b[1] == '\n':
		_, _ = x.br.Discard(2)
		return io.EOF
	}
	text, err := readHead(x.br, x.t.MaxHeaderBytes, func(b []byte) bool { return b[0] != '\n' })
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	trailer := make(http.Header)
	if err := parseFields(trailer, text, x.t.MaxHeaderBytes); err != nil {
		return err
	}
	for name, values := range trailer {
		if !inTrailer(name) {
			continue
		}
		if x.res.Trailer == nil {
			x.res.Trailer = make(http.Header)
		}
		x.res.Trailer[name] = values
	}
	return io.EOF
}

// announcedTrailers are the trailers that an answer says will come.
func announcedTrailers(lines []string) http.Header {
	var h http.Header
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.Trim(name, " \t"))
			if !isToken(name) || !inTrailer(name) {
				continue
			}
			if h == nil {
				h = make(http.Header)
			}
			h[name] = nil
		}
	}
	return h
}

// inTrailer reports whether a field may come behind the body: not one that says
// where that ends, or that belongs to the connection (RFC 9110, section 6.5.1).
func inTrailer(name string) bool {
	if isFraming(name) {
		return false
	}
	for _, hop := range hopByHop {
		if name == hop {
			return false
		}
	}
	return true
}

// A tunnel is the connection after a 101. What came right behind it is read
// first.
type tunnel struct {
	net.Conn
	early []byte
	stop  func() bool
}

func (t *tunnel) Read(p []byte) (int, error) {
	if len(t.early) > 0 {
		n := copy(p, t.early)
		t.early = t.early[n:]
		return n, nil
	}
	return t.Conn.Read(p)
}

// CloseWrite lets one side end before the other.
func (t *tunnel) CloseWrite() error { return closeWrite(t.Conn) }

func (t *tunnel) Close() error {
	t.stop()
	return t.Conn.Close()
}
