package h1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// TestRequestBytes: what goes over the wire, to the byte.
func TestRequestBytes(t *testing.T) {
	trailing := func(req *http.Request) {
		req.Trailer = http.Header{"X-B": {"2"}, "X-A": {"1"}, "Content-Length": {"9"}}
	}
	chunked := func(req *http.Request) { req.ContentLength = -1 }
	for _, c := range []struct {
		name, method, body string
		change             func(*http.Request)
		want               string
	}{
		{"GET", "GET", "", nil, "GET /a?b=c HTTP/1.1\r\nHost: server.test\r\n\r\n"},
		{"no method", "", "", nil, "GET /a?b=c HTTP/1.1\r\nHost: server.test\r\n\r\n"},
		{"POST", "POST", "", nil, "POST /a?b=c HTTP/1.1\r\nHost: server.test\r\nContent-Length: 0\r\n\r\n"},
		{"PUT of NoBody", "PUT", "", func(req *http.Request) { req.Body = http.NoBody }, "PUT /a?b=c HTTP/1.1\r\nHost: server.test\r\nContent-Length: 0\r\n\r\n"},
		{"told to be empty", "GET", "", func(req *http.Request) { req.Header["Content-Length"] = []string{"0"} }, "GET /a?b=c HTTP/1.1\r\nHost: server.test\r\nContent-Length: 0\r\n\r\n"},
		{"fields in order", "DELETE", "", func(req *http.Request) {
			req.Host = "other.test:81"
			req.Header = http.Header{"X-B": {"1", "", "\xff 2"}, "X-A": {"3"}, "User-Agent": {""}, "Expect": {"100-continue"}, "Connection": {"Upgrade"}}
		}, "DELETE /a?b=c HTTP/1.1\r\nHost: other.test:81\r\nConnection: Upgrade\r\nExpect: 100-continue\r\nX-A: 3\r\nX-B: 1\r\nX-B: \r\nX-B: \xff 2\r\n\r\n"},
		{"framing is not the header's", "GET", "", func(req *http.Request) {
			req.Header = http.Header{"content-length": {"5"}, "Transfer-encoding": {"chunked"}, "TRAILER": {"x"}, "host": {"evil"}}
		}, "GET /a?b=c HTTP/1.1\r\nHost: server.test\r\n\r\n"},
		{"last on its connection", "GET", "", func(req *http.Request) { req.Close = true }, "GET /a?b=c HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n"},
		{"opaque with two slashes", "GET", "", func(req *http.Request) { req.URL = &url.URL{Scheme: "http", Opaque: `//a|"b`, ForceQuery: true} }, "GET //a|\"b? HTTP/1.1\r\nHost: server.test\r\n\r\n"},
		{"opaque", "GET", "", func(req *http.Request) { req.URL = &url.URL{Scheme: "http", Opaque: "/%61//b", RawQuery: "x;%zz\xff"} }, "GET /%61//b?x;%zz\xff HTTP/1.1\r\nHost: server.test\r\n\r\n"},
		{"zone", "GET", "", func(req *http.Request) { req.Host = "[fe80::1%eth0]:80" }, "GET /a?b=c HTTP/1.1\r\nHost: [fe80::1]:80\r\n\r\n"},
		{"length", "POST", "body", nil, "POST /a?b=c HTTP/1.1\r\nHost: server.test\r\nContent-Length: 4\r\n\r\nbody"},
		{"chunks", "POST", "a body", chunked, "POST /a?b=c HTTP/1.1\r\nHost: server.test\r\nTransfer-Encoding: chunked\r\n\r\n6\r\na body\r\n0\r\n\r\n"},
		{"trailers", "POST", "a longer body.", trailing, ""}, // with a length, there are none
		{"chunks and trailers", "POST", "a longer body..", func(req *http.Request) { chunked(req); trailing(req) },
			"POST /a?b=c HTTP/1.1\r\nHost: server.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-A, X-B\r\n\r\nf\r\na longer body..\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n"},
	} {
		s := newHTTPServer(t, false, always(ok200))
		var body io.Reader
		if c.body != "" {
			body = strings.NewReader(c.body)
		}
		req := newRequest(c.method, "/a?b=c", body)
		req.Method = c.method
		if c.change != nil {
			c.change(req)
		}
		if got := do(t, s.transport(t), req); got.body != "ok" {
			t.Errorf("%s: %d %q", c.name, got.StatusCode, got.body)
		}
		if c.want == "" {
			c.want = "POST /a?b=c HTTP/1.1\r\nHost: server.test\r\nContent-Length: 14\r\n\r\na longer body."
		}
		if s.bytes() != c.want {
			t.Errorf("%s: sent\n%q, want\n%q", c.name, s.bytes(), c.want)
		}
	}
}

// TestOneWrite: a request and a body that is there go out at once.
func TestOneWrite(t *testing.T) {
	for _, body := range []string{"", "x", strings.Repeat("x", 3000)} {
		s := newServer(t, false, func(_ int, c net.Conn, _ *bufio.Reader) {
			b := make([]byte, 8000)
			n, _ := c.Read(b)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nX-Read: %t\r\nContent-Length: 0\r\n\r\n", bytes.HasSuffix(b[:n], []byte("\r\n\r\n"+body)))
		})
		var r io.Reader
		if body != "" {
			r = strings.NewReader(body)
		}
		if got := do(t, s.transport(t), newRequest("POST", "/", r)); got.Header.Get("X-Read") != "true" {
			t.Errorf("%d bytes came in pieces", len(body))
		}
	}
}

