package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"time"
)

// ServerOptions bound what clients may do before a request is read.
type ServerOptions struct {
	// ReadHeaderTimeout is how long a head may take, and a body until a Proxy has
	// its request: another handler on the Server that reads bodies has to lift
	// the deadline with an http.ResponseController.
	ReadHeaderTimeout time.Duration
	IdleTimeout       time.Duration // 0: no bound
	MaxHeaderBytes    int
	// MaxStreams is how many requests a client may have under way on one HTTP/2
	// connection; 0 means DefaultMaxStreams.
	MaxStreams int
	TLS        *tls.Config // nil: plain HTTP, and HTTP/2 by prior knowledge
}

// A Server is an http.Server for any number of listeners, and the place where
// requests wait that have long to wait.
type Server struct {
	*http.Server
	proxy *Proxy
	lot   *lot
}

// NewServer returns a Server with p as its handler. When ctx ends, with
// limiter.ErrShutdown as its cause, requests that wait or have no answer yet
// are told to come back, and others are cut.
func NewServer(ctx context.Context, p *Proxy, o ServerOptions, logger *slog.Logger) *Server {
	s := &Server{Server: newHTTPServer(ctx, p, o, logger), proxy: p}
	s.Protocols.SetHTTP1(true)
	if s.TLSConfig = o.TLS; o.TLS != nil {
		s.Protocols.SetHTTP2(true)
	} else {
		s.Protocols.SetUnencryptedHTTP2(true)
	}
	again := newHTTPServer(ctx, p, o, logger)
	again.Protocols.SetHTTP1(true)
	// Whatever an owner puts before p sees connections that come back too.
	again.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.Handler.ServeHTTP(w, r) })
	s.lot = newLot(ctx, p, again)
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, &place{conn: c, lot: s.lot})
	}
	again.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		back := c.(*returned)
		return context.WithValue(ctx, connKey{}, &place{conn: back.Conn, lot: s.lot, back: back})
	}
	return s
}

func newHTTPServer(ctx context.Context, p *Proxy, o ServerOptions, logger *slog.Logger) *http.Server {
	streams := cmp.Or(o.MaxStreams, DefaultMaxStreams)
	return &http.Server{
		Handler:                      p,
		DisableGeneralOptionsHandler: true, // OPTIONS * is not answered past the log
		ReadHeaderTimeout:            o.ReadHeaderTimeout,
		// net/http answers an expectation that it does not know itself, and then
		// waits for the body. It lifts this where there is none; of others the
		// Proxy does.
		ReadTimeout:    o.ReadHeaderTimeout,
		IdleTimeout:    cmp.Or(o.IdleTimeout, -1), // of 0 it would make ReadTimeout
		MaxHeaderBytes: o.MaxHeaderBytes,
		Protocols:      new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          streams,
			MaxReadFrameSize:              frameSize,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: min(streams*streamWindow, math.MaxInt32), // a window has 31 bits
		},
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(&serverLog{log: logger}, "", 0),
	}
}

// Shutdown closes the listeners and waits until no request is under way, also
// none that is parked or has become a WebSocket, or until ctx ends. WebSockets
// are told that they end, on both sides, and get a few seconds for it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.lot.again.SetKeepAlivesEnabled(false)
	s.proxy.tunnels.drain()
	if err := s.Server.Shutdown(ctx); err != nil {
		return err
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		s.proxy.Wait()
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.lot.close()
	return s.lot.again.Shutdown(ctx)
}

// Close cuts every connection. Requests that wait end with the context that the
// Server was made with.
func (s *Server) Close() error {
	s.lot.close()
	return errors.Join(s.Server.Close(), s.lot.again.Close())
}

// DefaultMaxStreams is what ServerOptions mean without MaxStreams.
const DefaultMaxStreams = 100

// Of an HTTP/2 connection: how much of the body of each stream a client may send
// before that is read. All of them together fit the connection's own window, or
// unread bodies of requests that wait would keep out the body of the one whose
// turn it is. A frame has a buffer of its size for as long as the connection
// lives, and net/http's of 1 MiB would not fit the window; this is what every
// peer must take (RFC 9113, section 4.2).
const (
	streamWindow = 128 << 10
	frameSize    = 16 << 10
)

// A serverLog passes on what net/http prints, a line an event. Most of it is
// the fault of clients (TLS handshakes that fail, broken HTTP/2 frames). That no
// connection can be accepted, as when descriptors run out, is not, and is told
// once in a while: clients can bring it about.
type serverLog struct {
	log    *slog.Logger
	warned time.Time // that no connection can be accepted; log.Logger writes one line at a time
}

const acceptWarnings = 10 * time.Second

func (l *serverLog) Write(p []byte) (int, error) {
	line := clip(strings.TrimSpace(string(p)), 1024)
	if now := time.Now(); strings.HasPrefix(line, "http: Accept error") && now.Sub(l.warned) >= acceptWarnings {
		l.warned = now
		l.log.Warn("connections cannot be accepted; of too many open files, see ulimit -n or LimitNOFILE", "error", line)
	} else {
		l.log.Debug("connection error", "error", line)
	}
	return len(p), nil
}
