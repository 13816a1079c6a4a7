package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A valve is a Limiter in which everybody waits until let.
type valve struct {
	came chan struct{} // one for each that waits
	let  chan limiter.Permit
}

func newValve() *valve {
	return &valve{came: make(chan struct{}, 1000), let: make(chan limiter.Permit)}
}

func (g *valve) Foresee(limiter.Request) time.Duration { return time.Hour }

func (g *valve) Acquire(ctx context.Context, req limiter.Request) (limiter.Permit, error) {
	g.came <- struct{}{}
	select {
	case p := <-g.let:
		return p, nil
	case <-ctx.Done():
		d := limiter.Decision{Policy: "gate", Reason: limiter.ReasonClientGone, Queued: true}
		if err := context.Cause(ctx); err != limiter.ErrShutdown {
			return limiter.Permit{Decision: d, All: []limiter.Decision{d}}, err
		}
		d.Reason, d.Status, d.RetryAfter = limiter.ReasonShutdown, 503, time.Second
		return limiter.Permit{Decision: d, All: []limiter.Decision{d}}, nil
	}
}

func letGo() limiter.Permit {
	d := limiter.Decision{Policy: "gate", Allowed: true, Limit: 10, Remaining: 3, Queued: true, Waited: 7 * time.Second, At: time.Now()}
	return limiter.Permit{Decision: d, All: []limiter.Decision{d}}
}

func refused() limiter.Permit {
	d := limiter.Decision{Policy: "gate", Reason: limiter.ReasonQueueFull, Status: 429, Limit: 10, RetryAfter: 2 * time.Second}
	return limiter.Permit{Decision: d, All: []limiter.Decision{d}}
}

func gated(address string) (*valve, *Route) {
	g, r := newValve(), route("/", address)
	r.Limiter = g
	r.Identify = func(Identity) ([]limiter.Key, error) { return []limiter.Key{{}}, nil }
	return g, r
}

// What comes back from the lot is what came: the same bytes of target, body and
// pipelined requests, and the connection is kept.
func TestParkedRequestComesBackWhole(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}, RateLimitHeaders: []Dialect{DialectIETF03}})
	c := f.dial(t, "POST //a%2Fb?x=1;y HTTP/1.1\r\nHost: Front.TEST:80\r\nX-One: 1\r\nX-One: 2\r\nContent-Length: 5\r\n\r\nhello"+
		"GET /second HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	br := bufio.NewReader(c)
	for i := range 2 {
		<-g.came
		g.let <- letGo()
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(b) != "ok" || res.Header.Get("RateLimit-Remaining") != "3" {
			t.Errorf("answer %d: %d %q %v", i, res.StatusCode, b, res.Header)
		}
		e := f.next(t)
		if e.Status != 200 || e.Waited != 7*time.Second || e.UpstreamStatus != 200 || e.Client.String() != "127.0.0.1" {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	got := up.bytes()
	for _, want := range []string{
		"POST //a%2Fb?x=1;y HTTP/1.1\r\n", "X-One: 1\r\nX-One: 2\r\n", "X-Forwarded-Host: Front.TEST:80\r\n", "\r\n\r\nhello", "GET /second HTTP/1.1\r\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the upstream did not get %q but\n%s", want, got)
		}
	}
	if up.count() != 2 || len(f.decisions) != 2 {
		t.Errorf("%d requests upstream, %d decisions", up.count(), len(f.decisions))
	}
}

// What a client sent far ahead stays whole on a connection that is parked again
// and again, also where a head grows as it is written anew.
func TestParkedPipelineLongerThanABuffer(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	const n = 100
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "GET /%d HTTP/1.1\nHost:x\n%s\n", i, strings.Repeat("a:\n", i))
	}
	br := bufio.NewReader(f.dial(t, all.String()))
	for i := range n {
		<-g.came
		g.let <- letGo()
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("answer %d: %v, %v", i, res, err)
		}
		io.Copy(io.Discard, res.Body)
		if e := f.next(t); e.Path != fmt.Sprintf("/%d", i) {
			t.Fatalf("request %d is %s", i, e.Path)
		}
	}
}

