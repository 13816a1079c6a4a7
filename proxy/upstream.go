package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"time"
)

// An Upstream is a server that requests are forwarded to, with the connections
// kept to it. It is safe for concurrent use; Close gives its idle connections
// back.
type Upstream struct {
	opts     UpstreamOptions
	base     *http.Transport
	inFlight atomic.Int64
}

// UpstreamOptions describe an Upstream. Two Upstreams with equal options are
// interchangeable, so a reload keeps the connections of one that did not
// change.
type UpstreamOptions struct {
	Name       string
	Scheme     string // http, https, or h2c for HTTP/2 without TLS
	Address    string // host:port to dial, unless UnixSocket is set
	UnixSocket string // path of the socket to dial
	Host       string // host[:port] of its URL
	BasePath   string // put before every target; percent-encoded, without trailing slash

	// SendHost is the Host that it is sent: "upstream" for its own, "client"
	// for the one the client named, or a literal name, which TLS asks for too.
	SendHost string

	DialTimeout           time.Duration
	ResponseHeaderTimeout time.Duration
	MaxIdleConns          int
	IdleConnTimeout       time.Duration
	// RootCAs and client certificates for https; nil: the system's.
	TLS *tls.Config
}

// maxResponseHeaderBytes bounds what an upstream may send before its body.
const maxResponseHeaderBytes = 1 << 20

// NewUpstream returns an Upstream. It dials nothing yet.
func NewUpstream(o UpstreamOptions) *Upstream {
	dialer := &net.Dialer{Timeout: o.DialTimeout, KeepAlive: 30 * time.Second}
	network, address := "tcp", o.Address
	if o.UnixSocket != "" {
		network, address = "unix", o.UnixSocket
	}
	u := &Upstream{opts: o}
	u.base = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: c}, nil
		},
		TLSClientConfig:        o.TLS.Clone(),
		TLSHandshakeTimeout:    o.DialTimeout,
		ResponseHeaderTimeout:  o.ResponseHeaderTimeout,
		MaxIdleConns:           o.MaxIdleConns,
		MaxIdleConnsPerHost:    o.MaxIdleConns,
		IdleConnTimeout:        o.IdleConnTimeout,
		MaxResponseHeaderBytes: maxResponseHeaderBytes,
		DisableCompression:     true, // bodies pass as they are
		Protocols:              new(http.Protocols),
	}
	switch o.Scheme {
	case "h2c":
		u.base.Protocols.SetUnencryptedHTTP2(true)
	case "https":
		u.base.Protocols.SetHTTP1(true)
		u.base.Protocols.SetHTTP2(true)
		if u.base.TLSClientConfig == nil {
			u.base.TLSClientConfig = &tls.Config{}
		}
		if o.SendHost != "upstream" && o.SendHost != "client" {
			u.base.TLSClientConfig.ServerName = stripPort(o.SendHost)
		}
	default:
		u.base.Protocols.SetHTTP1(true)
	}
	return u
}

func stripPort(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return hostport
}

// Options are those that u was made with.
func (u *Upstream) Options() UpstreamOptions { return u.opts }

// Status is u as it stands now.
func (u *Upstream) Status() UpstreamStatus {
	return UpstreamStatus{Name: u.opts.Name, InFlight: u.inFlight.Load()}
}

// Close closes the connections that no request uses.
func (u *Upstream) Close() { u.base.CloseIdleConnections() }

// scheme is that of the URLs that net/http's Transport takes.
func (u *Upstream) scheme() string {
	if u.opts.Scheme == "https" {
		return "https"
	}
	return "http"
}

// A countedConn counts the writes that it was asked for, which tells a kept
// connection that was dead before a byte was written from one that died with
// a request on it.
type countedConn struct {
	net.Conn
	writes atomic.Int64 // writes that got at least one byte out
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.writes.Add(1)
	}
	return n, err
}

// A sender sends one request to an upstream, once: it is the RoundTripper
// between httputil.ReverseProxy and net/http's Transport.
//
// The Transport sends a request again by itself when it has no body, its
// method is idempotent, and a kept connection closed without an answer: one
// admission would become two requests upstream. It does not where the body is
// neither nil nor http.NoBody and cannot be had anew, so every request gets
// such a body. What that takes away, a kept connection found dead before a
// byte was written, is replaced here.
type sender struct {
	base *http.Transport
	body *clientBody // nil: the request has none
}

// deadConns bounds how many dead kept connections one request goes through. A
// server that restarts leaves as many as were kept.
const deadConns = 300

// maxInterim bounds the interim answers to one request: they pass at once, so
// nothing else would.
const maxInterim = 10

var errInterim = errors.New("the upstream gives interim answers without end")

func (s sender) RoundTrip(req *http.Request) (*http.Response, error) {
	var conn *countedConn
	var before int64
	gotConn := func(info httptrace.GotConnInfo) {
		conn = nil
		if info.Reused {
			if conn = counted(info.Conn); conn != nil {
				before = conn.writes.Load()
			}
		}
	}
	// ReverseProxy has just made a trace for this request; adding to it saves
	// a second one and the reflection that joins the two.
	trace := httptrace.ContextClientTrace(req.Context())
	trace.GotConn = gotConn
	pass, interim := trace.Got1xxResponse, 0
	trace.Got1xxResponse = func(code int, header textproto.MIMEHeader) error {
		if interim++; interim > maxInterim {
			return errInterim
		}
		return pass(code, header)
	}
	body := req.Body
	for try := 0; ; try++ {
		var sent *attempt
		if s.body == nil {
			sendEmpty(req)
		} else {
			sent = &attempt{body: body}
			req.Body = sent
		}
		res, err := s.base.RoundTrip(req)
		if err == nil || conn == nil || conn.writes.Load() != before || try == deadConns || req.Context().Err() != nil {
			return res, err
		}
		if sent != nil && !(sent.stop() && s.body.rewind()) {
			return nil, err
		}
	}
}

func counted(c net.Conn) *countedConn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	counted, _ := c.(*countedConn)
	return counted
}

// errRouteTimeout is the cause with which a route's timeout ends a request.
var errRouteTimeout = errors.New("the route's timeout is over")
