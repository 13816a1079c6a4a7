package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// bounded has the site of w hold its clients to b.
func (w *world) bounded(t *testing.T, b Bounds) {
	s := *w.proxy.site.Load()
	s.Bounds = b
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	w.proxy.Serve(&s)
}

// slots lets n requests be at the upstream, and queue wait.
func slots(t *testing.T, n, queue int) func(*Route) {
	s, err := shaping.New(shaping.Policy{Name: "slots", MaxInFlight: n, Queue: queue, MaxWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return func(r *Route) { limited(r, chain(limiter.NewMemory(), shaping.Link{Queue: s})) }
}

func discards(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }

// TestS31SlowBody: a body that comes more slowly than min_body_rate ends when
// body_timeout is used up, to the nanosecond, and what comes faster gives time
// back. Its place is free then.
func TestS31SlowBody(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(w io.Writer) // behind the head, and the first byte
		at    time.Duration
		want  int
	}{
		{"nothing more", func(io.Writer) {}, 10 * time.Second, 408},
		// Each byte is a second at 1 B/s: so 2 s of patience are used up each 3 s.
		{"a byte each 3 s", func(w io.Writer) { trickle(w, 3*time.Second, 1, 100) }, 14 * time.Second, 408},
		{"a byte each second", func(w io.Writer) { trickle(w, time.Second, 1, 99) }, 99 * time.Second, 200},
		{"nine each 9 s", func(w io.Writer) { trickle(w, 9*time.Second, 9, 11) }, 99 * time.Second, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, discards, "http", slots(t, 1, 10))
				w.bounded(t, Bounds{BodyTimeout: 10 * time.Second, MinBodyRate: 1})
				conn, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				var client sync.WaitGroup
				client.Go(func() {
					io.WriteString(conn, post("Content-Length: 100")+"x")
					c.write(conn)
				})
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				if at := time.Since(w.start); res.StatusCode != c.want || at != c.at {
					t.Errorf("answered %d after %v", res.StatusCode, at)
				}
				if e := w.next(t); e.Status != c.want || e.UpstreamStatus == UpstreamError || res.Close != (c.want == 408) {
					t.Errorf("told %+v, closes %t", e, res.Close)
				}
				if code, err := w.get(t.Context(), w.client(t, false), "/"); code != 200 || err != nil {
					t.Errorf("the next is answered %d, %v", code, err)
				}
				conn.Close()
				client.Wait()
			})
		})
	}
}

func trickle(w io.Writer, each time.Duration, bytes, times int) {
	for range times {
		time.Sleep(each)
		if _, err := w.Write(make([]byte, bytes)); err != nil {
			return
		}
	}
}

// TestSlowBodyOverHTTP2: the same for a stream; other streams go on.
func TestSlowBodyOverHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, discards, "h2c", slots(t, 2, 10))
		w.bounded(t, Bounds{BodyTimeout: 10 * time.Second, MinBodyRate: 1})
		client := w.client(t, true)
		pr, pw := io.Pipe()
		defer pw.Close()
		go pw.Write([]byte("begins"))
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://front.test/slow", pr)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if at := time.Since(w.start); res.StatusCode != 408 || at != 10*time.Second {
			t.Errorf("answered %d after %v", res.StatusCode, at)
		}
		if code, err := w.get(t.Context(), client, "/"); code != 200 || err != nil {
			t.Errorf("another stream is answered %d, %v", code, err)
		}
	})
}

// TestQuietConversations: neither gRPC nor a body behind whose request the
// answer has begun is an upload: both may be silent.
func TestQuietConversations(t *testing.T) {
	for _, kind := range []string{"application/grpc", "text/plain"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
				if kind == "text/plain" {
					rw.WriteHeader(200)
					rw.(http.Flusher).Flush()
				}
				b, err := io.ReadAll(r.Body)
				fmt.Fprintf(rw, "%s %v", b, err)
			}, "h2c", slots(t, 1, 10))
			w.bounded(t, Bounds{BodyTimeout: time.Second, MinBodyRate: 1, SendTimeout: time.Second, MinSendRate: 1})
			pr, pw := io.Pipe()
			go func() {
				time.Sleep(500 * time.Millisecond)
				pw.Write([]byte("one "))
				time.Sleep(time.Hour)
				pw.Write([]byte("two"))
				pw.Close()
			}()
			req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://front.test/", pr)
			req.Header.Set("Content-Type", kind)
			res, err := w.client(t, true).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, res); got != "one two <nil>" {
				t.Errorf("%s: %q", kind, got)
			}
		})
	}
}

