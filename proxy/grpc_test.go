package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// trailersOnly answers every HTTP/2 stream with a head and nothing else, as a
// gRPC server does that knows no such method (gRPC over HTTP2, "Trailers-Only").
func trailersOnly(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		go func() {
			<-over
			c.Close()
		}()
		if _, err := c.Read(make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		h := &h2Conn{Framer: http2.NewFramer(c, c), conn: c}
		h.enc = hpack.NewEncoder(&h.buf)
		h.WriteSettings()
		for {
			f, err := h.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				h.headers(t, f.StreamID, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "12")
				h.WriteRSTStream(f.StreamID, http2.ErrCodeNo)
			case *http2.PingFrame:
				h.WritePing(true, f.Data)
			}
		}
	}()
	t.Cleanup(func() { l.Close(); close(over); <-served })
	return l.Addr().String()
}

// TestTrailersOnlyIsOneFrame: were the head flushed before the end of the
// answer is known, a gRPC client would take the status in it for metadata and
// report that there are no trailers.
func TestTrailersOnlyIsOneFrame(t *testing.T) {
	f := newFront(t, &Site{Routes: []*Route{route("/", trailersOnly(t), func(o *UpstreamOptions) { o.Scheme = "h2c" })}})
	h := dialH2(t, f.addr)
	for n := range uint32(500) {
		id := 2*n + 1
		h.headers(t, id, false, ":method", "POST", ":scheme", "http", ":path", "/S/Unknown", ":authority", "front.test",
			"content-type", "application/grpc", "te", "trailers")
		h.WriteData(id, true, []byte{0, 0, 0, 0, 0})
		for head := (*http2.MetaHeadersFrame)(nil); head == nil; {
			frame, err := h.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			head, _ = frame.(*http2.MetaHeadersFrame)
			if head != nil && (head.StreamID != id || !head.StreamEnded()) {
				t.Fatalf("stream %d: %v, ends: %v", id, head, head.StreamEnded())
			}
		}
	}
}

// TestAnswerEndsBeforeBody: an answer that is complete is passed on as such,
// though the client may still send and the upstream has stopped to listen.
func TestAnswerEndsBeforeBody(t *testing.T) {
	early := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body.Read(make([]byte, 1))
		w.Header().Set("Trailer", "Grpc-Status")
		io.WriteString(w, "so far")
		w.Header().Set("Grpc-Status", "9")
	}))
	f := newFront(t, &Site{Routes: []*Route{route("/", early, func(o *UpstreamOptions) { o.Scheme = "h2c" })}})
	t.Run("HTTP/2", func(t *testing.T) {
		h := dialH2(t, f.addr)
		h.headers(t, 1, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "front.test", "te", "trailers")
		h.WriteData(1, false, []byte("more may follow"))
		for {
			frame, err := h.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if m, ok := frame.(*http2.MetaHeadersFrame); ok && m.StreamEnded() {
				if len(m.Fields) != 1 || m.Fields[0].Name != "grpc-status" || m.Fields[0].Value != "9" {
					t.Errorf("trailers %v", m.Fields)
				}
				return
			}
		}
	})
	t.Run("HTTP/1", func(t *testing.T) {
		c := f.dial(t, post("Transfer-Encoding: chunked", "Te: trailers")+"f\r\nmore may follow\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || string(body) != "so far" || res.Trailer.Get("Grpc-Status") != "9" {
			t.Errorf("%q, %v, trailers %v", body, err, res.Trailer)
		}
	})
}
