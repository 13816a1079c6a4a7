package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inBubble runs f in virtual time with a transport whose connections are pipes
// to serve, and tells the instant since its beginning.
func inBubble(t *testing.T, serve func(n int, c net.Conn, br *bufio.Reader), f func(t *testing.T, tr *Transport, since func() time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := 0
		tr := &Transport{MaxIdle: 4, MaxHeaderBytes: 1 << 20, Dial: func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			n++
			go func(n int) {
				defer far.Close()
				serve(n, far, bufio.NewReader(far))
			}(n)
			return near, nil
		}}
		defer tr.Close()
		f(t, tr, func() time.Duration { return time.Since(start) })
		time.Sleep(2 * time.Hour) // until every server has slept enough
	})
}

func serveHTTP(answer string) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, br *bufio.Reader) {
		for {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, answer)
		}
	}
}

// read reads a request with its body and then nothing more.
func read(_ int, c net.Conn, br *bufio.Reader) {
	req, err := http.ReadRequest(br)
	if err == nil {
		io.Copy(io.Discard, req.Body)
		br.ReadByte()
	}
}

// slowly is a body of n bytes, one each second.
func slowly(n int) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		for range n {
			time.Sleep(time.Second)
			if _, err := w.Write([]byte{'x'}); err != nil {
				return
			}
		}
		w.Close()
	}()
	return r
}

// TestHeaderTimeout: the head of an answer has its time from when the request
// was written, interim answers included, and its body may take longer.
func TestHeaderTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(int, net.Conn, *bufio.Reader)
		body  int // seconds
		at    time.Duration
		ok    bool
	}{
		"silence":             {read, 0, 7 * time.Second, false},
		"reads nothing":       {func(_ int, c net.Conn, br *bufio.Reader) { time.Sleep(time.Hour) }, 0, 7 * time.Second, false},
		"after a long upload": {read, 20, 27 * time.Second, false},
		"interim answers do not count": {func(_ int, c net.Conn, br *bufio.Reader) {
			http.ReadRequest(br)
			for range 5 {
				time.Sleep(2 * time.Second)
				io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n")
			}
		}, 0, 7 * time.Second, false},
		"in the last moment": {func(_ int, c net.Conn, br *bufio.Reader) {
			http.ReadRequest(br)
			time.Sleep(6999 * time.Millisecond)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
			time.Sleep(time.Hour)
			io.WriteString(c, "ok")
		}, 0, time.Hour + 6999*time.Millisecond, true},
		"during an upload": {func(_ int, c net.Conn, br *bufio.Reader) {
			req, _ := http.ReadRequest(br)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			io.Copy(io.Discard, req.Body)
			time.Sleep(time.Minute)
			io.WriteString(c, "2\r\nok\r\n0\r\n\r\n")
		}, 20, 80 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.serve, func(t *testing.T, tr *Transport, since func() time.Duration) {
				tr.HeaderTimeout = 7 * time.Second
				req := newRequest("POST", "/", nil)
				if c.body > 0 {
					req.Body, req.ContentLength = slowly(c.body), int64(c.body)
				}
				res, err := tr.RoundTrip(req)
				if c.ok {
					if err != nil {
						t.Fatal(err)
					}
					if got := finish(res); got.body != "ok" || got.err != nil {
						t.Errorf("%q, %v", got.body, got.err)
					}
				} else {
					var late net.Error
					if !errors.As(err, &late) || !late.Timeout() || strings.Contains(err.Error(), "within 7s") == (name == "reads nothing") {
						t.Errorf("%v", err)
					}
				}
				if since() != c.at {
					t.Errorf("at %v, want %v", since(), c.at)
				}
			})
		})
	}
}

