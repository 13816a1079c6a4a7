package proxy

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// ServerOptions bound what clients may do before a request is read.
type ServerOptions struct {
	ReadHeaderTimeout time.Duration
	IdleTimeout       time.Duration
	MaxHeaderBytes    int
	TLS               *tls.Config // nil: plain HTTP, and HTTP/2 by prior knowledge
}

// connKey is the key of a request's net.Conn in its context.
type connKey struct{}

// NewServer returns an http.Server with p as its handler, for any number of
// listeners. When ctx ends, with limiter.ErrShutdown as its cause, requests
// that wait or have no answer yet are told to come back, and others are cut.
func NewServer(ctx context.Context, p *Proxy, o ServerOptions, logger *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:                      p,
		DisableGeneralOptionsHandler: true, // OPTIONS * is not answered past the log
		ReadHeaderTimeout:            o.ReadHeaderTimeout,
		IdleTimeout:                  o.IdleTimeout,
		MaxHeaderBytes:               o.MaxHeaderBytes,
		TLSConfig:                    o.TLS,
		Protocols:                    new(http.Protocols),
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: log.New(serverLog{logger}, "", 0),
	}
	s.Protocols.SetHTTP1(true)
	if o.TLS != nil {
		s.Protocols.SetHTTP2(true)
	} else {
		s.Protocols.SetUnencryptedHTTP2(true)
	}
	return s
}

// serverLog passes on what net/http prints, a line an event. Most of it is the
// fault of clients (TLS handshakes that fail, broken HTTP/2 frames).
type serverLog struct{ log *slog.Logger }

func (l serverLog) Write(p []byte) (int, error) {
	l.log.Debug("connection error", "error", clip(strings.TrimSpace(string(p)), 1024))
	return len(p), nil
}
