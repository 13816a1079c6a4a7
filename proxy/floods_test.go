package proxy

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/net/http2"
)

// TestS29Floods: who sends a head without end over HTTP/2 is cut off, and others
// are served.
func TestS29Floods(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	for name, frame := range map[string]func(*h2Conn, uint32) error{
		"CONTINUATION": func(h *h2Conn, i uint32) error {
			if i == 0 {
				h.headers(t, 1, false, ":method", "GET")
				h.AllowIllegalWrites = true
				return h.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}})
			}
			return h.WriteContinuation(3, false, make([]byte, 8<<10))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := dialH2(t, f.addr)
			var err error
			for i := uint32(0); err == nil && i < 1_000_000; i++ {
				err = frame(h, i)
			}
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("was not cut off, but %v", err)
			}
			if res := f.get(t, "GET", "/"); res.StatusCode != 200 {
				t.Errorf("another client gets %d", res.StatusCode)
			}
		})
	}
}