// TestBodyBeginsBeforeItsTurn: a request whose body does not begin holds no
// place that others wait for, nor a turn.
func TestBodyBeginsBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			rw.Write(b)
		}, "http", slots(t, 1, 10))
		w.bounded(t, Bounds{BodyTimeout: 10 * time.Second, MinBodyRate: 1})
		slow, err := w.net.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Close()
		io.WriteString(slow, post("Content-Length: 10"))
		never, err := w.net.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer never.Close()
		io.WriteString(never, post("Content-Length: 10"))
		synctest.Wait()
		if code, err := w.get(t.Context(), w.client(t, false), "/"); code != 200 || err != nil || time.Since(w.start) != 0 {
			t.Errorf("answered %d, %v after %v", code, err, time.Since(w.start))
		}
		time.Sleep(9 * time.Second)
		io.WriteString(slow, "0123456789")
		res, err := http.ReadResponse(bufio.NewReader(slow), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, res); got != "0123456789" || time.Since(w.start) != 9*time.Second {
			t.Errorf("%d %q after %v", res.StatusCode, got, time.Since(w.start))
		}
		res, err = http.ReadResponse(bufio.NewReader(never), nil)
		if err != nil || res.StatusCode != 408 || time.Since(w.start) != 10*time.Second {
			t.Errorf("%v, %v after %v", res, err, time.Since(w.start))
		}
		if n := len(w.decisions); n != 2 {
			t.Errorf("%d decisions, want those of the two that came whole", n)
		}
	})
}

// TestSmallBodyShowsThatItsClientLeaves: net/http notices that behind a body
// that was read, which of a small one is so while its request waits.
func TestSmallBodyShowsThatItsClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shaped := slots(t, 1, 10)
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { time.Sleep(time.Minute) }, "http", shaped)
		w.bounded(t, Bounds{BodyTimeout: 10 * time.Second})
		go w.get(t.Context(), w.client(t, false), "/holds-the-place")
		synctest.Wait()
		c, err := w.net.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, post("Content-Length: 5")+"hello")
		time.Sleep(time.Second)
		c.Close()
		synctest.Wait()
		e := w.next(t)
		if e.Status != StatusClientGone || e.Waited != time.Second || time.Since(w.start) != time.Second {
			t.Errorf("told %+v after %v", e, time.Since(w.start))
		}
		time.Sleep(time.Hour)
	})
}

// TestS31SlowReaderOverHTTP2: a client that opens no window for an answer is
// cut off it, also when the handler has returned by then; one that opens a
// little all the time is not.
func TestS31SlowReaderOverHTTP2(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer int // bytes
		open   int // bytes a second
		status int
		at     time.Duration
	}{
		{"large", 1 << 20, 0, StatusClientGone, 338 * time.Second}, // up to 32 KiB are written at a time,
		{"small", 1000, 0, 200, 0},                                 // the handler has returned: net/http waits
		{"a little", 10_000, 500, 200, 20 * time.Second},
		{"too little", 1 << 20, 50, StatusClientGone, 338 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) { rw.Write(make([]byte, c.answer)) }, "h2c", slots(t, 1, 10))
				w.bounded(t, Bounds{SendTimeout: 10 * time.Second, MinSendRate: 100})
				conn, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				h := newH2Conn(t, conn, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				frames := make(chan error, 1)
				go func() { // what is written must be read, in a pipe
					for {
						f, err := h.ReadFrame()
						if rst, ok := f.(*http2.RSTStreamFrame); ok {
							err = fmt.Errorf("reset: %v", rst.ErrCode)
						} else if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
							err = io.EOF
						}
						if err != nil {
							frames <- err
							io.Copy(io.Discard, conn)
							return
						}
					}
				}()
				h.headers(t, 1, true, ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "front.test")
				stop := make(chan struct{})
				go func() {
					for c.open > 0 {
						select {
						case <-time.After(time.Second):
							h.WriteWindowUpdate(1, uint32(c.open))
						case <-stop:
							return
						}
					}
				}()
				<-w.came
				e := w.events[0]
				if at := time.Since(w.start); e.Status != c.status || at > c.at || at < c.at/2 {
					t.Errorf("told %+v after %v", e, at)
				}
				if got := <-frames; (got == io.EOF) != (c.name == "a little") {
					t.Errorf("the stream ended by %v", got)
				}
				if n := w.proxy.site.Load().Routes[0].Upstream.Status().InFlight; n != 0 {
					t.Errorf("%d in flight", n)
				}
				close(stop)
				conn.Close()
			})
		})
	}
}

