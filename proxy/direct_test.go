package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestS37BareLineFeeds: an upstream's lines that end in LF alone reach the client
// as they should be.
func TestS37BareLineFeeds(t *testing.T) {
	up := newRawUpstream(t, always("HTTP/1.1 200 OK\nX: y\nContent-Length: 2\n\nok"))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	wire := f.wire(t, "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\n\r\n")
	if strings.Count(wire, "\n") != strings.Count(wire, "\r\n") || !strings.Contains(wire, "\r\nX: y\r\n") || !strings.HasSuffix(wire, "\r\n\r\nok") {
		t.Errorf("the client got %q", wire)
	}
}

// TestS40HopByHop: what an upstream's Connection field names ends with the
// connection, also beside "close", where net/http's Transport takes the field
// away before anybody can read it.
func TestS40HopByHop(t *testing.T) {
	for _, connection := range []string{"X-A", "close, X-A", "x-a, Keep-Alive, close", "Keep-Alive\r\nConnection: X-A"} {
		up := newRawUpstream(t, always("HTTP/1.1 200 OK\r\nConnection: "+connection+"\r\nX-A: secret\r\nKeep-Alive: timeout=9\r\nProxy-Connection: x\r\nX-B: 1\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok"))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		res := f.get(t, "GET", "/")
		for _, name := range []string{"X-A", "Keep-Alive", "Proxy-Connection"} {
			if v := res.Header.Get(name); v != "" {
				t.Errorf("%q: %s: %s", connection, name, v)
			}
		}
		if body(t, res) != "ok" || res.Header.Get("X-B") != "1" || res.Header.Get("Set-Cookie") != "a=b" {
			t.Errorf("%q: %v", connection, res.Header)
		}
	}
}

// TestS8BodyOfGET: a body of a GET is passed on, and the upstream's connection
// is not used again: a server that does not look for a body there would read it
// as the next request (CL.0).
func TestS8BodyOfGET(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	var dialed atomic.Int64
	r := f.proxy.site.Load().Routes[0]
	dial := r.Upstream.dial
	r.Upstream.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed.Add(1)
		return dial(ctx, network, address)
	}
	for _, c := range []struct {
		method string
		dialed int64
	}{{"POST", 1}, {"GET", 1}, {"GET", 2}, {"POST", 3}, {"POST", 3}} {
		if res := f.get(t, c.method, "/", "Content-Length: 10", "", "GET /x HTT"); body(t, res) != "ok" || dialed.Load() != c.dialed {
			t.Errorf("%s: %d, by connection %d, want %d", c.method, res.StatusCode, dialed.Load(), c.dialed)
		}
	}
	if n := strings.Count(up.bytes(), "\r\n\r\nGET /x HTT"); n != 5 {
		t.Errorf("%d bodies came", n)
	}
}

// A chooser is an https server that may change its mind about HTTP/2.
type chooser struct {
	*httptest.Server
	two      atomic.Bool
	accepted atomic.Int64
}

func newChooser(t *testing.T, h http.HandlerFunc) (*chooser, *tls.Config) {
	c := &chooser{Server: httptest.NewUnstartedServer(h)}
	c.EnableHTTP2 = true
	c.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			c.accepted.Add(1)
		}
	}
	c.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conf := c.TLS.Clone()
		conf.NextProtos = []string{"http/1.1"}
		if c.two.Load() {
			conf.NextProtos = []string{"h2", "http/1.1"}
		}
		return conf, nil
	}}
	c.StartTLS()
	t.Cleanup(c.Server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(c.Certificate())
	return c, &tls.Config{RootCAs: pool}
}

