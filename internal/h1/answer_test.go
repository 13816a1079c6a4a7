package h1

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestAnswers: what ends where, what of it is passed on, and whether the
// connection serves the next request.
func TestAnswers(t *testing.T) {
	long := strings.Repeat("x", 9000)
	many := strings.Repeat("X: y\r\n", 2000)
	type h = http.Header
	for _, c := range []struct {
		name, method, answer string
		status               int
		header               h
		body                 string
		trailer              h
		length               int64
		reused               bool
	}{
		{"length", "GET", ok200, 200, h{"Content-Length": {"2"}}, "ok", nil, 2, true},
		{"no reason", "GET", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, h{"Content-Length": {"0"}}, "", nil, 0, true},
		{"a later minor version", "GET", "HTTP/1.7 200 \r\nContent-Length: 02\r\n\r\nok", 200, h{"Content-Length": {"2"}}, "ok", nil, 2, true},
		{"lines that end in LF", "GET", "HTTP/1.1 200 OK\nContent-Length: 2\nX: y\n\nok", 200, h{"Content-Length": {"2"}, "X": {"y"}}, "ok", nil, 2, true},
		{"fields", "GET", "HTTP/1.1 418 I'm a \xe9 teapot\r\nx-a:1\r\nX-A: \t2 3\t \r\nx-empty:\r\nX-Obs: \xff\r\nContent-Length: 2\r\n\r\nok", 418,
			h{"X-A": {"1", "2 3"}, "X-Empty": {""}, "X-Obs": {"\xff"}, "Content-Length": {"2"}}, "ok", nil, 2, true},
		{"a head longer than a buffer", "GET", "HTTP/1.1 200 OK\r\nX: " + long + "\r\nContent-Length: 2\r\n\r\nok", 200, h{"X": {long}, "Content-Length": {"2"}}, "ok", nil, 2, true},
		{"a head of many lines", "GET", "HTTP/1.1 200 OK\r\n" + many + "Content-Length: 2\r\n\r\nok", 200,
			h{"X": strings.Fields(strings.Repeat("y ", 2000)), "Content-Length": {"2"}}, "ok", nil, 2, true},
		{"chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;ext=1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 200, h{}, "ok", nil, -1, true},
		{"trailers", "GET", "HTTP/1.1 200 OK\r\nTrailer: x-a, Content-Length,\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A: 1\r\nx-b: 2\r\nX-B: 3\r\nContent-Length: 9\r\nConnection: x\r\n\r\n",
			200, h{}, "ok", h{"X-A": {"1"}, "X-B": {"2", "3"}}, -1, true},
		{"an announced trailer that stays away", "GET", "HTTP/1.1 200 OK\r\nTrailer: X-A\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, h{}, "", h{"X-A": nil}, -1, true},
		{"to the end", "GET", "HTTP/1.1 200 OK\r\n\r\nall of it", 200, h{}, "all of it", nil, -1, false},
		{"close", "GET", "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok", 200, h{"Content-Length": {"2"}}, "ok", nil, 2, false},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, h{"Content-Length": {"2"}}, "ok", nil, 2, false},
		{"HTTP/1.0 that stays", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, h{"Content-Length": {"2"}}, "ok", nil, 2, true},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 200, h{"Content-Length": {"99"}}, "", nil, 99, true},
		{"HEAD of chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, h{}, "", nil, -1, true},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nEtag: x\r\nContent-Length: 99\r\n\r\n", 304, h{"Etag": {"x"}, "Content-Length": {"99"}}, "", nil, 99, true},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, h{}, "", nil, 0, true},
		{"204 with a length", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", 204, h{"Content-Length": {"2"}}, "", nil, 0, false},
		{"204 with chunks", "GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 204, h{}, "", nil, 0, false},
		{"more than was asked for", "GET", ok200 + ok200, 200, h{"Content-Length": {"2"}}, "ok", nil, 2, false},
		{"more behind an empty one", "GET", "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200", 204, h{}, "", nil, 0, false},
		// net/http's Transport takes the Connection line away where it has
		// "close", and httputil.ReverseProxy then passes on what it named.
		{"S40 close", "GET", "HTTP/1.1 200 OK\r\nConnection: close, X-A\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 2\r\n\r\nok", 200, h{"X-B": {"2"}, "Content-Length": {"2"}}, "ok", nil, 2, false},
		{"S40", "GET", "HTTP/1.1 200 OK\r\nConnection: x-a\r\nConnection: x-c\r\nX-A: 1\r\nX-C: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\nTe: x\r\nUpgrade: h2c\r\nTrailer: x\r\nContent-Length: 2\r\n\r\nok",
			200, h{"Content-Length": {"2"}}, "ok", nil, 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, false, func(_ int, conn net.Conn, br *bufio.Reader) {
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(conn, c.answer)
					if c.length < 0 && !c.reused {
						return
					}
				}
			})
			tr := s.transport(t)
			for range 2 {
				got := do(t, tr, newRequest(c.method, "/", nil))
				if got.err != nil || got.StatusCode != c.status || got.body != c.body || got.ContentLength != c.length || got.Close == c.reused {
					if !strings.Contains(c.name, "more") {
						t.Errorf("status %d, %d bytes, close %t, body %q, %v", got.StatusCode, got.ContentLength, got.Close, got.body, got.err)
					}
				}
				if !reflect.DeepEqual(got.Header, c.header) || !reflect.DeepEqual(got.Trailer, c.trailer) {
					t.Errorf("header %v, trailer %v", got.Header, got.Trailer)
				}
			}
			if want := map[bool]int{true: 1, false: 2}[c.reused]; s.accepted() != want {
				t.Errorf("%d connections, want %d", s.accepted(), want)
			}
		})
	}
}

