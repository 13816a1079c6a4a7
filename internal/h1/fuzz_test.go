package h1

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A script is a connection whose other side says what it says.
type script struct {
	says   *bytes.Reader
	closed bool
}

func (s *script) Read(p []byte) (int, error)         { return s.says.Read(p) }
func (s *script) Write(p []byte) (int, error)        { return len(p), nil }
func (s *script) Close() error                       { s.closed = true; return nil }
func (s *script) LocalAddr() net.Addr                { return nil }
func (s *script) RemoteAddr() net.Addr               { return nil }
func (s *script) SetDeadline(time.Time) error        { return nil }
func (s *script) SetReadDeadline(time.Time) error    { return nil }
func (s *script) SetWriteDeadline(t time.Time) error { return nil }

// FuzzAnswer reads what a server says, and compares with net/http's reader what
// both take: the status, the fields, the body, the trailers. Whatever it says,
// a connection that is kept was read to its end.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		ok200, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok200,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2;a\r\nok\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "HTTP/1.0 200 OK\r\nConnection: keep-alive, X\r\nX: y\r\n\r\nok",
		"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200\r\n\r\n", "HTTP/1.1 099 X\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n",
		ok200 + ok200, "HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nearly", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5000) + "\r\n\r\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, says []byte, head bool) {
		req := newRequest("GET", "/", nil)
		if head {
			req.Method = "HEAD"
		}
		c := &script{says: bytes.NewReader(says)}
		tr := &Transport{MaxIdle: 1, MaxHeaderBytes: 1 << 20, Dial: func(context.Context) (net.Conn, error) { return c, nil }}
		res, err := tr.RoundTrip(req)
		if err != nil {
			if !c.closed || tr.kept() != 0 {
				t.Fatalf("%v, and the connection stays", err)
			}
			return
		}
		got := finish(res)
		switch {
		case c.closed == (tr.kept() == 1):
			t.Fatalf("closed %t, kept %d", c.closed, tr.kept())
		case tr.kept() == 1 && (c.says.Len() > 0 || got.err != nil || got.Close):
			t.Fatalf("kept with %d bytes left, after %v, close %t", c.says.Len(), got.err, got.Close)
		}

		br := bufio.NewReader(bytes.NewReader(says))
		theirs, err := http.ReadResponse(br, req)
		for err == nil && theirs.StatusCode < 200 {
			theirs, err = http.ReadResponse(br, req)
		}
		if err != nil {
			t.Fatalf("net/http says %v", err)
		}
		body, err := io.ReadAll(theirs.Body)
		if err != nil && strings.Contains(err.Error(), "suspiciously long trailer") {
			return // which theirs says of one that ends in bare line feeds, as ours may, and of any beyond 4 KiB
		}
		if got.err == nil && (err != nil || string(body) != got.body) || !strings.HasPrefix(string(body), got.body) && !strings.HasPrefix(got.body, string(body)) {
			t.Fatalf("body %q, %v, theirs %q, %v", got.body, got.err, body, err)
		}
		gone := slices.Clone(hopByHop)
		for _, line := range theirs.Header["Connection"] {
			for name := range strings.SplitSeq(line, ",") {
				gone = append(gone, http.CanonicalHeaderKey(strings.Trim(name, " \t")))
			}
		}
		for _, h := range []http.Header{got.Header, theirs.Header} {
			delete(h, "Content-Length") // ours is in one form
			for _, name := range gone {
				delete(h, name)
			}
		}
		if got.StatusCode != theirs.StatusCode || !reflect.DeepEqual(got.Header, theirs.Header) {
			// Theirs has lost the Connection line that says close.
			for name := range got.Header {
				if !reflect.DeepEqual(got.Header[name], theirs.Header[name]) {
					t.Fatalf("%d %v, theirs %d %v", got.StatusCode, got.Header, theirs.StatusCode, theirs.Header)
				}
			}
		}
		for name, values := range got.Trailer {
			if got.err == nil && !slices.Equal(values, theirs.Trailer[name]) {
				t.Fatalf("trailer %v, theirs %v", got.Trailer, theirs.Trailer)
			}
		}
	})
}