// TestMaxHeaders: lines are counted, not names.
func TestMaxHeaders(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}, Bounds: Bounds{Headers: 10}})
	for _, c := range []struct{ n, want int }{{10, 200}, {11, 431}} {
		for _, line := range []string{"X-A: 1\r\n", "X-%d: 1\r\n"} {
			var lines strings.Builder
			for i := range c.n - 1 {
				if strings.Contains(line, "%") {
					fmt.Fprintf(&lines, line, i)
				} else {
					lines.WriteString(line)
				}
			}
			got := statuses(t, f.wire(t, "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\n"+lines.String()+"\r\n"))
			if len(got) != 1 || got[0] != c.want {
				t.Errorf("%d lines like %q: answered %v", c.n, line, got)
			}
		}
		fields := []string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "front.test"}
		for range c.n {
			fields = append(fields, "x-a", "1")
		}
		if got := h2Status(t, f.addr, fields); got != c.want {
			t.Errorf("%d fields over HTTP/2: answered %d", c.n, got)
		}
	}
}

// TestMaxWaiting: one connection may fill only so much of a queue.
func TestMaxWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "http", queue(t, "1/s", 100, time.Hour))
		w.bounded(t, Bounds{Waiting: 3})
		client := w.client(t, true)
		codes := make(chan int, 10)
		for range 6 { // one goes at once, three wait
			go func() {
				code, _ := w.get(t.Context(), client, "/")
				codes <- code
			}()
			synctest.Wait()
		}
		if a, b := <-codes, <-codes; a != 200 && b != 200 {
			t.Error(a, b)
		}
		e := w.next(t)
		for range 5 {
			e = w.next(t)
			if e.Status == 429 && (e.Reason != limiter.ReasonQueueFull || e.Duration != 0) {
				t.Errorf("told %+v", e)
			}
		}
		if at := time.Since(w.start); at != 3*time.Second {
			t.Errorf("the last was answered after %v", at)
		}
	})
}

// TestS28ResetsAreBounded: a client that gives up stream after stream loses its
// connection, and its places with it; one that does so now and then, or for
// others, does not.
func TestS28ResetsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name   string
		each   time.Duration
		resets int
		cut    bool
	}{
		{"flood", 0, 21, true},
		{"at most so many", 0, 20, false},
		{"now and then", 3 * time.Second, 200, false},
		{"more than a minute's", 2 * time.Second, 200, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shaped := queue(t, "1/h", 1000, 10_000*time.Hour)
				w := newWorld(t, nil, "http", shaped)
				w.bounded(t, Bounds{Resets: 20})
				client := w.client(t, true)
				w.get(t.Context(), client, "/takes-the-turn")
				w.next(t)
				dials := w.net.dials.Load()
				for range c.resets {
					ctx, cancel := context.WithCancel(t.Context())
					go w.get(ctx, client, "/waits")
					synctest.Wait()
					cancel()
					synctest.Wait()
					if e := w.next(t); e.Status != StatusClientGone {
						t.Fatalf("told %+v", e)
					}
					time.Sleep(c.each)
				}
				w.bounded(t, Bounds{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				w.get(ctx, client, "/one-more")
				if (w.proxy.Floods() > 0) != c.cut || c.cut && w.net.dials.Load() == dials {
					t.Errorf("told of %d that were cut; dialled again %t", w.proxy.Floods(), w.net.dials.Load() > dials)
				}
			})
		})
	}
}

// TestPatienceIsSafe: it is used by who waits, by its timer and by who ends it.
func TestPatienceIsSafe(t *testing.T) {
	for range 200 {
		cut := make(chan struct{})
		p := newPatience(time.Microsecond, 0, func() { close(cut) })
		go p.wait(0)
		go p.end()
		p.got(1)
		p.gone()
	}
	var none *patience
	none.wait(0)
	none.got(1)
	none.end()
	if none.gone() {
		t.Error("no patience has an end")
	}
}
