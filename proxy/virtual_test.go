package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A pipeNet is a listener whose connections are pipes in memory, so that
// everything behind it runs in the virtual time of a synctest bubble.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	dials atomic.Int64
}

func newPipeNet() *pipeNet { return &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	p.dials.Add(1)
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A world is client, proxy and upstream in one bubble.
type world struct {
	*front
	net   *pipeNet
	start time.Time

	mu       sync.Mutex
	arrivals []arrival
}

type arrival struct {
	path string
	at   time.Duration
}

// newWorld puts h behind a route that change may alter, on an upstream that
// server may.
func newWorld(t *testing.T, h http.HandlerFunc, scheme string, change func(*Route), server ...func(*http.Server)) *world {
	w := &world{net: newPipeNet(), start: time.Now()}
	up := newPipeNet()
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.arrivals = append(w.arrivals, arrival{r.URL.Path, time.Since(w.start)})
		w.mu.Unlock()
		if h != nil {
			h(rw, r)
		}
	})}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	for _, alter := range server {
		alter(s)
	}
	go s.Serve(up)
	t.Cleanup(func() { s.Close() })
	r := route("/", "192.0.2.1:80", func(o *UpstreamOptions) { o.Scheme = scheme })
	r.Upstream.dial = up.dial
	change(r)
	w.front = serveOn(t, w.net, &Site{Routes: []*Route{r}})
	return w
}

// client is net/http's, of HTTP/1.1 or of HTTP/2 on one connection.
func (w *world) client(t *testing.T, h2 bool) *http.Client {
	tr := &http.Transport{DialContext: w.net.dial, Protocols: new(http.Protocols), MaxIdleConnsPerHost: 1000}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (w *world) get(ctx context.Context, c *http.Client, path string) (int, error) {
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://front.test"+path, nil)
	res, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// queue is the queue form of a limit.
func queue(t *testing.T, rate string, places int, maxWait time.Duration) func(*Route) {
	r, err := limiter.ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	s, err := shaping.New(shaping.Policy{Name: "q", Rate: r, Burst: 1, Queue: places, MaxWait: maxWait})
	if err != nil {
		t.Fatal(err)
	}
	return func(r *Route) { limited(r, chain(limiter.NewMemory(), shaping.Link{Queue: s})) }
}

// chain is what a route's limits are in the program.
func chain(store *limiter.Memory, links ...shaping.Link) limiter.Limiter {
	return shaping.NewChain(store, links...)
}

// eachProtocol runs f in a bubble for both protocols of the client and of the
// upstream.
func eachProtocol(t *testing.T, f func(t *testing.T, clientH2 bool, scheme string)) {
	for _, clientH2 := range []bool{false, true} {
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(fmt.Sprintf("HTTP/2 client %v, %s upstream", clientH2, scheme), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { f(t, clientH2, scheme) })
			})
		}
	}
}

// TestDepartures: of requests that come at once, the upstream gets one each
// 100 ms, to the nanosecond.
func TestDepartures(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		w := newWorld(t, nil, scheme, queue(t, "10/s", 100, time.Minute))
		c := w.client(t, clientH2)
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if code, err := w.get(t.Context(), c, "/"); code != 200 || err != nil {
					t.Errorf("answered %d, %v", code, err)
				}
			})
		}
		all.Wait()
		for i, a := range w.arrivals {
			if want := time.Duration(i) * 100 * time.Millisecond; a.at != want {
				t.Errorf("request %d came at %v, want %v", i, a.at, want)
			}
		}
		for range 30 {
			if e := w.next(t); e.Departed.Sub(w.start) != e.Waited || e.Duration != e.Waited || e.UpstreamDuration != 0 {
				t.Errorf("told %+v", e)
			}
		}
		if len(w.arrivals) != 30 {
			t.Errorf("%d requests came", len(w.arrivals))
		}
	})
}

// TestCase26Order: the upstream gets requests in the order in which they came,
// from many connections and from streams of one.
func TestCase26Order(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		w := newWorld(t, nil, scheme, queue(t, "20/s", 300, time.Minute))
		c := w.client(t, clientH2)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() { w.get(t.Context(), c, fmt.Sprintf("/%03d", i)) })
			time.Sleep(10 * time.Millisecond)
		}
		all.Wait()
		if !slices.IsSortedFunc(w.arrivals, func(a, b arrival) int { return strings.Compare(a.path, b.path) }) || len(w.arrivals) != 200 {
			t.Errorf("%d requests came as %v", len(w.arrivals), w.arrivals)
		}
	})
}

// TestCase16LeaversGiveUpTheirPlaces: the last client moves up when those before
// it hang up, and nothing of theirs is sent.
func TestCase16LeaversGiveUpTheirPlaces(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		w := newWorld(t, nil, scheme, queue(t, "1/s", 20, time.Minute))
		c := w.client(t, clientH2)
		impatient, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leave()
		var all sync.WaitGroup
		for i := range 20 {
			ctx := t.Context()
			if i > 0 && i < 19 {
				ctx = impatient
			}
			all.Go(func() { w.get(ctx, c, fmt.Sprint("/", i)) })
			synctest.Wait()
		}
		all.Wait()
		if want := []arrival{{"/0", 0}, {"/19", time.Second}}; !slices.Equal(w.arrivals, want) {
			t.Errorf("the upstream got %v, want %v", w.arrivals, want)
		}
		gone := 0
		for range 20 {
			if e := w.next(t); e.Status == StatusClientGone && e.Reason == limiter.ReasonClientGone && e.Waited == 500*time.Millisecond {
				gone++
			}
		}
		if gone != 18 {
			t.Errorf("%d are told to have left", gone)
		}
	})
}

