package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
)

// TestS29Floods: who sends a head without end over HTTP/2 is cut off, and others
// are served.
func TestS29Floods(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	h := dialH2(t, f.addr)
	h.headers(t, 1, false, ":method", "GET")
	h.AllowIllegalWrites = true
	err := h.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}})
	for i := 0; err == nil && i < 1_000_000; i++ {
		err = h.WriteContinuation(3, false, make([]byte, 8<<10))
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("was not cut off, but %v", err)
	}
	if res := f.get(t, "GET", "/"); res.StatusCode != 200 {
		t.Errorf("another client gets %d", res.StatusCode)
	}
}

// TestS29ControlFrames: frames without end that make no request, each of which
// costs the proxy an answer or some work. Others are served meanwhile, and the
// memory does not grow, also if the client takes nothing of what it is answered:
// net/http keeps 10,000 frames for it, and then ends the connection.
func TestS29ControlFrames(t *testing.T) {
	const parts, inPart = 100, 1000
	ping := func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{}) }
	settings := func(fr *http2.Framer) error {
		return fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	}
	closed := func(fr *http2.Framer) error { return fr.WriteData(1, false, nil) }
	for _, c := range []struct {
		name  string
		frame func(*http2.Framer) error
		reads bool   // the client takes what it is answered
		cut   string // whether its connection is ended
	}{
		{"PING", ping, true, "perhaps"},
		{"PING, unread", ping, false, "yes"},
		{"SETTINGS", settings, true, "no"},
		{"SETTINGS, unread", settings, false, "no"},
		{"DATA of an ended stream", closed, true, "perhaps"},
		{"DATA of an ended stream, unread", closed, false, "yes"},
		{"empty DATA", func(fr *http2.Framer) error { return fr.WriteData(3, false, nil) }, true, "no"},
		{"PRIORITY", func(fr *http2.Framer) error { return fr.WritePriority(99, http2.PriorityParam{StreamDep: 1}) }, true, "no"},
		{"WINDOW_UPDATE", func(fr *http2.Framer) error { return fr.WriteWindowUpdate(0, 1) }, true, "no"},
		{"RST_STREAM", func(fr *http2.Framer) error { return fr.WriteRSTStream(1, http2.ErrCodeCancel) }, true, "no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Pipes keep nothing, where sockets would take in answers that nobody reads.
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, "http", func(*Route) {})
				honest := w.client(t, false)
				conn, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				h := newH2Conn(t, conn)
				fields := []string{":method", "POST", ":scheme", "http", ":path", "/", ":authority", "front.test"}
				got, begin := make(chan int), make(chan struct{})
				go func() {
					got <- h.status(t, 1)
					<-begin
					got <- h.status(t, 5)
				}()
				h.headers(t, 1, true, fields...)
				h.headers(t, 3, false, fields...)
				if status := <-got; status != 200 {
					t.Fatalf("before the flood: %d", status)
				}
				if c.reads {
					close(begin)
				}
				watch := newHeapWatch()
				var part bytes.Buffer
				fr := http2.NewFramer(&part, nil)
				for range inPart {
					if err := c.frame(fr); err != nil {
						t.Fatal(err)
					}
				}
				sent := 0
				for ; err == nil && sent < parts; sent++ {
					_, err = conn.Write(part.Bytes())
					if sent%20 == 0 {
						watch.look()
						if status, err := w.get(t.Context(), honest, "/"); status != 200 {
							t.Fatalf("another client gets %d, %v", status, err)
						}
					}
				}
				switch {
				case err != nil:
				case c.cut == "perhaps":
					conn.Close()
				default:
					h.headers(t, 5, true, fields...)
				}
				if !c.reads {
					close(begin)
				}
				status := <-got
				if c.cut == "yes" && (err == nil || status != 0) || c.cut == "no" && (err != nil || status != 200) {
					t.Errorf("%d frames are taken, %v, and a request behind them gets %d", sent*inPart, err, status)
				}
				if grown := watch.most - watch.first; grown > 16<<20 {
					t.Errorf("the heap grew by %d MiB", grown>>20)
				}
			})
		})
	}
}
