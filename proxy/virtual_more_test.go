package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// TestCase59IdleConnections: a POST at the very instant at which the upstream
// gives an idle connection up is not answered 502, and none arrives twice
// (caddyserver/caddy #6452).
func TestCase59IdleConnections(t *testing.T) {
	for _, idle := range []time.Duration{999 * time.Millisecond, time.Second, 1001 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil, "http", func(*Route) {}, func(s *http.Server) { s.IdleTimeout = idle })
			c := w.client(t, false)
			for i := range 300 {
				res, err := c.Post("http://front.test/", "text/plain", strings.NewReader("a small body"))
				if err != nil {
					t.Fatal(err)
				}
				if body(t, res); res.StatusCode != 200 {
					t.Fatalf("idle %v: POST %d is answered %d", idle, i, res.StatusCode)
				}
				time.Sleep(time.Second)
			}
			if len(w.arrivals) != 300 {
				t.Errorf("idle %v: 300 requests became %d", idle, len(w.arrivals))
			}
		})
	}
}

// TestN05WaitsThenReadsLate: a request waits half a second while its client
// sleeps longer before it reads; both clients get as many bytes.
func TestN05WaitsThenReadsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 720 << 10
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			// Of an answer without a length, ReverseProxy flushes each part under
			// a mutex, and a bubble's clock stands still while one is waited for.
			rw.Header().Set("Content-Length", strconv.Itoa(size))
			io.WriteString(rw, strings.Repeat("x", size))
		}, "http", queue(t, "2/s", 5, time.Minute))
		var all sync.WaitGroup
		for _, sleep := range []time.Duration{0, 600 * time.Millisecond} {
			all.Go(func() {
				c, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				io.WriteString(c, "GET / HTTP/1.1\r\nHost: front.test\r\n\r\n")
				time.Sleep(sleep)
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if n := len(body(t, res)); n != size {
					t.Errorf("after %v: %d bytes, want %d", sleep, n, size)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if len(w.arrivals) != 2 || w.arrivals[1].at != 500*time.Millisecond {
			t.Errorf("arrivals %v", w.arrivals)
		}
	})
}

// TestS28RapidReset: streams that are opened and reset at once free their places
// in the queue, and no more of them are sent than the rate allows.
func TestS28RapidReset(t *testing.T) {
	rate, err := limiter.ParseRate("1/h")
	if err != nil {
		t.Fatal(err)
	}
	s, err := shaping.New(shaping.Policy{Name: "q", Rate: rate, Burst: 1, Queue: 1000, MaxWait: 10_000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), chain(limiter.NewMemory(), shaping.Link{Queue: s}))}})
	h := dialH2(t, f.addr)
	const streams = 500
	for i := range streams {
		id := uint32(2*i + 1)
		h.headers(t, id, true, ":method", "GET", ":scheme", "http", ":path", "/smuggled", ":authority", "front.test")
		if err := h.WriteRSTStream(id, 8); err != nil {
			break // the server has had enough
		}
	}
	// What is opened next is answered behind them all, or the connection is gone.
	h.headers(t, 2*streams+1, true, ":method", "GET", ":scheme", "http", ":path", "*", ":authority", "front.test")
	if status := h.status(t, 2*streams+1); status != 400 && status != 0 {
		t.Errorf("answered %d", status)
	}
	h.conn.Close()
	f.server.Shutdown(t.Context())
	f.proxy.Wait()
	if n := up.count(); n > 1 {
		t.Errorf("%d requests reached the upstream", n)
	}
	if depth := s.Snapshot().Depth; depth != 0 {
		t.Errorf("%d places are held", depth)
	}
}

// TestSlowBodyStreams: a client's body comes slowly, and for longer than a head
// may take; the upstream gets it as it comes, and the turn was taken once.
func TestSlowBodyStreams(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		start := time.Now()
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			br := bufio.NewReader(r.Body)
			for {
				line, err := br.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprintf(rw, "%s at %v\n", strings.TrimSpace(line), time.Since(start))
			}
		}, scheme, queue(t, "10/s", 5, time.Minute))
		slow, write := io.Pipe()
		go func() {
			defer write.Close()
			for i := range 3 {
				time.Sleep(10 * time.Second)
				fmt.Fprintf(write, "ln%d\n", i)
			}
		}()
		req, _ := http.NewRequest("POST", "http://front.test/", slow)
		req.ContentLength = 12
		res, err := w.client(t, clientH2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, res); got != "ln0 at 10s\nln1 at 20s\nln2 at 30s\n" {
			t.Errorf("the upstream saw %q", got)
		}
	})
}
