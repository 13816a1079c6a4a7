package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestDeadConnections: a kept connection that ended, was reset, or has bytes
// that nobody asked for is replaced before anything is written to it.
func TestDeadConnections(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for name, end := range map[string]func(c net.Conn){
			"closed": func(c net.Conn) { c.Close() },
			"reset": func(c net.Conn) {
				if s, ok := c.(interface{ NetConn() net.Conn }); ok {
					c = s.NetConn()
				}
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			},
			"unasked bytes": func(c net.Conn) { io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n") },
		} {
			ends := make(chan struct{})
			ended := make(chan struct{})
			s := newServer(t, secure, func(n int, c net.Conn, br *bufio.Reader) {
				http.ReadRequest(br)
				io.WriteString(c, ok200)
				select {
				case <-ends:
				case <-t.Context().Done():
					return
				}
				end(c)
				ended <- struct{}{}
				io.Copy(io.Discard, br)
			})
			tr := s.transport(t)
			for i := range 3 {
				body := io.Reader(nil)
				if i > 0 {
					body = strings.NewReader("body")
				}
				if got := do(t, tr, newRequest("POST", "/", body)); got.body != "ok" || tr.kept() != 1 {
					t.Fatalf("%s: %q, %d kept", name, got.body, tr.kept())
				}
				kept := tr.pool.idle[0]
				ends <- struct{}{}
				<-ended
				eventually(t, "it stays quiet", func() bool { return !kept.quiet() })
			}
			if s.accepted() != 3 || strings.Count(s.bytes(), "POST") != 3 {
				t.Errorf("%s by TLS %t: %d connections, %q", name, secure, s.accepted(), s.bytes())
			}
		}
	}
}

// TestUnaskedAnswers: what a server sends behind its answer is never taken for
// the answer to the next request, wherever it was when the first one ended: in
// the kernel, in our buffer, or in that of TLS, which takes in more than it was
// asked for.
func TestUnaskedAnswers(t *testing.T) {
	const unasked = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	chunked := func(size int) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size))
	}
	for _, secure := range []bool{false, true} {
		for _, size := range []int{0, 2, 4 << 10, 5000, 16 << 10, 40_000} {
			whole := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
			for name, writes := range map[string][]string{
				"by length, in one write":  {whole + unasked},
				"by length, in two writes": {whole, unasked},
				"chunked, in two writes":   {chunked(size + 1), unasked},
				"half of it":               {whole, unasked[:20]},
			} {
				s := newServer(t, secure, func(_ int, c net.Conn, br *bufio.Reader) {
					for {
						if _, err := http.ReadRequest(br); err != nil {
							return
						}
						for _, w := range writes {
							if _, err := io.WriteString(c, w); err != nil {
								return
							}
						}
					}
				})
				tr := s.transport(t)
				for i := range 3 {
					res, err := tr.RoundTrip(newRequest("GET", "/", nil))
					if err != nil {
						t.Fatal(err)
					}
					var got strings.Builder
					if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, res.Body, make([]byte, 32<<10)); err != nil {
						t.Fatal(err)
					}
					res.Body.Close()
					if strings.Trim(got.String(), "x") != "" {
						t.Errorf("%d bytes %s, by TLS %t: request %d is answered %q", size, name, secure, i+1, got.String())
					}
					// What is not there yet is seen in the kernel, by the next.
					eventually(t, "it stays quiet", func() bool { return tr.kept() == 0 || !tr.pool.idle[0].quiet() })
				}
			}
		}
	}
}

// TestServerLeaves: connections that a server has closed do not stay until the
// next request, or until they are old.
func TestServerLeaves(t *testing.T) {
	s := newHTTPServer(t, false, always(ok200))
	tr := s.transport(t)
	var open []*http.Response
	for range 3 {
		res, err := tr.RoundTrip(newRequest("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, res)
	}
	for _, res := range open {
		finish(res)
	}
	s.mu.Lock()
	s.conns[0].Close()
	s.conns[2].Close()
	s.mu.Unlock()
	eventually(t, "the dead ones stay", func() bool { return tr.kept() == 1 })
	if get(t, tr); s.accepted() != 3 {
		t.Errorf("%d connections: the living one did not stay", s.accepted())
	}
}

// A mortal is a connection that can be found dead by a write.
type mortal struct {
	net.Conn
	dead atomic.Bool
}

func (c *mortal) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

// TestDeadWrites: so is one whose death only the first write finds, with what
// was read of the body. A new connection that does so is an error.
func TestDeadWrites(t *testing.T) {
	for _, body := range []string{"", "body", strings.Repeat("x", 50_000)} {
		s := newHTTPServer(t, false, func(_ int, _ *http.Request, got string) string {
			if got != body {
				return "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
			}
			return ok200
		})
		dialed := 0
		var last *mortal
		tr := s.transport(t)
		dial := tr.Dial
		tr.Dial = func(ctx context.Context) (net.Conn, error) {
			c, err := dial(ctx)
			dialed++
			last = &mortal{Conn: c}
			return last, err
		}
		for i := range 4 {
			req := newRequest("POST", "/", nil)
			if body != "" {
				req = newRequest("POST", "/", strings.NewReader(body))
			}
			if got := do(t, tr, req); got.body != "ok" || dialed != i+1 {
				t.Fatalf("%d bytes: status %d over connection %d", len(body), got.StatusCode, dialed)
			}
			if tr.kept() == 1 { // else the answer overtook the upload's end
				last.dead.Store(true)
			}
		}
		tr.Dial = func(ctx context.Context) (net.Conn, error) {
			c, err := dial(ctx)
			m := &mortal{Conn: c}
			m.dead.Store(true)
			return m, err
		}
		if _, err := tr.RoundTrip(newRequest("POST", "/", nil)); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a dead new connection: %v", err)
		}
		if _, err := tr.RoundTrip(newRequest("POST", "/", strings.NewReader("x"))); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a dead new connection: %v", err)
		}
	}
}

