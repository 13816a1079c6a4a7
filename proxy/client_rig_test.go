package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// wire sends bytes on a new connection and returns all that comes back until
// the other side ends it, which send must bring about. Told that the connection
// ends, it sends no more, as a client would.
func (f *front) wire(t *testing.T, send string) string {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	// A server that closes early resets what is still on its way.
	_, _ = io.WriteString(c, send)
	var got []byte
	buf := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = c.Read(buf)
		got = append(got, buf[:n]...)
		if n > 0 && bytes.Contains(got, []byte("\r\nConnection: close\r\n")) {
			c.(*net.TCPConn).CloseWrite()
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection was not ended after %.200q, which was answered %.500q", send, got)
	}
	return string(got)
}

// statuses are those of the answers in what a client read.
func statuses(t *testing.T, wire string, method ...string) (codes []int) {
	t.Helper()
	br := bufio.NewReader(strings.NewReader(wire))
	for {
		if _, err := br.Peek(1); err == io.EOF {
			return codes
		}
		var req *http.Request
		if len(codes) < len(method) {
			req = &http.Request{Method: method[len(codes)]}
		}
		res, err := http.ReadResponse(br, req)
		if err != nil {
			t.Errorf("no answer in %q: %v", wire, err)
			return codes
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Errorf("a body is cut in %q: %v", wire, err)
		}
		codes = append(codes, res.StatusCode)
	}
}

// get sends one request by hand and reads one answer, past interim ones. What stands behind an
// empty field is the body.
func (f *front) get(t *testing.T, method, target string, fields ...string) *http.Response {
	t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	host := "Host: front.test\r\n"
	for _, field := range fields {
		if strings.HasPrefix(field, "Host:") {
			host = ""
		}
	}
	var content string
	if i := slices.Index(fields, ""); i >= 0 {
		fields, content = fields[:i], strings.Join(fields[i+1:], "")
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\n%s%s\r\n%s", method, target, host, lines(fields), content)
	br := bufio.NewReader(c)
	for {
		res, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res
		}
	}
}

func lines(fields []string) string {
	var b strings.Builder
	for _, f := range fields {
		b.WriteString(f + "\r\n")
	}
	return b.String()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// originForm is a request as net/http hands it over, or nil for a target that
// it refuses.
func originForm(host, target string) *http.Request {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")))
	if err != nil {
		return nil
	}
	return r
}
