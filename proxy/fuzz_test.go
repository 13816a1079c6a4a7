package proxy

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A oneRequest is an upstream's connection that keeps what it gets and answers
// once, when the head has come and the proxy waits for an answer.
type oneRequest struct {
	net.Conn
	mu     sync.Mutex
	got    strings.Builder
	dialed int
}

func (o *oneRequest) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	o.mu.Lock()
	o.dialed++
	o.mu.Unlock()
	go func() {
		defer far.Close()
		buf := make([]byte, 4096)
		answered := false
		for {
			n, err := far.Read(buf)
			o.mu.Lock()
			o.got.Write(buf[:n])
			head := strings.Contains(o.got.String(), "\r\n\r\n")
			o.mu.Unlock()
			if err != nil {
				return
			}
			if head && !answered {
				answered = true
				go io.WriteString(far, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	}()
	return near, nil
}

// FuzzRequest sends a client's bytes through net/http's reader and the whole
// proxy. Whatever they are: nothing panics, each request that could be read is
// told once, the upstream is blamed for nothing, and one request is at most one request line upstream, whose head
// has one length at most.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		post("Content-Length: 60", "Transfer-Encoding: chunked") + "0\r\n\r\n" + smuggled,
		post("Transfer-Encoding: chunked") + "0x3\r\nxxx\r\n0\r\n\r\n" + smuggled,
		post("Transfer-Encoding: chunked", "Trailer: X") + "1;a=b\r\nx\r\n0\r\nX: y\r\n\r\n",
		post("Transfer-Encoding:\r\n chunked") + "0\r\n\r\n" + smuggled,
		post("Content-Length: 4", "Expect: 100-continue") + "body",
		"POST /a HTTP/1.0\r\nHost: front.test\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled,
		get("/a/../b//%2fc?x;y=%zz#", "Host: front.test"), get("http://A.test:81/p?q", "Host: b"), get("*", "Host: front.test"),
		get("/", "Host: front.test", "X_Forwarded_For: x", "Connection: X-Forwarded-For, Host, Content-Length", "Te: trailers"),
		get("/", "Host: front.test", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMA"),
		asksWebSocket + "early", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n", get("/", "Host: \xff"),
		"GET //x\x7f HTTP/1.1\r\nHost: front.test\r\n\r\n", "G\xc3T / HTTP/1.1\r\nHost: front.test\r\n\r\n",
		post("Content-Type: application/grpc", "Content-Length: 0"), post("Content-Length: 0", "Idempotency-Key: x"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(raw))))
		if err != nil || !serverTakes(r) {
			return
		}
		r.RemoteAddr = "192.0.2.1:1"
		up := new(oneRequest)
		one := limited(route("/", "192.0.2.1:80"), &turnstile{})
		one.Upstream.dial = up.dial
		one.MaxBodyBytes = 1000
		told := newRecorder()
		p := New(told, slog.New(slog.DiscardHandler))
		site := &Site{Routes: []*Route{one, route("/{a}/x", "192.0.2.1:80")}, Client: anyone(), RateLimitHeaders: everyDialect}
		site.Routes[1].Upstream = one.Upstream
		if err := site.Check(); err != nil {
			t.Fatal(err)
		}
		p.Serve(site)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		// As under a server, where a request that cannot be answered is cut.
		ctx = context.WithValue(ctx, http.ServerContextKey, &http.Server{})
		w := &plainWriter{header: make(http.Header)}
		func() {
			defer func() {
				if e := recover(); e != nil && e != http.ErrAbortHandler {
					panic(e)
				}
			}()
			p.ServeHTTP(w, r.WithContext(ctx))
		}()
		p.Wait()
		one.Upstream.Close()
		if len(told.events) != 1 {
			t.Fatalf("told %d times", len(told.events))
		}
		e := told.events[0]
		if e.Status < 200 || e.Status >= 500 || e.UpstreamStatus == UpstreamError || e.Reason == limiter.ReasonClientGone {
			t.Fatalf("told %+v", e)
		}
		if len(e.Path) > 1024 || len(e.Host) > 256 || len(e.Method) > 32 {
			t.Fatalf("unbounded: %+v", e)
		}
		up.mu.Lock()
		defer up.mu.Unlock()
		got := up.got.String()
		if up.dialed > 1 || got != "" && e.Upstream == "" {
			t.Fatalf("%d connections upstream got %q, told %+v", up.dialed, got, e)
		}
		if got == "" {
			return
		}
		head, _, whole := strings.Cut(got, "\r\n\r\n")
		if !whole {
			t.Fatalf("half a head upstream: %q", got)
		}
		br := bufio.NewReader(strings.NewReader(got))
		sent, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("upstream got %q: %v", got, err)
		}
		io.Copy(io.Discard, sent.Body) // one that the client broke off has no end
		if rest, _ := io.ReadAll(br); len(rest) > 0 {
			t.Fatalf("upstream got %q behind its request", rest)
		}
		framedOnce(t, head+"\r\n\r\n")
	})
}

// serverTakes is what net/http's server checks beyond ReadRequest.
func serverTakes(r *http.Request) bool {
	for name, lines := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, line := range lines {
			if !httpguts.ValidHeaderFieldValue(line) {
				return false
			}
		}
	}
	return r.ProtoMajor == 1 && httpguts.ValidHostHeader(r.Host)
}

// A plainWriter is a ResponseWriter in memory.
type plainWriter struct {
	header http.Header
	status int
	n      int
}

func (w *plainWriter) Header() http.Header { return w.header }
func (w *plainWriter) WriteHeader(code int) {
	if code >= 200 {
		w.status = code
	}
}
func (w *plainWriter) Write(b []byte) (int, error) { w.n += len(b); return len(b), nil }
