package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestCase56ServerSentEvents: an event reaches the client while the answer goes
// on. The upstream writes the next one only when the client has the last.
func TestCase56ServerSentEvents(t *testing.T) {
	got := make(chan struct{})
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sse" {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		}
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-got:
			case <-r.Context().Done():
				return
			}
		}
	}))
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", addr), &turnstile{})}, RateLimitHeaders: everyDialect})
	for _, client := range []*http.Client{h1Client(t), h2cClient(t)} {
		for _, path := range []string{"/sse", "/chunks"} {
			res, err := client.Do(f.request(t, "GET", path))
			if err != nil {
				t.Fatal(err)
			}
			br := bufio.NewReader(res.Body)
			for i := range 3 {
				if line, err := br.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
					t.Fatalf("%s: read %q, %v", path, line, err)
				}
				br.ReadString('\n')
				got <- struct{}{}
			}
			res.Body.Close()
		}
	}
}

// TestCase58Trailers: trailers of an answer pass, announced or not, over every
// pair of protocols (golang/go #20437, #21096).
func TestCase58Trailers(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		if r.URL.Path == "/grpc" {
			w.Header().Set("Content-Type", "application/grpc")
		}
		if r.URL.Path != "/short" {
			io.WriteString(w, strings.Repeat("x", 10_000))
		}
		w.Header().Set("X-Announced", "1")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}))
	for _, scheme := range []string{"http", "h2c"} {
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", addr, func(o *UpstreamOptions) { o.Scheme = scheme }), &turnstile{})}})
		for _, client := range []*http.Client{h1Client(t), h2cClient(t)} {
			for _, path := range []string{"/", "/grpc", "/short"} {
				res, err := client.Do(f.request(t, "POST", path, "TE: trailers"))
				if err != nil {
					t.Fatal(err)
				}
				body(t, res)
				if res.Trailer.Get("X-Announced") != "1" || res.Trailer.Get("Grpc-Status") != "0" {
					t.Errorf("%s upstream, %s client, %s: trailers %v", scheme, res.Proto, path, res.Trailer)
				}
			}
		}
	}
}

// TestEarlyHints: interim answers pass without the fields of the connection,
// and our fields stand on the final answer alone.
func TestEarlyHints(t *testing.T) {
	const hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-Hop: 1\r\nConnection: X-Hop\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n\r\n"
	up := newRawUpstream(t, always("HTTP/1.1 100 Continue\r\n\r\n"+hints+hints+ok200))
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), &turnstile{})}, RateLimitHeaders: everyDialect})
	wire := f.wire(t, get("/", "Host: front.test"))
	parts := strings.SplitAfter(wire, "\r\n\r\n")
	if len(parts) != 4 {
		t.Fatalf("answered %q", wire)
	}
	for _, hint := range parts[:2] {
		if hint != "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" {
			t.Errorf("interim answer %q", hint)
		}
	}
	if !strings.HasPrefix(parts[2], "HTTP/1.1 200 OK\r\n") || !strings.Contains(parts[2], "Ratelimit: \"turnstile\"") || strings.Contains(parts[2], "Link") {
		t.Errorf("final answer %q", parts[2])
	}
	// HTTP/1.0 has no interim answers (RFC 9110, section 15.2).
	if wire := f.wire(t, "GET / HTTP/1.0\r\nHost: front.test\r\n\r\n"); !strings.HasPrefix(wire, "HTTP/1.0 200 OK\r\n") {
		t.Errorf("HTTP/1.0 is answered %q", wire)
	}
	var hinted []int
	req := f.request(t, "GET", "/")
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		hinted = append(hinted, code)
		return nil
	}}))
	res, err := h2cClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if body(t, res); !slices.Equal(hinted, []int{103, 103}) || res.Header.Get("RateLimit-Remaining") != "99" {
		t.Errorf("by HTTP/2: %v, then %v", hinted, res.Header)
	}
}

// TestN05LateReader: a client that reads late gets every byte.
func TestN05LateReader(t *testing.T) {
	const size = 720 << 10
	var once sync.Once
	blocked := make(chan struct{})
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := strings.Repeat("x", 1<<10)
		for i := range size >> 10 {
			io.WriteString(w, chunk)
			if i == 100 {
				once.Do(func() { close(blocked) })
			}
		}
	}))
	f := newFront(t, &Site{Routes: []*Route{route("/", addr)}})
	res := f.get(t, "GET", "/")
	<-blocked // the answer has been under way for a while
	if n := len(body(t, res)); n != size {
		t.Errorf("%d bytes, want %d", n, size)
	}
	if e := f.next(t); e.Sent != size {
		t.Errorf("told %d bytes", e.Sent)
	}
}

