package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// seen is what a net/http upstream saw of a request.
type seen struct{ proto, host, sni, forwardedHost, length, body string }

func sight(at chan<- seen) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s := seen{r.Proto, r.Host, "", r.Header.Get("X-Forwarded-Host"), r.Header.Get("Content-Length"), string(b)}
		if r.TLS != nil {
			s.sni = r.TLS.ServerName
		}
		at <- s
		io.WriteString(w, "ok")
	}
}

// TestCase55Host: the Host and the name that TLS asks for are as configured,
// over every protocol (golang/go #28168, #14413, #10342).
func TestCase55Host(t *testing.T) {
	at := make(chan seen, 1)
	plain := upstreamHTTP(t, sight(at))
	secure := func(h2 bool) (string, *tls.Config) {
		s := httptest.NewUnstartedServer(sight(at))
		s.EnableHTTP2 = h2
		s.StartTLS()
		t.Cleanup(s.Close)
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		return s.Listener.Addr().String(), &tls.Config{RootCAs: pool}
	}
	tls1, conf1 := secure(false)
	tls2, conf2 := secure(true)
	for _, up := range []struct {
		scheme, addr, proto string
		conf                *tls.Config
	}{{"http", plain, "HTTP/1.1", nil}, {"h2c", plain, "HTTP/2.0", nil}, {"https", tls1, "HTTP/1.1", conf1}, {"https", tls2, "HTTP/2.0", conf2}} {
		for sendHost, want := range map[string]string{"upstream": "example.com:99", "client": "front.test", "api.example.com": "api.example.com"} {
			f := newFront(t, &Site{Routes: []*Route{route("/", up.addr, func(o *UpstreamOptions) {
				o.Scheme, o.SendHost, o.Places[0].Host, o.TLS = up.scheme, sendHost, "example.com:99", up.conf
			})}})
			res := f.get(t, "POST", "/", "Content-Length: 4", "", "body")
			if body(t, res) != "ok" || res.StatusCode != 200 {
				t.Fatalf("%s %s: status %d", up.scheme, sendHost, res.StatusCode)
			}
			got := <-at
			sni := ""
			if up.conf != nil {
				if sni = "example.com"; sendHost == "api.example.com" {
					sni = sendHost
				}
			}
			if got != (seen{up.proto, want, sni, "front.test", "4", "body"}) {
				t.Errorf("%s by %s, host = %s: the upstream saw %+v, want %s", up.scheme, up.proto, sendHost, got, want)
			}
		}
	}
}

// TestCase62H2CUpstream: clients of either protocol reach an upstream that
// speaks HTTP/2 by prior knowledge (caddyserver/caddy #4777), which cannot be
// asked to become a WebSocket.
func TestCase62H2CUpstream(t *testing.T) {
	at := make(chan seen, 1)
	addr := upstreamHTTP(t, sight(at))
	h2c := func(o *UpstreamOptions) { o.Scheme = "h2c" }
	f := newFront(t, &Site{Routes: []*Route{route("/", addr, h2c)}})
	for _, client := range []*http.Client{h1Client(t), h2cClient(t)} {
		for _, sent := range []string{"", "body"} {
			req := f.request(t, "POST", "/")
			req.Body = io.NopCloser(strings.NewReader(sent))
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if b := body(t, res); b != "ok" {
				t.Errorf("answered %d %q", res.StatusCode, b)
			}
			if got := <-at; got.proto != "HTTP/2.0" || got.body != sent {
				t.Errorf("the upstream saw %+v", got)
			}
		}
	}
	if res := f.get(t, "GET", "/", "Connection: Upgrade", "Upgrade: websocket"); res.StatusCode != 200 {
		t.Errorf("an upgrade is answered %d", res.StatusCode)
	}
	<-at
}