// TestBadAnswers: an answer that two readers could read in two ways is none.
func TestBadAnswers(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\n"
	for answer, want := range map[string]string{
		"":                            "closed without an answer",
		"HTT":                         "unexpected EOF",
		head + "X: y":                 "unexpected EOF",
		"SSH-2.0-OpenSSH_9.2\r\n":     "not HTTP/1",
		"\r\n" + ok200:                "not HTTP/1",
		"HTTP/2.0 200 OK\r\n\r\n":     "not HTTP/1",
		"HTTP/1.1  200 OK\r\n\r\n":    "bad status line",
		"HTTP/1.1 20 OK\r\n\r\n":      "bad status line",
		"HTTP/1.1 99 OK\r\n\r\n":      "bad status line",
		"HTTP/1.1 099 OK\r\n\r\n":     "bad status line",
		"HTTP/1.1 1000 OK\r\n\r\n":    "bad status line",
		"HTTP/1.1 +20 OK\r\n\r\n":     "bad status line",
		"HTTP/1.11 200 OK\r\n\r\n":    "bad status line",
		"HTTP/1.x 200 OK\r\n\r\n":     "bad status line",
		"HTTP/1.1 200 O\x00K\r\n\r\n": "bad status line",
		"HTTP/1.1 200 O\rK\r\n\r\n":   "bad status line",
		head + "no colon\r\n\r\n":     "bad field",
		head + ": no name\r\n\r\n":    "bad field",
		head + "X : y\r\n\r\n":        "bad field",
		head + "X y: z\r\n\r\n":       "bad field",
		head + "X\x00: z\r\n\r\n":     "bad field",
		head + "X: y\r\n z\r\n\r\n":   "second line",
		head + "\tX: y\r\n\r\n":       "second line",
		head + "X: y\x00z\r\n\r\n":    "control character",
		head + "X: y\rz\r\n\r\n":      "control character",
		head + "X: y\r\r\n\r\n":       "control character",
		head + "X: y\x7f\r\n\r\n":     "control character",
		head + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n":           "too long",
		head + strings.Repeat("X:\r\n", 2000) + "\r\n":                    "too long",
		head + strings.Repeat("endless", 10000):                           "too long",
		head + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n":  "both",
		head + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok":         "more than one",
		head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok":         "more than one",
		head + "Content-Length: 2, 2\r\n\r\nok":                           "more than one",
		head + "Content-Length:\r\n\r\n":                                  "no number",
		head + "Content-Length: +2\r\n\r\nok":                             "no number",
		head + "Content-Length: -2\r\n\r\nok":                             "no number",
		head + "Content-Length: 0x2\r\n\r\nok":                            "no number",
		head + "Content-Length: 1_0\r\n\r\nok":                            "no number",
		head + "Content-Length: 2 2\r\n\r\nok":                            "no number",
		head + "Content-Length: 18446744073709551618\r\n\r\nok":           "no number",
		head + "Content-Length: 9223372036854775808\r\n\r\nok":            "no number",
		head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n":             "Transfer-Encoding",
		head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n":        "Transfer-Encoding",
		head + "Transfer-Encoding: identity\r\n\r\n":                      "Transfer-Encoding",
		head + "Transfer-Encoding:\r\n\r\n":                               "Transfer-Encoding",
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r": "Transfer-Encoding",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":  "HTTP/1.0",
		"HTTP/1.1 101 X\r\nUpgrade: websocket\r\n\r\n":                    "unasked",
		strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 11) + ok200:    "without end",
		"HTTP/1.1 103 Early Hints\r\nX : y\r\n\r\n" + ok200:               "bad field",
	} {
		t.Run(fmt.Sprintf("%.40q", answer), func(t *testing.T) {
			if strings.HasSuffix(answer, "\r\n\r") {
				answer += "\n"
			}
			s := newServer(t, false, func(_ int, c net.Conn, br *bufio.Reader) {
				http.ReadRequest(br)
				io.WriteString(c, answer)
				if !strings.Contains(want, "closed") && !strings.Contains(want, "EOF") {
					br.ReadByte() // so that nothing but the bytes can be the fault
				}
			})
			tr := s.transport(t)
			tr.MaxHeaderBytes = 32 << 10
			res, err := tr.RoundTrip(newRequest("GET", "/", nil))
			if err == nil {
				t.Fatalf("taken for %d %v", res.StatusCode, res.Header)
			}
			if !strings.Contains(err.Error(), want) || errors.Is(err, io.EOF) != strings.Contains(want, "closed") ||
				errors.Is(err, io.ErrUnexpectedEOF) != strings.Contains(want, "EOF") {
				t.Errorf("%q, want %q", err, want)
			}
			if s.accepted() != 1 || tr.kept() != 0 {
				t.Errorf("%d connections, %d kept", s.accepted(), tr.kept())
			}
		})
	}
}

