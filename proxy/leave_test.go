package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestN35N36PlacesOfStreams: a stream whose client opens no window for its answer
// keeps its place of the upstream, and gives it back when the answer has been
// taken or the stream is reset.
func TestN35N36PlacesOfStreams(t *testing.T) {
	for name, end := range map[string]func(*h2Conn) bool{
		"N35 the window opens": func(h *h2Conn) bool {
			h.WriteWindowUpdate(0, 1<<20)
			h.WriteWindowUpdate(1, 1<<20)
			for {
				f, err := h.ReadFrame()
				if err != nil {
					return false
				}
				if data, ok := f.(*http2.DataFrame); ok && data.StreamID == 1 && data.StreamEnded() {
					return true
				}
			}
		},
		"N36 the stream is reset": func(h *h2Conn) bool { return h.WriteRSTStream(1, http2.ErrCodeCancel) == nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := shaping.New(shaping.Policy{Name: "places", MaxInFlight: 1})
				if err != nil {
					t.Fatal(err)
				}
				w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) {
					io.WriteString(rw, strings.Repeat("x", 100_000))
				}, "http", func(r *Route) { limited(r, chain(limiter.NewMemory(), shaping.Link{Queue: s})) })
				conn, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				h := newH2Conn(t, conn, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
				ask := func(stream uint32) int {
					h.headers(t, stream, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "front.test")
					return h.status(t, stream)
				}
				if status := ask(1); status != 200 {
					t.Fatalf("the first is answered %d", status)
				}
				if status := ask(3); status != 429 {
					t.Errorf("the second is answered %d, beside the first", status)
				}
				if !end(h) {
					t.Fatal("the first does not end")
				}
				synctest.Wait()
				if n := s.Snapshot().InFlight; n != 0 {
					t.Errorf("%d places are held", n)
				}
				if status := ask(5); status != 200 {
					t.Errorf("after the first, one is answered %d", status)
				}
			})
		})
	}
}

// TestH3LeavesOnTheWay: a client may leave while the proxy connects for it, and
// while the upstream works on its answer. It is no fault of the upstream, and
// nothing is left of it. That it may leave in the queue is TestGoneWhileWaiting.
func TestH3LeavesOnTheWay(t *testing.T) {
	for _, c := range []struct {
		name     string
		connects bool // before the client leaves
	}{{"while connecting", false}, {"before the answer", true}} {
		for _, h2 := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				reached, ended := make(chan struct{}), make(chan struct{})
				wait := func(ctx context.Context) {
					close(reached)
					<-ctx.Done()
					close(ended)
				}
				var r *Route
				w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { wait(r.Context()) }, "http", func(the *Route) {
					r = the
					if !c.connects {
						r.Upstream.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
							wait(ctx)
							return nil, ctx.Err()
						}
					}
				})
				ctx, leave := context.WithCancel(t.Context())
				go func() {
					<-reached
					time.Sleep(time.Second)
					leave()
				}()
				if status, err := w.get(ctx, w.client(t, h2), "/"); err == nil {
					t.Errorf("%s: answered %d", c.name, status)
				}
				<-ended
				e := w.next(t)
				if e.Status != StatusClientGone || e.Error != "" || e.UpstreamStatus != 0 || e.Duration != time.Second || len(w.arrivals) > 0 != c.connects {
					t.Errorf("%s, HTTP/2 %t: told %+v", c.name, h2, e)
				}
				if n := r.Upstream.Status().InFlight; n != 0 {
					t.Errorf("%s: %d in flight", c.name, n)
				}
			})
		}
	}
}