// TestEmptyBodies: a request without a body is sent as one, however the
// Transport is kept from sending it twice.
func TestEmptyBodies(t *testing.T) {
	for _, c := range []struct {
		method string
		fields []string
		length string
	}{
		{"GET", nil, ""}, {"HEAD", nil, ""}, {"DELETE", nil, ""}, {"MKCOL", nil, ""},
		{"POST", nil, "0"}, {"PUT", nil, "0"}, {"PATCH", nil, "0"},
		{"POST", []string{"Content-Length: 0"}, "0"}, {"DELETE", []string{"Content-Length: 0"}, "0"}, {"GET", []string{"Content-Length: 0"}, "0"},
		{"POST", []string{"Idempotency-Key: x"}, "0"},
	} {
		up := newRawUpstream(t, always("HTTP/1.1 204 No Content\r\n\r\n"))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		res := f.get(t, c.method, "/", c.fields...)
		head := strings.ToLower(up.bytes())
		want := "content-length: " + c.length + "\r\n"
		if res.StatusCode != 204 || strings.Contains(head, "transfer-encoding") || strings.Contains(head, "content-length") != (c.length != "") ||
			c.length != "" && strings.Count(head, want) != 1 || !strings.HasSuffix(head, "\r\n\r\n") {
			t.Errorf("%s %q: status %d, the upstream got %q", c.method, c.fields, res.StatusCode, head)
		}
	}
}

// TestCase59NeverTwice: what the upstream has read is not sent again, whatever
// the method says about repeating it. net/http's Transport makes eleven of
// these six.
func TestCase59NeverTwice(t *testing.T) {
	for _, c := range []struct {
		method string
		fields []string
	}{
		{"GET", nil}, {"HEAD", nil}, {"OPTIONS", nil}, {"DELETE", nil}, {"POST", nil}, {"PUT", []string{"Content-Length: 0"}},
		{"POST", []string{"Idempotency-Key: x"}}, {"POST", []string{"X-Idempotency-Key: x", "Content-Length: 3", "", "abc"}},
	} {
		up := newRawUpstream(t, func(n int, _ string) string {
			if n%2 == 0 {
				return "" // read, and closed
			}
			return "HTTP/1.1 200 OK\r\nX-N: 1\r\nContent-Length: 0\r\n\r\n"
		})
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		for i := range 6 {
			res := f.get(t, c.method, "/", c.fields...)
			want := 200 + i%2*302
			if res.StatusCode != want || want == 502 && errorType(t, res.Header) != "connection_terminated" {
				t.Errorf("%s %q: request %d is answered %d", c.method, c.fields, i+1, res.StatusCode)
			}
			if e := f.next(t); want == 502 && e.UpstreamStatus != UpstreamError {
				t.Errorf("upstream's status %d", e.UpstreamStatus)
			}
		}
		if up.count() != 6 {
			t.Errorf("%s %q: six requests became %d", c.method, c.fields, up.count())
		}
	}
}

// A mortalConn is a connection that can be found dead by a write.
type mortalConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c mortalConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

// TestCase59DeadConnections: kept connections that are found dead before a byte
// was written are replaced, and the client does not notice, nor does the limit.
func TestCase59DeadConnections(t *testing.T) {
	for _, c := range []struct {
		method string
		fields []string
		status int
	}{
		{"GET", nil, 200},
		{"POST", []string{"Content-Length: 11", "", "small body."}, 200},
		{"POST", []string{"Content-Length: 3000", "", strings.Repeat("x", 3000)}, 200},
	} {
		up := newRawUpstream(t, always(ok200))
		turns := &turnstile{}
		r := limited(route("/", up.addr), turns)
		var dialed []*atomic.Bool
		r.Upstream.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", up.addr)
			dead := new(atomic.Bool)
			dialed = append(dialed, dead)
			return mortalConn{conn, dead}, err
		}
		f := newFront(t, &Site{Routes: []*Route{r}})
		for i := range 4 {
			if res := f.get(t, c.method, "/", c.fields...); res.StatusCode != c.status || body(t, res) != "ok" {
				t.Fatalf("%s: status %d", c.method, res.StatusCode)
			}
			f.next(t)
			if len(dialed) != i+1 {
				t.Errorf("%d connections after %d requests", len(dialed), i+1)
			}
			dialed[i].Store(true)
		}
		if n := up.count(); n != 4 || turns.turns.Load() != 4 {
			t.Errorf("%s: four requests became %d with %d turns", c.method, n, turns.turns.Load())
		}
		if n := len(c.fields); n > 0 && strings.Count(up.bytes(), "\r\n\r\n"+c.fields[n-1]) != 4 {
			t.Errorf("a body did not arrive whole: %q", up.bytes())
		}
	}
}