// TestNeverTwice: what was written is not sent again, whatever its method says
// about that. net/http's Transport makes eleven of these six.
func TestNeverTwice(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, method := range []string{"GET", "HEAD", "DELETE", "POST"} {
			s := newHTTPServer(t, secure, func(n int, _ *http.Request, _ string) string {
				if n%2 == 0 {
					return "" // read, and closed
				}
				return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
			})
			tr := s.transport(t)
			for i := range 6 {
				res, err := tr.RoundTrip(newRequest(method, "/", nil))
				if i%2 == 0 && err != nil || i%2 == 1 && !errors.Is(err, io.EOF) {
					t.Errorf("%s %d by TLS %t: %v, %v", method, i, secure, res, err)
				}
			}
			if n := strings.Count(s.bytes(), method+" /"); n != 6 {
				t.Errorf("%s: six requests became %d", method, n)
			}
		}
	}
}

// TestS8EarlyAnswers: an answer that comes before its request was read is passed
// on, and its connection serves no other request: what is left of the body
// would be read as one. Nor is one used again after a body that the server may
// not have taken for one (CL.0).
func TestS8EarlyAnswers(t *testing.T) {
	s := newServer(t, false, func(_ int, c net.Conn, br *bufio.Reader) {
		http.ReadRequest(br)
		io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, br)
	})
	tr := s.transport(t)
	body, w := io.Pipe()
	if got := do(t, tr, newRequest("POST", "/", body)); got.StatusCode != 413 || got.body != "no" || got.err != nil || tr.kept() != 0 {
		t.Errorf("%d %q, %d kept", got.StatusCode, got.body, tr.kept())
	}
	w.CloseWithError(io.ErrClosedPipe)

	// The server stops to read while it is written to.
	s = newServer(t, false, func(_ int, c net.Conn, br *bufio.Reader) {
		http.ReadRequest(br)
		io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
		c.(*net.TCPConn).CloseWrite()
	})
	tr = s.transport(t)
	if res, err := tr.RoundTrip(newRequest("POST", "/", io.LimitReader(endless{}, 64<<20))); err == nil {
		// A reset may overtake the answer: what counts is that nothing hangs.
		finish(res)
	}
	if tr.kept() != 0 {
		t.Error("kept")
	}

	for method, kept := range map[string]int{"GET": 0, "HEAD": 0, "DELETE": 0, "OPTIONS": 1, "POST": 1} {
		s := newHTTPServer(t, false, always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		tr := s.transport(t)
		if do(t, tr, newRequest(method, "/", strings.NewReader("body"))); tr.kept() != kept {
			t.Errorf("%s with a body: %d kept", method, tr.kept())
		}
	}
}

// TestCutWrites: an answer counts also if the server broke the connection while
// the head was written, and what is still to come of the body is left.
func TestCutWrites(t *testing.T) {
	tr := newTransport(t, func(context.Context) (net.Conn, error) {
		return cutWrites{&script{says: bytes.NewReader([]byte(ok200))}}, nil
	})
	body, w := io.Pipe()
	if got := do(t, tr, newRequest("POST", "/", body)); got.body != "ok" || tr.kept() != 0 {
		t.Errorf("%q, %d kept", got.body, tr.kept())
	}
	if _, err := w.Write([]byte("late")); err != nil { // the read that waited takes it, and is the last
		t.Error(err)
	}
	if _, err := w.Write([]byte("later")); err != io.ErrClosedPipe {
		t.Errorf("still read: %v", err)
	}
}

type cutWrites struct{ *script }

func (cutWrites) Write([]byte) (int, error) { return 5, syscall.EPIPE }

// TestNothingLeaks: after crowds of requests that end in every way, all
// descriptors are back. (That all goroutines are is seen by TestMain.)
func TestNothingLeaks(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	descriptors := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	for _, secure := range []bool{false, true} {
		before := descriptors()
		s := newServer(t, secure, func(n int, c net.Conn, br *bufio.Reader) {
			for {
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				switch req.URL.Path {
				case "/hang":
					br.ReadByte()
					return
				case "/garbage":
					io.WriteString(c, "garbage")
					return
				case "/stall":
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
					br.ReadByte()
					return
				default:
					io.Copy(io.Discard, req.Body)
					io.WriteString(c, ok200)
				}
			}
		})
		tr := s.transport(t)
		tr.MaxIdle = 2
		var wg sync.WaitGroup
		for i := range 80 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				path := []string{"/", "/hang", "/garbage", "/stall"}[i%4]
				var body io.Reader
				if i%8 > 3 {
					body = strings.NewReader(strings.Repeat("x", 10_000))
				}
				if path == "/hang" {
					context.AfterFunc(ctx, func() {})
					go cancel()
				}
				res, err := tr.RoundTrip(newRequest("POST", path, body).WithContext(ctx))
				if err != nil {
					return
				}
				if path == "/stall" {
					go cancel()
				}
				finish(res)
			})
		}
		wg.Wait()
		if n := tr.kept(); n > 2 {
			t.Errorf("%d kept", n)
		}
		tr.Close()
		s.l.Close()
		eventually(t, "descriptors stay open", func() bool { return descriptors() < before+1 })
	}
}
