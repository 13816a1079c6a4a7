package proxy

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
)

var (
	errUnaskedUpgrade = errors.New("the upstream switched protocols unasked")
	errStatus         = errors.New("the upstream's status is not one")
)

// discard takes what httputil.ReverseProxy would print: the Event has it.
var discard = log.New(io.Discard, "", 0)

// rewrite makes out what the upstream gets. httputil.ReverseProxy has removed
// hop-by-hop fields and every X-Forwarded field and Forwarded from it already,
// so that nothing set here can be deleted by a client's Connection field.
func (x *exchange) rewrite(in, out *http.Request) {
	up := &x.route.Upstream.opts
	switch up.SendHost {
	case "upstream": // its address is not chosen yet
	case "client":
		out.Host = in.Host
	default:
		out.Host = up.SendHost
	}

	h := out.Header
	for name := range h {
		// CGI and its heirs fold X_Forwarded_For and X-Forwarded-For into one.
		if strings.Contains(name, "_") {
			delete(h, name)
		}
	}
	delete(h, "X-Real-Ip")
	delete(h, "Http2-Settings")
	delete(h, "Expect") // it was met here: the body is read when it is sent on
	// Nobody passes what comes behind a chunked body: the announced names of
	// trailers would reach the upstream, their values would not.
	out.Trailer = nil
	x.setForwarded(in, h)
	for _, field := range x.route.SetHeaders {
		h[field.Name] = []string{field.Value}
	}
	if span := x.traced(); span != nil {
		span.Sent(&x.event, h)
	}
}

// setForwarded says who asked, for what host and how. A trusted peer's word is
// kept and its own address added; from anyone else nothing is believed.
func (x *exchange) setForwarded(in *http.Request, h http.Header) {
	peer, _, err := net.SplitHostPort(in.RemoteAddr)
	if err != nil {
		peer = "unix:" // a Unix socket has no address
	}
	if i := strings.IndexByte(peer, '%'); i >= 0 {
		peer = peer[:i] // the zone of a link-local address means nothing elsewhere
	}
	host, proto := in.Host, "http"
	if in.TLS != nil {
		proto = "https"
	}
	if x.peerTrusted {
		if prior := in.Header["X-Forwarded-For"]; len(prior) > 0 {
			peer = strings.Join(prior, ", ") + ", " + peer
		}
		if v := in.Header.Get("X-Forwarded-Host"); v != "" {
			host = v
		}
		if v := in.Header.Get("X-Forwarded-Proto"); v != "" {
			proto = v
		}
	}
	h["X-Forwarded-For"] = []string{peer}
	h["X-Forwarded-Host"] = []string{host}
	h["X-Forwarded-Proto"] = []string{proto}
}

// wantsWebSocket reports whether a request asks to become a WebSocket, the one
// upgrade that passes: a tunnel of any other protocol, such as h2c, would carry
// any number of requests past every limit.
func wantsWebSocket(r *http.Request) bool {
	ask := r.Header["Upgrade"]
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) && r.ProtoMajor == 1 && r.ContentLength == 0 &&
		len(ask) == 1 && strings.EqualFold(ask[0], "websocket") && hasToken(r.Header["Connection"], "upgrade")
}

func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// buffers lends the buffers in which answers are copied. It keeps as many as a
// busy proxy has in use at a time, and unlike a sync.Pool it keeps them through
// garbage collections: clearing new ones took a twentieth of the time.
type buffers struct{ free chan []byte }

const (
	bufferSize  = 32 << 10
	buffersKept = 128
)

func newBuffers() buffers { return buffers{make(chan []byte, buffersKept)} }

func (b buffers) Get() []byte {
	select {
	case p := <-b.free:
		return p
	default:
		return make([]byte, bufferSize)
	}
}

func (b buffers) Put(p []byte) {
	select {
	case b.free <- p:
	default:
	}
}