// A head of the shortest lines, longer when it is written anew than net/http
// would read, is answered all the same.
func TestParkedHeadOfShortLines(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\nHost:x\n"+strings.Repeat("a:\n", 20_000)+"\n")
	<-g.came
	g.let <- letGo()
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	if e := f.next(t); e.Status != 200 {
		t.Errorf("%+v", e)
	}
}

func TestParkedChunkedBody(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
	<-g.came
	g.let <- letGo()
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	br.ReadString('\n')
	io.WriteString(c, "3\r\nabc\r\n0\r\n\r\n")
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	if got := up.bytes(); !strings.Contains(got, "abc") {
		t.Errorf("the upstream got\n%s", got)
	}
	f.next(t)
}

func TestParkedRefusal(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-g.came
	g.let <- refused()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != 429 || res.Header.Get("Retry-After") != "2" {
		t.Fatalf("%v, %v", res, err)
	}
	if e := f.next(t); e.Reason != limiter.ReasonQueueFull || up.count() != 0 {
		t.Errorf("%+v, %d upstream", e, up.count())
	}
}

// A client that leaves is noticed at once, also with its body unread, which
// net/http never does.
func TestParkedClientLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		send  string
		leave func(*net.TCPConn)
	}{
		"GET closes":            {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(c *net.TCPConn) { c.Close() }},
		"GET half-closes":       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(c *net.TCPConn) { c.CloseWrite() }},
		"GET resets":            {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }},
		"POST, unread megabyte": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 100_000), func(c *net.TCPConn) { c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			g, r := gated(up.addr)
			f := newFront(t, &Site{Routes: []*Route{r}})
			conn := f.dial(t, c.send)
			<-g.came
			c.leave(conn)
			e := f.next(t)
			if e.Status != StatusClientGone || e.Reason != limiter.ReasonClientGone || e.Departed != (time.Time{}) || e.Path != "/" {
				t.Errorf("%+v", e)
			}
			if up.count() != 0 {
				t.Error("its request was sent")
			}
			f.proxy.Wait()
			if ds := f.decisions; len(ds) != 1 || ds[0].Reason != limiter.ReasonClientGone {
				t.Errorf("decisions %+v", ds)
			}
		})
	}
}

// Over TLS nothing is parked: what ends the connection is only data to the
// kernel, and must be read to be seen.
func TestTLSIsNotParked(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	borrowed := httptest.NewUnstartedServer(nil)
	borrowed.StartTLS()
	cert := borrowed.TLS.Certificates[0]
	borrowed.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := serveOn(t, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}), &Site{Routes: []*Route{r}})
	c, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n")
	<-g.came
	c.CloseWrite() // a close_notify, and no FIN
	if e := f.next(t); e.Status != StatusClientGone {
		t.Errorf("%+v", e)
	}
	if up.count() != 0 {
		t.Error("its request was sent")
	}
}

// What the kernel keeps of unread bodies is bounded in all, however many wait,
// and is given back however they end.
func TestRoomForBodiesIsBounded(t *testing.T) {
	for name, after := range map[string]time.Duration{"parked": 0, "not parked": 1 << 62} {
		t.Run(name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			g, r := gated(up.addr)
			f := newFront(t, &Site{Routes: []*Route{r}})
			f.proxy.parkAfter = after
			const n = unreadInAll/unreadKept + 20
			conns := make([]*net.TCPConn, n)
			for i := range conns {
				conns[i] = f.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
				<-g.came
			}
			if left := f.proxy.room.Load(); left < 0 || left >= unreadKept {
				t.Errorf("%d waiting left %d", n, left)
			}
			for i := range conns {
				switch i % 3 {
				case 0:
					g.let <- letGo()
				case 1:
					g.let <- refused()
				}
			}
			for _, c := range conns {
				c.Close()
			}
			f.cut(limiter.ErrShutdown)
			for range conns {
				f.next(t)
			}
			f.proxy.Wait()
			if left := f.proxy.room.Load(); left != unreadInAll {
				t.Errorf("in the end, %d are left of %d", left, unreadInAll)
			}
		})
	}
}

