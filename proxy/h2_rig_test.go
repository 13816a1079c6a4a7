package proxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An h2Conn speaks HTTP/2 frame by frame.
type h2Conn struct {
	*http2.Framer
	conn net.Conn
	enc  *hpack.Encoder
	buf  bytes.Buffer
}

func dialH2(t *testing.T, addr string, settings ...http2.Setting) *h2Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return newH2Conn(t, c, settings...)
}

func newH2Conn(t *testing.T, c net.Conn, settings ...http2.Setting) *h2Conn {
	t.Helper()
	h := &h2Conn{Framer: http2.NewFramer(c, c), conn: c}
	h.enc = hpack.NewEncoder(&h.buf)
	h.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return h
}

// headers opens a stream with fields in pairs.
func (h *h2Conn) headers(t *testing.T, stream uint32, end bool, fields ...string) {
	t.Helper()
	h.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: h.buf.Bytes(), EndHeaders: true, EndStream: end})
	if err != nil {
		t.Fatal(err)
	}
}

// status reads until stream's answer has its head: its status, or 0 if the
// stream or the connection was ended instead.
func (h *h2Conn) status(t *testing.T, stream uint32) int {
	t.Helper()
	for {
		f, err := h.ReadFrame()
		if err != nil {
			return 0
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if code, _ := strconv.Atoi(f.PseudoValue("status")); f.StreamID == stream && code >= 200 {
				return code
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return 0
			}
		case *http2.GoAwayFrame:
			if f.LastStreamID < stream {
				return 0
			}
		}
	}
}

func h2Status(t *testing.T, addr string, fields []string) int {
	t.Helper()
	h := dialH2(t, addr)
	h.headers(t, 1, true, fields...)
	return h.status(t, 1)
}

// h2cClient is net/http's client speaking HTTP/2 without TLS.
func h2cClient(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// h1Client is net/http's client without a pool shared among tests.
func h1Client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// request is a Request to a front, with fields in the form "Name: value".
func (f *front) request(t *testing.T, method, target string, fields ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+f.addr+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := bytes.Cut([]byte(field), []byte(": "))
		r.Header.Add(string(name), string(value))
	}
	return r
}