// TestTimeouts: a route's timeout runs from the release, and waiting is not in
// it; an upstream's runs to its head. What has begun is cut.
func TestTimeouts(t *testing.T) {
	slow := func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			rw.WriteHeader(200)
			rw.(http.Flusher).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	}
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		shaped := queue(t, "1/m", 10, time.Hour)
		w := newWorld(t, slow, scheme, func(r *Route) { shaped(r); r.Timeout = 3 * time.Second })
		c := w.client(t, clientH2)
		for i, path := range []string{"/silent", "/silent", "/begun"} {
			code, err := w.get(t.Context(), c, path)
			ended := time.Since(w.start)
			if want := time.Duration(i)*time.Minute + 3*time.Second; ended != want {
				t.Errorf("%s ended at %v, want %v", path, ended, want)
			}
			if path == "/begun" {
				if err == nil {
					t.Error("a cut answer looks whole")
				}
			} else if code != 504 || err != nil {
				t.Errorf("%s is answered %d, %v", path, code, err)
			}
			if e := w.next(t); e.Error != "http_response_timeout" || (path == "/begun") != (e.Status == 200) {
				t.Errorf("told %+v", e)
			}
		}
	})
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		w := newWorld(t, slow, scheme, func(r *Route) {
			o := r.Upstream.opts
			o.ResponseHeaderTimeout = 7 * time.Second
			dial := r.Upstream.dial
			r.Upstream = NewUpstream(o)
			r.Upstream.dial = dial
		})
		code, err := w.get(t.Context(), w.client(t, clientH2), "/silent")
		if ended := time.Since(w.start); code != 504 || err != nil || ended != 7*time.Second {
			t.Errorf("answered %d, %v at %v", code, err, ended)
		}
		if e := w.next(t); e.Error != "http_response_timeout" || e.UpstreamStatus != UpstreamError || e.UpstreamDuration != 7*time.Second {
			t.Errorf("told %+v", e)
		}
	})
}

// TestSlowBodyBehindARefusal: a client may go on for a while with the body of a
// request that was refused, and no longer.
func TestSlowBodyBehindARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "http", func(r *Route) { limited(r, refuses(limiterRefusal)) })
		c, err := w.net.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, post("Content-Length: 100"))
		got, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 429 ") {
			t.Errorf("answered %q, %v", got, err)
		}
		if ended := time.Since(w.start); ended != linger {
			t.Errorf("the connection ended at %v, want %v", ended, linger)
		}
	})
}

// TestN37Shutdown: a running request ends and its answer says that the
// connection does; what waits is told to come back, and what runs on is cut.
func TestN37Shutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shaped := queue(t, "1/h", 10, 24*time.Hour)
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/endless" {
				rw.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			time.Sleep(2 * time.Second)
			io.WriteString(rw, "done")
		}, "http", func(r *Route) {
			shaped(r)
			r.Identify = func(id Identity) ([]limiter.Key, error) {
				return []limiter.Key{{Skip: !strings.HasPrefix(id.Request.URL.Path, "/waits")}}, nil
			}
		})
		answers := map[string]string{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, path := range []string{"/running", "/endless", "/waits-not", "/waits", "/waits-too"} {
			all.Go(func() {
				c, err := w.net.dial(t.Context(), "", "")
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: front.test\r\n\r\n")
				got, err := io.ReadAll(c)
				mu.Lock()
				answers[path] = fmt.Sprintf("%s|%v", got, err)
				mu.Unlock()
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := w.server.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown: %v, though some cannot end", err)
		}
		w.cut(limiter.ErrShutdown)
		synctest.Wait()
		w.server.Close()
		all.Wait()
		w.proxy.Wait()
		if a := answers["/running"]; !strings.HasPrefix(a, "HTTP/1.1 200 OK\r\n") || !strings.Contains(a, "Connection: close\r\n") || !strings.HasSuffix(a, "done|<nil>") {
			t.Errorf("what ran is answered %q", a)
		}
		refused := 0
		for _, path := range []string{"/waits", "/waits-too"} {
			if a := answers[path]; strings.HasPrefix(a, "HTTP/1.1 503 ") && strings.Contains(a, `"reason":"shutdown"`) && strings.Contains(a, "Retry-After: 1\r\n") {
				refused++
			}
		}
		if refused != 2 {
			t.Errorf("what waited is answered %q", answers)
		}
		if a := answers["/endless"]; strings.HasSuffix(a, "0\r\n\r\n|<nil>") || !strings.HasPrefix(a, "HTTP/1.1 200 ") {
			t.Errorf("what ran on looks whole: %q", a)
		}
		var reasons []string
		for range 5 {
			e := w.next(t)
			reasons = append(reasons, fmt.Sprint(e.Path, e.Status, e.Reason))
		}
		slices.Sort(reasons)
		if want := []string{"/endless200shutdown", "/running200", "/waits-not200", "/waits-too503shutdown", "/waits503shutdown"}; !slices.Equal(reasons, want) {
			t.Errorf("told %q, want %q", reasons, want)
		}
	})
}