// TestCase52ClientHangsUp: a client that leaves in the middle of an answer is
// counted as 499 and is no fault of anybody's.
func TestCase52ClientHangsUp(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := strings.Repeat("x", 64<<10)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	}))
	r := route("/", addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	for _, leave := range []func(){
		func() {
			c, _ := net.Dial("tcp", f.addr)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n")
			io.ReadFull(c, make([]byte, 1<<20))
			c.Close()
		},
		func() {
			h := dialH2(t, f.addr)
			h.headers(t, 1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "front.test")
			h.status(t, 1)
			h.WriteRSTStream(1, 8)
		},
	} {
		leave()
		if e := f.next(t); e.Status != StatusClientGone || e.UpstreamStatus != 200 || e.Error != "" || e.Route != "/" {
			t.Errorf("told %+v", e)
		}
	}
	f.proxy.Wait()
	if n := r.Upstream.Status().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// TestEarlyAnswer: an upstream may answer before it has the body. The client
// sees that at once; the connection ends, as the body is still to come.
func TestEarlyAnswer(t *testing.T) {
	for _, fields := range [][]string{{"Content-Length: 1000"}, {"Transfer-Encoding: chunked"}} {
		addr := closesAfter(t, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		f := newFront(t, &Site{Routes: []*Route{route("/", addr)}})
		res := f.get(t, "POST", "/", fields...)
		if b := body(t, res); res.StatusCode != 401 || b != "no" || !res.Close {
			t.Errorf("%q: status %d, %q, close %v", fields, res.StatusCode, b, res.Close)
		}
		if e := f.next(t); e.Status != 401 || e.UpstreamStatus != 401 {
			t.Errorf("told %+v", e)
		}
	}
}

// TestMaxBodyBytes: 413 by the length that was told, before anything is asked,
// and by the chunks that come, with no mark against the upstream.
func TestMaxBodyBytes(t *testing.T) {
	for _, c := range []struct {
		name, send string
		status     int
		turns      int64
	}{
		{"fits", post("Content-Length: 10", "Connection: close") + "0123456789", 200, 1},
		{"by length", post("Content-Length: 11") + "0123456789a" + smuggled, 413, 0},
		{"chunks that fit", post("Transfer-Encoding: chunked") + "a\r\n0123456789\r\n0\r\n\r\n", 200, 1},
		{"by chunks", post("Transfer-Encoding: chunked") + "5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n" + smuggled, 413, 1},
		{"one huge chunk", post("Transfer-Encoding: chunked") + "fffffff\r\n" + strings.Repeat("x", 100_000), 413, 1},
	} {
		up := newRawUpstream(t, always(ok200))
		turns := &turnstile{}
		r := limited(route("/", up.addr), turns)
		r.MaxBodyBytes = 10
		f := newFront(t, &Site{Routes: []*Route{r}, RateLimitHeaders: everyDialect})
		wire := f.wire(t, c.send+map[bool]string{true: last}[c.name == "by length"])
		codes := statuses(t, wire)
		if c.name == "by length" { // small, and so the connection lives
			if !slices.Equal(codes, []int{413, 200, 200}) {
				t.Errorf("%s: answered %v", c.name, codes)
			}
			if e := f.next(t); e.Status != 413 || e.Upstream != "" {
				t.Errorf("told %+v", e)
			}
			continue
		}
		if !slices.Equal(codes, []int{c.status}) || turns.turns.Load() != c.turns || strings.Contains(up.bytes(), "smuggled") {
			t.Errorf("%s: answered %v with %d turns", c.name, codes, turns.turns.Load())
		}
		if e := f.next(t); e.Status != c.status || e.UpstreamStatus == UpstreamError {
			t.Errorf("%s: told %+v", c.name, e)
		}
		if c.status == 413 && !strings.Contains(wire, "Ratelimit: ") {
			t.Errorf("%s: no fields in %q", c.name, wire)
		}
	}
}

// TestTooLargeAsItIsAnswered: a body may turn out too large while the upstream's
// answer to its head is on its way back. What finds it is no goroutine of the
// answer, and must not write to its header. (The race detector sees it.)
func TestTooLargeAsItIsAnswered(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusUnauthorized)
		http.NewResponseController(w).Flush()
		io.Copy(io.Discard, r.Body)
	}))
	r := limited(route("/", addr), &turnstile{})
	r.MaxBodyBytes = 10
	var c net.Conn
	r.Ask = func([]limiter.Key) func(int, http.Header) bool {
		return func(int, http.Header) bool {
			io.WriteString(c, "6\r\n56789a\r\n0\r\n\r\n")
			time.Sleep(20 * time.Millisecond) // anything else would order the two
			return false
		}
	}
	f := newFront(t, &Site{Routes: []*Route{r}})
	for range 5 {
		var err error
		if c, err = net.Dial("tcp", f.addr); err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, post("Transfer-Encoding: chunked")+"5\r\n01234\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusUnauthorized || !res.Close {
			t.Errorf("answered %d, close %t", res.StatusCode, res.Close)
		}
		f.next(t)
		c.Close()
	}
}

// TestContentTypeIsNotGuessed: net/http would sniff one out of the body.
func TestContentTypeIsNotGuessed(t *testing.T) {
	up := newRawUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	if res := f.get(t, "GET", "/"); res.Header["Content-Type"] != nil {
		t.Errorf("Content-Type %q", res.Header["Content-Type"])
	}
}