// TestCutAnswers: an answer that stops short ends in an error, never as if it
// were whole.
func TestCutAnswers(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort":                             "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n":                           "",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n":             "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort":                "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n":       "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshortX\r\n0\r\n\r\n":   "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n":        "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\nX: y":    "short",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\nX\r\n\r": "short",
	} {
		if strings.HasSuffix(answer, "\r\n\r") {
			answer += "\n"
		}
		for _, secure := range []bool{false, true} {
			s := newServer(t, secure, func(_ int, c net.Conn, br *bufio.Reader) {
				http.ReadRequest(br)
				io.WriteString(c, answer)
			})
			tr := s.transport(t)
			got := get(t, tr)
			if got.err == nil || got.body != want {
				t.Errorf("%q by TLS %t: read %q, %v", answer, secure, got.body, got.err)
			}
			if n, err := got.Body.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("%q: read on: %d, %v", answer, n, err)
			}
			if tr.kept() != 0 {
				t.Errorf("%q: kept", answer)
			}
		}
	}
}

// TestEndOfTLS: an answer without length or chunks ends with its connection, and
// with TLS only if the server says that it does: anybody on the way can cut
// TCP. What needs no end of the connection is whole without.
func TestEndOfTLS(t *testing.T) {
	for _, c := range []struct {
		answer  string
		says    bool // by close_notify
		version uint16
		whole   bool
	}{
		{"HTTP/1.1 200 OK\r\n\r\nall of it", true, tls.VersionTLS13, true},
		{"HTTP/1.1 200 OK\r\n\r\nall of it", true, tls.VersionTLS12, true},
		{"HTTP/1.0 200 OK\r\n\r\n", true, tls.VersionTLS13, true},
		{"HTTP/1.1 200 OK\r\n\r\nsome of it", false, tls.VersionTLS13, false},
		{"HTTP/1.1 200 OK\r\n\r\nsome of it", false, tls.VersionTLS12, false},
		{"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", false, tls.VersionTLS13, false},
		{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nall", false, tls.VersionTLS13, true},
		{"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n0\r\n\r\n", false, tls.VersionTLS13, true},
		{"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", false, tls.VersionTLS13, true},
	} {
		s := newServer(t, true, func(_ int, conn net.Conn, br *bufio.Reader) {
			http.ReadRequest(br)
			io.WriteString(conn, c.answer)
			if !c.says {
				conn.(*tls.Conn).NetConn().Close()
			}
		})
		tr := newTransport(t, func(ctx context.Context) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", s.l.Addr().String())
			if err != nil {
				return nil, err
			}
			secure := tls.Client(Count(raw, 0), &tls.Config{InsecureSkipVerify: true, MaxVersion: c.version})
			return secure, secure.HandshakeContext(ctx)
		})
		got := get(t, tr)
		if (got.err == nil) != c.whole || !c.whole && !errors.Is(got.err, io.ErrUnexpectedEOF) {
			t.Errorf("%q by TLS %#x, ended %t: read %q, %v", c.answer, c.version, c.says, got.body, got.err)
		}
		if _, body, _ := strings.Cut(c.answer, "\r\n\r\n"); got.ContentLength < 0 && got.TransferEncoding == nil && got.body != body {
			t.Errorf("%q: read %q", c.answer, got.body)
		}
		if tr.kept() != 0 {
			t.Errorf("%q: kept", c.answer)
		}
	}
}