// TestVersionAgreed: an upstream may choose between HTTP/1.1 and HTTP/2 anew
// whenever it is connected to. No request is lost, with or without a body, and a
// connection that turns out to speak HTTP/2 is not made in vain.
func TestVersionAgreed(t *testing.T) {
	up, conf := newChooser(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		io.WriteString(w, r.Proto+" "+string(b))
	})
	r := route("/", up.Listener.Addr().String(), func(o *UpstreamOptions) {
		o.Scheme, o.TLS, o.Places[0].Host = "https", conf, "example.com"
	})
	f := newFront(t, &Site{Routes: []*Route{r}})
	for _, c := range []struct {
		two      bool
		want     string
		accepted int64
	}{{true, "HTTP/2.0", 1}, {true, "HTTP/2.0", 1}, {false, "HTTP/1.1", 3}, {false, "HTTP/1.1", 3}, {true, "HTTP/2.0", 4}, {true, "HTTP/2.0", 4}} {
		if up.two.Swap(c.two) != c.two {
			up.CloseClientConnections()
			r.Upstream.known()[0].transport.(*agreed).two.CloseIdleConnections()
		}
		for _, sent := range []string{"", "body"} {
			fields := []string{"Content-Length: 0"}
			if sent != "" {
				fields = []string{"Content-Length: 4", "", sent}
			}
			res := f.get(t, "POST", "/", fields...)
			if got := body(t, res); got != c.want+" "+sent {
				t.Errorf("answered %d %q, want %s", res.StatusCode, got, c.want)
			}
		}
		if n := up.accepted.Load(); n != c.accepted {
			t.Errorf("%d connections, want %d", n, c.accepted)
		}
	}
}

// TestWebSocketBesideHTTP2: an upstream that prefers HTTP/2, which knows no
// Upgrade, is asked in HTTP/1.1.
func TestWebSocketBesideHTTP2(t *testing.T) {
	up, conf := newChooser(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			io.WriteString(w, r.Proto)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := rw.ReadString('\n')
		io.WriteString(c, line)
	})
	up.two.Store(true)
	f := newFront(t, &Site{Routes: []*Route{route("/", up.Listener.Addr().String(), func(o *UpstreamOptions) {
		o.Scheme, o.TLS, o.Places[0].Host = "https", conf, "example.com"
	})}})
	if got := body(t, f.get(t, "GET", "/")); got != "HTTP/2.0" {
		t.Fatalf("the upstream spoke %s", got)
	}
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, asksWebSocket+"early\n")
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	if line, err := br.ReadString('\n'); line != "early\n" {
		t.Errorf("the tunnel gave %q, %v", line, err)
	}
}

// TestNoWebSocketInHTTP2: an upstream that speaks HTTP/2 alone is not to blame
// for clients that ask for a WebSocket: they could else take it from the others.
func TestNoWebSocketInHTTP2(t *testing.T) {
	up, conf := newChooser(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	up.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		conf := up.TLS.Clone()
		if conf.NextProtos = []string{"h2"}; !slices.Contains(hello.SupportedProtos, "h2") {
			conf.NextProtos = []string{"none"} // with h2, crypto/tls would let HTTP/1.1 through
		}
		return conf, nil
	}
	r := route("/", up.Listener.Addr().String(), func(o *UpstreamOptions) {
		o.Scheme, o.TLS, o.Places[0].Host = "https", conf, "example.com"
		o.Places = append(o.Places, o.Places[0])
		o.Health = HealthPolicy{MaxFails: 1, FailTimeout: time.Minute}
		o.Breaker = &BreakerPolicy{FailureRatio: 0.01, Window: time.Second, MinRequests: 1, OpenFor: time.Minute, Probes: 1}
	})
	f := newFront(t, &Site{Routes: []*Route{r}})
	for range 3 {
		if res := f.get(t, "GET", "/ws", "Connection: Upgrade", "Upgrade: websocket"); res.StatusCode != 502 || !strings.Contains(res.Header.Get("Proxy-Status"), "http_upgrade_failed") {
			t.Errorf("answered %d, %q", res.StatusCode, res.Header.Get("Proxy-Status"))
		}
		if res := f.get(t, "GET", "/"); res.StatusCode != 200 {
			t.Errorf("another client is answered %d", res.StatusCode)
		}
	}
}
