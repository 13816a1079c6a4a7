package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// Bounds are the fields of [server] that say what one client may take, whatever
// the limits of routes say. Counts of 0 are without end.
type Bounds struct {
	MaxConnections    int            // in all
	MaxPerClient      int            // connections of one address
	ProxyProtocol     identity.Trust // peers that begin connections with a PROXY header; empty: none
	MaxHeaders        int            // lines of a request's header
	BodyTimeout       time.Duration
	MinBodyRate       int64 // bytes a second
	SendTimeout       time.Duration
	MinSendRate       int64 // bytes a second
	MaxStreams        int   // of one HTTP/2 connection
	MaxResets         int   // streams given up on one HTTP/2 connection, at once and then a minute
	MaxWaiting        int   // requests of one HTTP/2 connection that wait
	WebSocketIdleTime time.Duration
}

// A client may take half of the connections: one alone cannot keep out the rest,
// and a load balancer that nobody told us of has room. The rates are what the
// slowest of links carry, with time for a bad moment.
func defaultBounds() Bounds {
	return Bounds{
		MaxConnections:    32768,
		MaxPerClient:      16384,
		MaxHeaders:        100,
		BodyTimeout:       10 * time.Second,
		MinBodyRate:       240,
		SendTimeout:       30 * time.Second,
		MinSendRate:       240,
		MaxStreams:        100,
		MaxResets:         500,
		MaxWaiting:        100,
		WebSocketIdleTime: time.Hour,
	}
}

// maxStreams keeps what the streams of a connection may send before it is read
// within the connection's own window, which has 31 bits.
const maxStreams = 10_000

func (t *table) bounds(s *Server) {
	b := &s.Bounds
	t.int("max_connections", &b.MaxConnections, 0, 1<<30)
	if t.has("max_connections") {
		b.MaxPerClient = (b.MaxConnections + 1) / 2
	}
	t.int("max_connections_per_client", &b.MaxPerClient, 0, 1<<30)
	t.introduced(s)
	t.int("max_headers", &b.MaxHeaders, 0, 1<<20)
	t.duration("body_timeout", &b.BodyTimeout)
	t.byteRate("min_body_rate", &b.MinBodyRate)
	t.duration("send_timeout", &b.SendTimeout)
	t.byteRate("min_send_rate", &b.MinSendRate)
	t.int("max_streams", &b.MaxStreams, 1, maxStreams)
	if t.has("max_streams") {
		b.MaxWaiting = b.MaxStreams
	}
	t.int("max_resets_per_connection", &b.MaxResets, 0, 1<<30)
	t.int("max_waiting_per_connection", &b.MaxWaiting, 0, 1<<30)
	t.duration("websocket_idle_timeout", &b.WebSocketIdleTime)
}

// introduced reads proxy_protocol: true for the trusted proxies, or a list.
func (t *table) introduced(s *Server) {
	const key = "proxy_protocol"
	t.describe(key, &node{AnyOf: []*node{{Type: "boolean"}, {Type: "array", Items: &node{Type: "string"}}}})
	switch v := t.values[key].(type) {
	case bool:
	case nil, []any:
		t.trust(key, &s.Bounds.ProxyProtocol)
		return
	default:
		t.take(key)
		t.bad(key, `must be true, false or a list of peers such as ["10.0.0.0/8"], not %s`, kindOf(v))
		return
	}
	var on bool
	t.flag(key, &on)
	switch {
	case !on:
	case s.TrustedProxies.Empty():
		t.bad(key, `is for the peers in trusted_proxies, and there is none; write proxy_protocol = ["10.0.0.0/8"] with the addresses of your load balancers`)
	default:
		s.Bounds.ProxyProtocol = s.TrustedProxies
	}
}

const byteRateForm = `a number of bytes a second such as "240B/s"`

// byteRate reads a size a second.
func (t *table) byteRate(key string, dst *int64) {
	t.quantity(key, byteRateForm, func(s string) error {
		size, ok := strings.CutSuffix(s, "/s")
		if !ok {
			return fmt.Errorf("%q is not %s", s, byteRateForm)
		}
		n, err := parseSize(size)
		if err == nil && n > 1<<30 {
			err = errors.New("must be at most 1GiB/s")
		}
		if err == nil {
			*dst = n
		}
		return err
	})
}

// words say what a client may take.
func (b Bounds) words() []string {
	bound := func(n int, what string) string {
		if n == 0 {
			return "any number of " + what
		}
		return fmt.Sprintf("%d %s", n, what)
	}
	lines := []string{
		fmt.Sprintf("at most %s, %s", bound(b.MaxConnections, "connections"), bound(b.MaxPerClient, "of one client address")),
		fmt.Sprintf("a request has at most %s; its body may stall for %s below %s/s, an answer for %s below %s/s", bound(b.MaxHeaders, "header lines"),
			limiter.FormatDuration(b.BodyTimeout), formatSize(b.MinBodyRate), limiter.FormatDuration(b.SendTimeout), formatSize(b.MinSendRate)),
		fmt.Sprintf("an HTTP/2 connection has at most %s, %s, and %s at once and then a minute", bound(b.MaxStreams, "requests under way"),
			bound(b.MaxWaiting, "of them waiting"), bound(b.MaxResets, "given up")),
		fmt.Sprintf("a WebSocket ends after %s of silence", limiter.FormatDuration(b.WebSocketIdleTime)),
	}
	if !b.ProxyProtocol.Empty() {
		lines = append(lines, "a header of the PROXY protocol is asked of "+b.ProxyProtocol.String())
	}
	return lines
}