// TestCancel: the end of a request's context ends it at once, wherever it is,
// closes its connection, and is the error.
func TestCancel(t *testing.T) {
	gone := errors.New("the client is gone")
	silent := func(_ int, c net.Conn, br *bufio.Reader) { io.Copy(io.Discard, br) }
	head := func(rest string) func(int, net.Conn, *bufio.Reader) {
		return func(_ int, c net.Conn, br *bufio.Reader) {
			http.ReadRequest(br)
			io.WriteString(c, "HTTP/1.1 200 OK\r\n"+rest)
			io.Copy(io.Discard, br)
		}
	}
	for name, c := range map[string]struct {
		serve  func(int, net.Conn, *bufio.Reader)
		body   io.Reader
		length int64
		inBody bool
	}{
		"before the head":             {silent, nil, 0, false},
		"in the head":                 {head("X: y"), nil, 0, false},
		"in a body with a length":     {head("Content-Length: 9\r\n\r\nx"), nil, 0, true},
		"in a chunk":                  {head("Transfer-Encoding: chunked\r\n\r\n9\r\nx"), nil, 0, true},
		"in a body without end":       {head("\r\nx"), nil, 0, true},
		"while the head is written":   {func(int, net.Conn, *bufio.Reader) { time.Sleep(time.Hour) }, nil, 0, false},
		"while the body is written":   {func(_ int, c net.Conn, br *bufio.Reader) { http.ReadRequest(br); time.Sleep(time.Hour) }, strings.NewReader(strings.Repeat("x", 1<<20)), 1 << 20, false},
		"while the body is read":      {silent, blocked{}, 9, false},
		"while an answer is early":    {head("Content-Length: 9\r\n\r\nx"), blocked{}, 9, true},
		"in chunks, while it is read": {silent, blocked{}, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c.serve, func(t *testing.T, tr *Transport, since func() time.Duration) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(3*time.Second, func() { cancel(gone) })
				req := newRequest("POST", "/", nil).WithContext(ctx)
				if c.body != nil {
					release := make(chan struct{})
					defer close(release)
					if _, blocks := c.body.(blocked); blocks {
						c.body = blocked{release}
					}
					req.Body, req.ContentLength = io.NopCloser(c.body), c.length
				}
				res, err := tr.RoundTrip(req)
				if (err == nil) != c.inBody {
					t.Fatalf("%v, %v", res, err)
				}
				if err == nil {
					got := finish(res)
					if err = got.err; got.body != "x" {
						t.Errorf("%q", got.body)
					}
				}
				if err != gone || since() != 3*time.Second || tr.kept() != 0 {
					t.Errorf("%v at %v, %d kept", err, since(), tr.kept())
				}
			})
		})
	}

	inBubble(t, silent, func(t *testing.T, tr *Transport, since func() time.Duration) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if _, err := tr.RoundTrip(newRequest("GET", "/", nil).WithContext(ctx)); err != gone {
			t.Errorf("before anything: %v", err)
		}
		dialError := errors.New("no way")
		tr.Dial = func(context.Context) (net.Conn, error) { return nil, dialError }
		note := &closeNoter{Reader: strings.NewReader("x")}
		if _, err := tr.RoundTrip(newRequest("POST", "/", note)); err != dialError || note.closed {
			t.Errorf("no connection: %v, the body closed %t", err, note.closed)
		}
	})
}

// A blocked body comes when it is released.
type blocked struct{ release chan struct{} }

func (b blocked) Read([]byte) (int, error) {
	<-b.release
	return 0, io.EOF
}

// TestHeadBeforeBody: the head waits for the body for a moment only.
func TestHeadBeforeBody(t *testing.T) {
	var headAt, bodyAt time.Duration
	start := time.Time{}
	inBubble(t, func(_ int, c net.Conn, br *bufio.Reader) {
		req, _ := http.ReadRequest(br)
		headAt = time.Since(start)
		io.Copy(io.Discard, req.Body)
		bodyAt = time.Since(start)
		io.WriteString(c, ok200)
		br.ReadByte()
	}, func(t *testing.T, tr *Transport, since func() time.Duration) {
		start = time.Now()
		req := newRequest("POST", "/", slowly(3))
		if got := do(t, tr, req); got.body != "ok" {
			t.Errorf("%q", got.body)
		}
		if headAt != firstWait || bodyAt != 3*time.Second {
			t.Errorf("head at %v, body at %v", headAt, bodyAt)
		}
	})
}

// TestIdle: how many connections are kept, for how long, and which is next.
func TestIdle(t *testing.T) {
	var mu sync.Mutex
	ended := map[int]time.Duration{}
	var since func() time.Duration
	serve := func(n int, c net.Conn, br *bufio.Reader) {
		serveHTTP(ok200)(n, c, br)
		mu.Lock()
		defer mu.Unlock()
		ended[n] = since()
	}
	inBubble(t, serve, func(t *testing.T, tr *Transport, s func() time.Duration) {
		since = s
		tr.MaxIdle, tr.IdleTimeout = 3, 10*time.Second
		crowd := func(n int) {
			var all []*http.Response
			for range n {
				res, err := tr.RoundTrip(newRequest("GET", "/", nil))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, res)
			}
			for _, res := range all {
				if got := finish(res); got.body != "ok" {
					t.Fatalf("%q", got.body)
				}
				time.Sleep(time.Second)
			}
		}
		crowd(5) // 1, 2 and 3 are kept from 0, 1 and 2 s on; 4 and 5 are too many
		synctest.Wait()
		if tr.kept() != 3 || ended[4] != 3*time.Second || ended[5] != 4*time.Second {
			t.Errorf("%d kept, ended: %v", tr.kept(), ended)
		}
		for range 3 {
			crowd(1) // on connection 3, at 5, 6 and 7 s
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if tr.kept() != 0 || ended[1] != 10*time.Second || ended[2] != 11*time.Second || ended[3] != 17*time.Second {
			t.Errorf("%d kept, ended: %v", tr.kept(), ended)
		}

		// Closed, it works, and keeps nothing; what is under way comes back to nothing.
		crowd(1)
		res, err := tr.RoundTrip(newRequest("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		at := since()
		tr.Close()
		finish(res)
		crowd(1)
		synctest.Wait()
		if tr.kept() != 0 || ended[6] != at || ended[7] != at {
			t.Errorf("%d kept, ended: %v at %v", tr.kept(), ended, at)
		}
	})
}
