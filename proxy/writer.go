package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// answer is the ResponseWriter that an exchange writes to. It notes what was
// sent, and it puts the proxy's own fields on the answer at the last moment:
// httputil.ReverseProxy clears the header after every interim answer.
type answer struct {
	http.ResponseWriter
	status    int          // the final status; 0 before it is written
	sent      atomic.Int64 // bytes of the body; after Hijack, all bytes to the client
	received  atomic.Int64 // after Hijack, all bytes from the client
	failed    bool         // a write to the client failed
	final     func(http.Header)
	finalOnly bool // HTTP/1.0 knows no interim answers (RFC 9110, section 15.2)
	patience  *patience
	socket    *webSocket // what it becomes by Hijack
}

func (a *answer) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		if a.finalOnly || status == http.StatusContinue {
			return // the expectation was met here, and never sent on
		}
		removeHopByHop(a.Header())
		a.ResponseWriter.WriteHeader(status)
		return
	}
	if a.status == 0 {
		a.status = status
		a.final(a.Header())
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	a.patience.wait(len(p))
	n, err := a.ResponseWriter.Write(p)
	a.patience.got(n)
	a.sent.Add(int64(n))
	if err != nil {
		a.failed = true
	}
	return n, err
}

// FlushError is what http.ResponseController calls.
func (a *answer) FlushError() error {
	a.patience.wait(0)
	err := http.NewResponseController(a.ResponseWriter).Flush()
	a.patience.got(0)
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		a.failed = true
	}
	return err
}

// finalFields puts the proxy's own fields on the head of an answer.
func (x *exchange) finalFields(h http.Header) {
	if x.body != nil {
		x.body.patience.end() // from now on it may be one side of a conversation
	}
	if !misleads(x.w.status, x.permit) {
		WriteRateLimit(h, x.site.RateLimitHeaders, x.permit)
	}
	if x.route != nil && x.route.ServerTiming {
		h.Add("Server-Timing", serverTiming(x.event.Waited, x.event.UpstreamDuration))
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // else net/http guesses one from the body
	}
	if x.lastOnConnection() {
		h.Set("Connection", "close")
	}
}

// lastOnConnection reports whether the client must be told that its HTTP/1
// connection ends with this answer, as it may disagree with us on where the
// next request begins.
func (x *exchange) lastOnConnection() bool {
	r := x.r
	switch {
	case r.ProtoMajor != 1:
		return false
	case r.Method == http.MethodConnect: // it may have sent on for a tunnel
		return true
	case !r.ProtoAtLeast(1, 1):
		// net/http ignores a Transfer-Encoding in HTTP/1.0 and hides that it was
		// there; behind it, chunks would be read as requests.
		return true
	case len(r.TransferEncoding) > 0:
		// A chunked request that also had a Content-Length looks the same here
		// as one that had not (RFC 9112, section 6.1).
		return true
	}
	// In full duplex, net/http does not look after what is left of a body: a
	// rest that is slow, or of which it reads no more, would be read as the next
	// request.
	return x.body != nil && !x.body.ended.Load()
}

// Hijack hands the connection over for a protocol upgrade. What the client
// sent right behind its request stands in the server's buffer already and is
// read first; httputil.ReverseProxy reads from the connection alone.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.status = http.StatusSwitchingProtocols
	a.final(a.Header())
	t := &tunnel{Conn: conn, buffered: rw.Reader, socket: a.socket, received: &a.received}
	a.socket.client, a.socket.down.w = conn, counter{conn, &a.sent}
	return t, rw, nil
}

// A tunnel is a hijacked client connection.
type tunnel struct {
	net.Conn
	socket   *webSocket
	buffered *bufio.Reader // nil when it has been read
	received *atomic.Int64
}

func (t *tunnel) Read(p []byte) (n int, err error) {
	defer func() { t.received.Add(int64(n)) }()
	if t.buffered != nil {
		if n := t.buffered.Buffered(); n > 0 {
			return t.buffered.Read(p[:min(n, len(p))])
		}
		t.buffered = nil
	}
	return t.Conn.Read(p)
}

func (t *tunnel) Write(p []byte) (int, error) { return t.socket.pass(&t.socket.down, p) }

// A counter counts what is written.
type counter struct {
	io.Writer
	bytes *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// CloseWrite lets a half-closed tunnel end as such.
func (t *tunnel) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return t.Conn.Close()
}

// hopByHop are the fields of one connection (RFC 9110, section 7.6.1), and
// those that net/http treats so.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// removeHopByHop takes the fields of one connection off an interim answer,
// which httputil.ReverseProxy passes as it is.
func removeHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		h.Del(name)
	}
}