// TestFaults: 502 means unreachable or broken, 504 too slow. Each says which in
// Proxy-Status, carries the limit's fields, and names no address.
func TestFaults(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	closed.Close()
	head := "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct {
		name, answer string
		change       func(*UpstreamOptions)
		status       int
		kind         string
	}{
		{"nobody listens", "", func(o *UpstreamOptions) { o.Places[0].Address = nobody }, 502, "connection_refused"},
		{"no socket", "", func(o *UpstreamOptions) { o.Places[0].UnixSocket = t.TempDir() + "/none" }, 502, "connection_refused"},
		{"plain text under TLS", "garbage\r\n\r\n", func(o *UpstreamOptions) { o.Scheme = "https" }, 502, "tls_protocol_error"},
		{"an alert of TLS", "", func(o *UpstreamOptions) {
			o.Scheme, o.Places[0].Address = "https", closesAfter(t, "\x15\x03\x03\x00\x02\x02\x28") // handshake_failure
		}, 502, "tls_protocol_error"},
		{"S38 closes", "", nil, 502, "connection_terminated"},
		{"S38 garbage", "garbage\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 cut head", "", func(o *UpstreamOptions) { o.Places[0].Address = closesAfter(t, head+"X: y") }, 502, "connection_terminated"},
		{"S38 status 99", "HTTP/1.1 99 X\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 status 099", "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 status 000", "HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 status 1000", "HTTP/1.1 1000 X\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 unasked 101", "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S38 interim without end", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 20) + ok200, nil, 502, "http_protocol_error"},
		{"S38 unknown encoding", head + "Transfer-Encoding: xchunked\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S37 two lengths", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", nil, 502, "http_protocol_error"},
		{"S37 the same length twice", head + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", nil, 502, "http_protocol_error"},
		{"S37 length and chunks", head + "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S37 chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S37 a blank in a name", head + "X y: z\r\nContent-Length: 0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S37 a folded line", head + "X: y\r\n Content-Length: 9\r\nContent-Length: 0\r\n\r\n", nil, 502, "http_protocol_error"},
		{"S32 huge head", head + "X: " + strings.Repeat("x", maxResponseHeaderBytes+8192) + "\r\n\r\n", nil, 502, "http_protocol_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, func(n int, _ string) string { return c.answer })
			r := limited(route("/", up.addr), &turnstile{})
			if c.change != nil {
				o := r.Upstream.opts
				c.change(&o)
				r.Upstream = NewUpstream(o)
			}
			if c.name == "plain text under TLS" {
				up = nil
				r.Upstream.dial = plainText
			}
			f := newFront(t, &Site{Routes: []*Route{r}, RateLimitHeaders: everyDialect})
			res := f.get(t, "GET", "/")
			kind := errorType(t, res.Header)
			p := problemOf(t, res)
			if res.StatusCode != c.status || kind != c.kind || p.Type != "about:blank" || p.Reason != "" || p.Violated != nil {
				t.Errorf("status %d, error=%s, problem %+v", res.StatusCode, kind, p)
			}
			if strings.Contains(fmt.Sprint(res.Header, p), "127.0.0.1") || strings.Contains(fmt.Sprint(p), "none") {
				t.Errorf("the answer names the upstream's address: %v %+v", res.Header, p)
			}
			if got := parameter(t, member(t, res.Header["Ratelimit"], "turnstile"), "r"); got != 99 {
				t.Errorf("r=%d", got)
			}
			e := f.next(t)
			if e.Status != c.status || e.Error != c.kind || e.Upstream != "up" || e.UpstreamStatus != UpstreamError || e.Departed.IsZero() || e.Reason != "" {
				t.Errorf("told %+v", e)
			}
			if n := r.Upstream.Status().InFlight; n != 0 {
				t.Errorf("%d in flight afterwards", n)
			}
		})
	}
}

