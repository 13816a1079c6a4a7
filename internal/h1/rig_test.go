package h1

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server speaks HTTP by hand on real sockets and keeps every byte it gets.
type server struct {
	l     net.Listener
	serve func(n int, c net.Conn, br *bufio.Reader)
	wg    sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	got   strings.Builder
}

// newServer calls serve for each connection, the first of which is number 1.
func newServer(t *testing.T, secure bool, serve func(n int, c net.Conn, br *bufio.Reader)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if secure {
		l = tls.NewListener(l, serverTLS())
	}
	s := &server{l: l, serve: serve}
	s.wg.Go(s.accept)
	t.Cleanup(func() {
		l.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func (s *server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		n := len(s.conns)
		s.mu.Unlock()
		s.wg.Go(func() {
			defer c.Close()
			s.serve(n, c, bufio.NewReader(io.TeeReader(c, s)))
		})
	}
}

func (s *server) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

func (s *server) bytes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func (s *server) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// newHTTPServer answers each request, read to its end, with what answer
// returns; "" closes.
func newHTTPServer(t *testing.T, secure bool, answer func(n int, req *http.Request, body string) string) *server {
	var mu sync.Mutex
	n := 0
	return newServer(t, secure, func(_ int, c net.Conn, br *bufio.Reader) {
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			mu.Lock()
			n++
			a := answer(n, req, string(body))
			mu.Unlock()
			if a == "" {
				return
			}
			if _, err := io.WriteString(c, a); err != nil {
				return
			}
		}
	})
}

func always(answer string) func(int, *http.Request, string) string {
	return func(int, *http.Request, string) string { return answer }
}

const ok200 = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

var serverTLS = sync.OnceValue(func() *tls.Config {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return &tls.Config{Certificates: s.TLS.Certificates}
})

// transport is one to s.
func (s *server) transport(t *testing.T) *Transport {
	_, port, _ := net.SplitHostPort(s.l.Addr().String())
	_, plain := s.l.(*net.TCPListener)
	return newTransport(t, func(ctx context.Context) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err != nil || plain {
			return c, err
		}
		secure := tls.Client(Count(c, 0), &tls.Config{InsecureSkipVerify: true})
		return secure, secure.HandshakeContext(ctx)
	})
}

func newTransport(t *testing.T, dial func(context.Context) (net.Conn, error)) *Transport {
	tr := &Transport{Dial: dial, MaxIdle: 4, IdleTimeout: time.Minute, HeaderTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 20}
	t.Cleanup(tr.Close)
	return tr
}

func newRequest(method, path string, body io.Reader) *http.Request {
	req, err := http.NewRequest(method, "http://server.test"+path, body)
	if err != nil {
		panic(err)
	}
	return req
}

// An answer is what came back, read to its end.
type answered struct {
	*http.Response
	body string
	err  error // of reading the body
}

func do(t *testing.T, tr *Transport, req *http.Request) answered {
	t.Helper()
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return finish(res)
}

func finish(res *http.Response) answered {
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	return answered{res, string(b), err}
}

func get(t *testing.T, tr *Transport) answered {
	t.Helper()
	return do(t, tr, newRequest("GET", "/", nil))
}

func (t *Transport) kept() int {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return len(t.pool.idle)
}

// eventually waits for what another goroutine is about to do.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}