// A request that is parked sees the routes that it came to, also after a reload.
func TestParkedThroughAReload(t *testing.T) {
	old, young := newRawUpstream(t, always(ok200)), newRawUpstream(t, always(ok200))
	g, r := gated(old.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-g.came
	next := &Site{Routes: []*Route{route("/", young.addr)}}
	if err := next.Check(); err != nil {
		t.Fatal(err)
	}
	f.proxy.Serve(next)
	defer next.Routes[0].Upstream.Close()
	g.let <- letGo()
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 200 {
		t.Fatalf("%v, %v", res, err)
	}
	f.next(t)
	if old.count() != 1 || young.count() != 0 {
		t.Errorf("%d at the old upstream, %d at the new", old.count(), young.count())
	}
}

// Shutdown waits for who is parked, and closes the connection behind its answer.
func TestShutdownServesParked(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-g.came
	down := make(chan error, 1)
	go func() { down <- f.server.Shutdown(context.Background()) }()
	for {
		probe, err := net.Dial("tcp", f.addr)
		if err != nil {
			break // the listener is closed
		}
		probe.Close()
	}
	g.let <- letGo()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != 200 || !res.Close {
		t.Fatalf("%+v, %v", res, err)
	}
	io.Copy(io.Discard, res.Body)
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestCutTellsParked(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-g.came
	f.cut(limiter.ErrShutdown)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" {
		t.Fatalf("%+v, %v", res, err)
	}
	if e := f.next(t); e.Reason != limiter.ReasonShutdown || up.count() != 0 {
		t.Errorf("%+v", e)
	}
}

// A WebSocket handshake and the bytes right behind it survive parking.
func TestParkedUpgrade(t *testing.T) {
	up := newRawUpstream(t, func(n int, head string) string {
		if n == 1 {
			return "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst"
		}
		return ""
	})
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly\r\n\r\n")
	<-g.came
	g.let <- letGo()
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	word := make([]byte, 5)
	if _, err := io.ReadFull(br, word); err != nil || string(word) != "first" {
		t.Errorf("%q, %v", word, err)
	}
	if _, err := br.ReadByte(); err == nil { // the upstream closes behind what came early
		t.Error("more than the upstream sent")
	}
	c.Close()
	f.next(t)
	if !strings.Contains(up.bytes(), "early") {
		t.Errorf("the upstream got\n%s", up.bytes())
	}
}

// The head that is read again is the one that came, whatever it holds.
func TestHeadIsReadTheSameTwice(t *testing.T) {
	for _, raw := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET http://Abs.test:81/p?q HTTP/1.1\r\nHost: other\r\nA: 1\r\nA: 2\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTrailer: X-T\r\nConnection: close, X-A\r\n\r\nabc",
		"PUT /%00 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nCookie: c=d\r\nX-Empty:\r\nX-High: \xff\r\n\r\n",
	} {
		read := func(s string) *http.Request {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(s)))
			if err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			return r
		}
		first := read(raw)
		again := read(string(head(first)))
		for what, pair := range map[string][2]any{
			"method": {first.Method, again.Method}, "target": {first.RequestURI, again.RequestURI}, "host": {first.Host, again.Host},
			"proto": {first.Proto, again.Proto}, "header": {first.Header, again.Header}, "length": {first.ContentLength, again.ContentLength},
			"encoding": {first.TransferEncoding, again.TransferEncoding}, "trailer": {first.Trailer, again.Trailer}, "close": {first.Close, again.Close},
			"url": {first.URL, again.URL},
		} {
			if fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]) {
				t.Errorf("%q: %s is %v, and then %v", raw, what, pair[0], pair[1])
			}
		}
	}
}