// plainText dials a server that answers a TLS handshake in HTTP.
func plainText(context.Context, string, string) (net.Conn, error) {
	a, b := net.Pipe()
	go func() {
		defer b.Close()
		b.Read(make([]byte, 4096))
		io.WriteString(b, "HTTP/1.1 400 Bad Request\r\n\r\n")
	}()
	return a, nil
}

// TestT08Timeouts: a dial and a head that take too long are 504 each.
func TestT08Timeouts(t *testing.T) {
	dialTimeout := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	for _, c := range []struct {
		err      error
		timedOut bool
		want     fault
	}{
		{dialTimeout, false, fault{504, "connection_timeout", ""}},
		{errHandshakeTimeout, false, fault{504, "connection_timeout", ""}},
		{&net.DNSError{IsTimeout: true, Name: "x"}, false, fault{504, "dns_timeout", ""}},
		{&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true, Name: "x"}}, false, fault{502, "dns_error", ""}},
		{context.DeadlineExceeded, true, fault{504, "http_response_timeout", ""}},
		{x509.UnknownAuthorityError{}, false, fault{502, "tls_certificate_error", ""}},
		{&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, false, fault{502, "destination_ip_unroutable", ""}},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, false, fault{502, "connection_terminated", ""}},
		{errStatus, false, fault{502, "http_protocol_error", ""}},
	} {
		err := c.err
		if _, ok := err.(x509.UnknownAuthorityError); ok {
			err = &tls.CertificateVerificationError{Err: err}
		}
		got := explain(err, c.timedOut)
		if got.status != c.want.status || got.kind != c.want.kind || got.detail == "" || strings.Contains(got.detail, "x:") {
			t.Errorf("%v: %+v, want %+v", err, got, c.want)
		}
	}
}

// TestS39CutAnswers: an answer that stops short is cut at the client too, and
// told as such.
func TestS39CutAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nshort",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
		"chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort",
		"size":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
	} {
		addr := closesAfter(t, answer)
		f := newFront(t, &Site{Routes: []*Route{route("/", addr)}})
		// Little is cut together with its head, which was not yet on its way.
		wire := f.wire(t, "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(wire)), nil)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if err == nil {
			t.Errorf("%s: what looks whole is %q", name, wire)
		}
		if e := f.next(t); e.Status != 200 || e.UpstreamStatus != 200 || e.Error != "http_response_incomplete" {
			t.Errorf("%s: told %+v", name, e)
		}
	}
}

// TestS39EndOfTLS: an answer that ends with its connection is whole if TLS says
// so, and cut if only the connection ends.
func TestS39EndOfTLS(t *testing.T) {
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, _ := http.NewResponseController(w).Hijack()
		io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nwords")
		if r.URL.Path == "/cut" {
			conn = conn.(*tls.Conn).NetConn()
		}
		conn.Close()
	}))
	t.Cleanup(up.Close)
	f := newFront(t, &Site{Routes: []*Route{route("/", up.Listener.Addr().String(), func(o *UpstreamOptions) {
		o.Scheme, o.Places[0].Host, o.TLS = "https", "example.com", up.Client().Transport.(*http.Transport).TLSClientConfig
	})}})
	for path, reason := range map[string]string{"/whole": "", "/cut": "http_response_incomplete"} {
		res, err := http.ReadResponse(bufio.NewReader(f.dial(t, "GET "+path+" HTTP/1.1\r\nHost: front.test\r\n\r\n")), nil)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if e := f.next(t); (err == nil) != (reason == "") || e.Error != reason {
			t.Errorf("%s: the client's reader says %v, told %+v", path, err, e)
		}
	}
}

// closesAfter is an upstream that gives one answer a connection and closes.
func closesAfter(t *testing.T, answer string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Read(make([]byte, 4096))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}