// TestInterim: interim answers are passed on without the fields of the
// connection, up to ten of them.
func TestInterim(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X\r\nX: y\r\n\r\n"
	s := newHTTPServer(t, false, always("HTTP/1.1 100 Continue\r\n\r\n"+strings.Repeat(hint, 9)+ok200))
	var told []int
	req := newRequest("GET", "/", nil)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if told = append(told, code); code == 103 && !reflect.DeepEqual(h, textproto.MIMEHeader{"Link": {"</a>"}}) {
				t.Errorf("told %v", h)
			}
			return nil
		},
	}))
	tr := s.transport(t)
	if got := do(t, tr, req); got.body != "ok" || len(told) != 10 || told[0] != 100 || told[9] != 103 {
		t.Errorf("told %v, then %q", told, got.body)
	}
	if got := get(t, tr); got.body != "ok" || s.accepted() != 1 {
		t.Errorf("nobody to be told: %q", got.body)
	}
	stop := errors.New("stop")
	req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error { return stop },
	}))
	if _, err := tr.RoundTrip(req); err != stop || tr.kept() != 0 {
		t.Errorf("%v", err)
	}
}

// TestUpgrade: a 101 that was asked for makes its connection a tunnel, with what
// came right behind it, and each direction ends by itself.
func TestUpgrade(t *testing.T) {
	for _, secure := range []bool{false, true} {
		s := newServer(t, secure, func(_ int, c net.Conn, br *bufio.Reader) {
			http.ReadRequest(br)
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade, X-A\r\nUpgrade: echo\r\nX-A: 1\r\nX-B: 2\r\n\r\nearly ")
			b, _ := io.ReadAll(br)
			c.Write(b)
		})
		tr := s.transport(t)
		tr.HeaderTimeout = 100 * time.Millisecond // must not bound the tunnel
		req := newRequest("GET", "/", nil)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if want := (http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}, "X-B": {"2"}}); res.StatusCode != 101 || !reflect.DeepEqual(res.Header, want) {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		tunnel := res.Body.(io.ReadWriteCloser)
		io.WriteString(tunnel, "echo")
		if err := tunnel.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if got := finish(res); got.body != "early echo" || got.err != nil {
			t.Errorf("by TLS %t: %q, %v", secure, got.body, got.err)
		}
		if tr.kept() != 0 {
			t.Error("a tunnel was kept")
		}
	}
	s := newServer(t, false, func(_ int, c net.Conn, br *bufio.Reader) {
		http.ReadRequest(br)
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(io.Discard, br)
	})
	body, w := io.Pipe()
	defer w.Close()
	req := newRequest("GET", "/", body)
	req.Header.Set("Upgrade", "echo")
	if _, err := s.transport(t).RoundTrip(req); !errors.Is(err, errUnasked) {
		t.Errorf("before the request's end: %v", err)
	}
}