// TestBadRequests: what cannot be written is not sent.
func TestBadRequests(t *testing.T) {
	s := newHTTPServer(t, false, always(ok200))
	tr := s.transport(t)
	for name, change := range map[string]func(*http.Request){
		"method":      func(req *http.Request) { req.Method = "GET / HTTP/1.1\r\nX:" },
		"CONNECT":     func(req *http.Request) { req.Method = "CONNECT" },
		"target":      func(req *http.Request) { req.URL = &url.URL{Opaque: "/ HTTP/1.1"} },
		"query":       func(req *http.Request) { req.URL.RawQuery = "a\r\nb" },
		"host":        func(req *http.Request) { req.Host = "a\r\nX: y" },
		"no host":     func(req *http.Request) { req.Host, req.URL.Host = "", "" },
		"name":        func(req *http.Request) { req.Header["X: y\r\nZ"] = []string{"1"} },
		"empty name":  func(req *http.Request) { req.Header[""] = []string{"1"} },
		"value":       func(req *http.Request) { req.Header["X"] = []string{"1\r\nY: z"} },
		"NUL":         func(req *http.Request) { req.Header["X"] = []string{"1\x00"} },
		"no body yet": func(req *http.Request) { req.ContentLength = 1; req.Body = nil },
	} {
		closed := &closeNoter{Reader: strings.NewReader("x")}
		req := newRequest("POST", "/", closed)
		change(req)
		if _, err := tr.RoundTrip(req); err == nil || req.Body != nil && !closed.closed {
			t.Errorf("%s: %v, closed %t", name, err, closed.closed)
		}
	}
	if s.accepted() != 0 {
		t.Errorf("%d connections for nothing", s.accepted())
	}
}

type closeNoter struct {
	io.Reader
	closed bool
}

func (c *closeNoter) Close() error { c.closed = true; return nil }

// TestUploads: bodies of all sizes arrive whole, however they are read, and the
// connection goes on.
func TestUploads(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var came string
		s := newHTTPServer(t, secure, func(_ int, req *http.Request, body string) string {
			came = body
			return "HTTP/1.1 200 OK\r\nX-Trailer: " + req.Trailer.Get("X-T") + "\r\nContent-Length: 0\r\n\r\n"
		})
		tr := s.transport(t)
		for _, n := range []int{1, 100, 4080, 4081, 8192, 100_000, 1 << 20} {
			body := strings.Repeat("0123456789", n/10+1)[:n]
			for how, read := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r },
				"half":  iotest.HalfReader,
				"early": iotest.DataErrReader, // io.EOF with the last bytes
			} {
				for _, chunked := range []bool{false, true} {
					req := newRequest("POST", "/", io.NopCloser(read(strings.NewReader(body))))
					if req.ContentLength = int64(n); chunked {
						req.ContentLength, req.Trailer = -1, http.Header{"X-T": {"yes"}}
					}
					got := do(t, tr, req)
					if came != body || (got.Header.Get("X-Trailer") == "yes") != chunked {
						t.Errorf("%d bytes, %s, chunked %t: %d came, %v", n, how, chunked, len(came), got.Header)
					}
				}
			}
		}
	}
}

// TestBrokenBodies: a body that ends in an error, or has another length than was
// told, is never taken for a whole one.
func TestBrokenBodies(t *testing.T) {
	broken := errors.New("the client broke it")
	large := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		body   io.Reader
		length int64
		want   error
	}{
		"at once":            {iotest.ErrReader(broken), 10, broken},
		"at once, in chunks": {iotest.ErrReader(broken), -1, broken},
		"later":              {io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 10, broken},
		"later, in chunks":   {io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), -1, broken},
		"much later":         {io.MultiReader(strings.NewReader(large), iotest.ErrReader(broken)), -1, broken},
		"short":              {strings.NewReader("abc"), 10, io.ErrUnexpectedEOF},
		"short, large":       {strings.NewReader(large), 100_001, io.ErrUnexpectedEOF},
		"long":               {strings.NewReader("abc"), 2, errTooLong},
		"long, large":        {strings.NewReader(large), 99_999, errTooLong},
		"without progress":   {stuck{}, 10, io.ErrNoProgress},
	} {
		s := newHTTPServer(t, false, func(_ int, req *http.Request, _ string) string {
			if req.Method == "POST" {
				t.Errorf("%s: taken for whole", name)
			}
			return ok200
		})
		tr := s.transport(t)
		req := newRequest("POST", "/", io.NopCloser(c.body))
		req.ContentLength = c.length
		res, err := tr.RoundTrip(req)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", name, res, err)
		}
		if got := get(t, tr); got.body != "ok" {
			t.Errorf("%s: then %q", name, got.body)
		}
		if n := strings.Count(s.bytes(), "POST"); n > 1 {
			t.Errorf("%s: sent %d times", name, n)
		}
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }
