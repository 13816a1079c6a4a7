package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A gate is a Limiter in which every request waits to be let through by hand.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) Acquire(ctx context.Context, r limiter.Request) (limiter.Permit, error) {
	p := passes("gate", 10, 5)
	p.All[0].Queued, p.All[0].Waited = true, time.Second
	gone := limiter.Decision{Policy: "gate", Reason: limiter.ReasonClientGone, Limit: 10, Queued: true, Waited: time.Second}
	g.entered <- struct{}{}
	select {
	case <-ctx.Done():
		return limiter.Permit{Decision: gone, All: []limiter.Decision{gone}}, context.Cause(ctx)
	case <-g.open:
	}
	if r.Gone != nil && r.Gone() {
		return limiter.Permit{Decision: gone, All: []limiter.Decision{gone}}, limiter.ErrClientGone
	}
	return p, nil
}

func (f *front) dial(t *testing.T, send string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// TestGoneWhileWaiting: a request whose client left while it waited is never
// sent, and is told as 499, however the client left and whether or not its body
// kept net/http from noticing.
func TestGoneWhileWaiting(t *testing.T) {
	const waits = "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n"
	shut := func(c *net.TCPConn) { c.Close() }
	half := func(c *net.TCPConn) { c.CloseWrite() }
	reset := func(c *net.TCPConn) { c.SetLinger(0); c.Close() }
	for _, c := range []struct {
		name, send string
		leave      func(*net.TCPConn)
		unread     bool // nothing is noticed before the release
	}{
		{"GET closes", waits, shut, false},
		{"GET half-closes", waits, half, false},
		{"GET resets", waits, reset, false},
		{"POST without a body closes", post("Content-Length: 0"), shut, false},
		{"unread body, closes", post("Content-Length: 4") + "body", shut, true},
		{"unread body, half-closes", post("Content-Length: 4") + "body", half, true},
		{"unread body, resets", post("Content-Length: 4") + "body", reset, true},
		{"half a body, closes", post("Content-Length: 4") + "bo", shut, true},
		{"chunks, closes", post("Transfer-Encoding: chunked") + "1\r\nx\r\n", shut, true},
		{"large, closes", post("Content-Length: 100000") + strings.Repeat("x", 100_000), shut, true},
		{"asks first, closes", post("Content-Length: 4", "Expect: 100-continue"), shut, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			g := newGate()
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), g)}})
			conn := f.dial(t, c.send)
			<-g.entered
			c.leave(conn)
			if c.unread {
				g.open <- struct{}{}
			}
			e := f.next(t)
			if e.Status != StatusClientGone || e.Reason != limiter.ReasonClientGone || e.Upstream != "" || !e.Departed.IsZero() || e.Waited != time.Second {
				t.Errorf("told %+v", e)
			}
			if up.count() != 0 {
				t.Errorf("the upstream got %q", up.lines())
			}
			if d := f.decisions; len(d) != 1 || d[0].Reason != limiter.ReasonClientGone {
				t.Errorf("decided %+v", d)
			}
		})
	}
}

// TestStillThere: a request with a body is looked at also where nothing
// made it wait, and one that is there passes.
func TestStillThere(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g := newGate()
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), g)}})
	for _, send := range []string{
		post("Content-Length: 4") + "body", post("Content-Length: 4") + "bo", post("Content-Length: 0"),
		"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n" + smuggled[:20],
	} {
		c := f.dial(t, send)
		<-g.entered
		g.open <- struct{}{}
		if strings.HasSuffix(send, "bo") {
			io.WriteString(c, "dy")
		}
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 200 {
			t.Errorf("%q: %v", send, err)
		}
		if e := f.next(t); e.Status != 200 || e.Waited != time.Second {
			t.Errorf("told %+v", e)
		}
	}
}

// TestBodyStops: a body that ends too early is never a mark against the
// upstream, and what the upstream got has no end.
func TestBodyStops(t *testing.T) {
	for _, send := range []string{post("Content-Length: 100") + "beginning", post("Transfer-Encoding: chunked") + "9\r\nbeginning\r\n"} {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		c := f.dial(t, send)
		up.await(t, "beginning")
		c.Close()
		if e := f.next(t); e.Status != StatusClientGone && e.Status != 400 || e.UpstreamStatus == UpstreamError {
			t.Errorf("told %+v", e)
		}
		if strings.HasSuffix(up.bytes(), "0\r\n\r\n") {
			t.Errorf("the upstream got an end: %q", up.bytes())
		}
	}
}

// TestContinueOnlyWhenLetThrough: a client that asks before it sends its body
// is told to go on when its turn has come, and not before.
func TestContinueOnlyWhenLetThrough(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g := newGate()
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), g)}})
	c := f.dial(t, post("Content-Length: 4", "Expect: 100-Continue"))
	<-g.entered
	if up.count() != 0 {
		t.Error("sent before its turn")
	}
	// Nothing can have been written to c: its request has the goroutine.
	c.SetReadDeadline(time.Unix(1, 0))
	if n, _ := c.Read(make([]byte, 1)); n != 0 {
		t.Error("answered before its turn")
	}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	g.open <- struct{}{}
	br := bufio.NewReader(c)
	if line, _ := br.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("told %q", line)
	}
	br.ReadString('\n')
	io.WriteString(c, "body")
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("then %v, %v", res, err)
	}
	if got := up.bytes(); strings.Contains(got, "Expect") || !strings.HasSuffix(got, "\r\n\r\nbody") {
		t.Errorf("the upstream got %q", got)
	}
	for _, expect := range []string{"zzz", "100-continue, x", "200-ok"} {
		res := f.get(t, "POST", "/", "Content-Length: 4", "Expect: "+expect)
		if res.StatusCode != 417 || !res.Close {
			t.Errorf("Expect: %s is answered %d", expect, res.StatusCode)
		}
	}
}

// TestN30BodiesOfWaitingStreams: over HTTP/2 the body of a waiting request may
// come at any time; the upstream gets all of it, and a stream that is given up
// frees its place and is never sent.
func TestN30BodiesOfWaitingStreams(t *testing.T) {
	request := []string{":method", "POST", ":scheme", "http", ":path", "/n", ":authority", "front.test"}
	for _, c := range []struct {
		name          string
		before, after []string // DATA before and after the release; the last ends the stream
		want          string
	}{
		{"N30 comes while it waits", []string{"abc", "def"}, nil, "abcdef"},
		{"N31 partly after", []string{"abc"}, []string{"def"}, "abcdef"},
		{"N31 all after", nil, []string{"abcdef"}, "abcdef"},
		{"N32 an empty end", []string{"abcdef", ""}, nil, "abcdef"},
		{"N32 nothing but an end", []string{""}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := make(chan seen, 1)
			g := newGate()
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", upstreamHTTP(t, sight(at))), g)}})
			h := dialH2(t, f.addr)
			h.headers(t, 1, false, request...)
			<-g.entered
			for i, data := range c.before {
				h.WriteData(1, i == len(c.before)-1 && c.after == nil, []byte(data))
			}
			g.open <- struct{}{}
			for i, data := range c.after {
				h.WriteData(1, i == len(c.after)-1, []byte(data))
			}
			if status := h.status(t, 1); status != 200 {
				t.Errorf("answered %d", status)
			}
			if got := <-at; got.body != c.want {
				t.Errorf("the upstream got %q, want %q", got.body, c.want)
			}
			// N33: the connection serves the next.
			h.headers(t, 3, true, request...)
			<-g.entered
			g.open <- struct{}{}
			if status := h.status(t, 3); status != 200 {
				t.Errorf("the next stream is answered %d", status)
			}
			<-at
		})
	}
	for name, leave := range map[string]func(*h2Conn){
		"N34 the connection ends": func(h *h2Conn) { h.conn.Close() },
		"N36 the stream is reset": func(h *h2Conn) { h.WriteRSTStream(1, 8) },
	} {
		up := newRawUpstream(t, always(ok200))
		g := newGate()
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), g)}})
		h := dialH2(t, f.addr)
		h.headers(t, 1, false, request...)
		h.WriteData(1, false, []byte("abc"))
		<-g.entered
		leave(h)
		if e := f.next(t); e.Status != StatusClientGone || e.Upstream != "" || up.count() != 0 {
			t.Errorf("%s: told %+v", name, e)
		}
	}
}

// TestGoneBehindOtherListeners: the kernel is asked through TLS and over a Unix
// socket too.
func TestGoneBehindOtherListeners(t *testing.T) {
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	defer secure.Close()
	conf := secure.TLS.Clone()
	conf.NextProtos = nil
	for _, network := range []string{"tcp", "unix"} {
		addr := "127.0.0.1:0"
		if network == "unix" {
			addr = t.TempDir() + "/front"
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		dial := func() net.Conn {
			c, err := net.Dial(network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if network == "tcp" {
				c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			return c
		}
		front := l
		if network == "tcp" {
			front = tls.NewListener(l, conf)
		}
		up := newRawUpstream(t, always(ok200))
		g := newGate()
		f := serveOn(t, front, &Site{Routes: []*Route{limited(route("/", up.addr), g)}})
		for _, leaves := range []bool{false, true} {
			c := dial()
			io.WriteString(c, post("Content-Length: 4")+"body")
			<-g.entered
			if leaves {
				c.Close()
			}
			g.open <- struct{}{}
			want := 200
			if leaves {
				want = StatusClientGone
			}
			if e := f.next(t); e.Status != want {
				t.Errorf("%s, leaves %v: told %+v", network, leaves, e)
			}
			c.Close()
		}
		if up.count() != 1 {
			t.Errorf("%s: the upstream got %q", network, up.lines())
		}
	}
}
