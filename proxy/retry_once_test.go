package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// counting counts the turns that a Limiter gives, further ones too.
type counting struct {
	limiter.Limiter
	turns *atomic.Int64
}

func (c counting) Acquire(ctx context.Context, req limiter.Request) (limiter.Permit, error) {
	p, err := c.Limiter.Acquire(ctx, req)
	return c.count(p), err
}

func (c counting) count(p limiter.Permit) limiter.Permit {
	if p.Allowed {
		c.turns.Add(1)
	}
	if again := p.Again; again != nil {
		p.Again = func(ctx context.Context, gone func() bool) (limiter.Permit, error) {
			p, err := again(ctx, gone)
			return c.count(p), err
		}
	}
	return p
}

func quick(t *testing.T) shaping.Link {
	return line(t, shaping.Policy{Name: "q", Rate: limiter.Rate{Count: 1000, Per: time.Second}, Burst: 1, Queue: 100, MaxWait: time.Minute, MaxInFlight: 8})
}

// TestCase59ClosedUnderARequest: an upstream that closes a kept connection as the
// next request comes gets that again on another, where its method allows, for
// another turn; a new connection that it closes is its own fault. What it has
// read is never sent again with retry = "never" (golang/go #22158, #19943,
// caddyserver/caddy #6452, sozu-proxy/sozu #1442).
func TestCase59ClosedUnderARequest(t *testing.T) {
	for _, c := range []struct {
		method string
		fields []string
		policy RetryPolicy
		hits   int
	}{
		{"GET", nil, RetryPolicy{Most: 2}, 11},
		{"HEAD", nil, RetryPolicy{Most: 2}, 11},
		{"DELETE", []string{"Content-Length: 0"}, RetryPolicy{Most: 1}, 11},
		{"PUT", []string{"Content-Length: 3", "", "abc"}, RetryPolicy{Most: 1, Body: 3}, 11},
		{"PUT", []string{"Content-Length: 3", "", "abc"}, RetryPolicy{Most: 1, Body: 2}, 6},
		{"POST", nil, RetryPolicy{Most: 2}, 6},
		{"POST", []string{"Content-Length: 3", "", "abc"}, RetryPolicy{Most: 1, Body: 3, Any: true}, 11},
		{"GET", nil, RetryPolicy{}, 6},
	} {
		up := newRawUpstream(t, func(n int, _ string) string {
			if n%2 == 0 {
				return "" // read, and closed
			}
			return "HTTP/1.1 200 OK\r\nX-N: 1\r\nContent-Length: 0\r\n\r\n"
		})
		var turns atomic.Int64
		r := route("/", up.addr)
		limited(r, counting{chain(limiter.NewMemory(), quick(t)), &turns})
		r.Retry = c.policy
		f := newFront(t, &Site{Routes: []*Route{r}})
		for i := range 6 {
			res := f.get(t, c.method, "/", c.fields...)
			want := 200
			if c.hits == 6 {
				want += i % 2 * 302
			}
			e := f.next(t)
			if res.StatusCode != want || len(e.Retries) != 0 && (e.Retries[0].Reason != RetryLost || e.Retries[0].Status != UpstreamError) {
				t.Errorf("%s %+v: request %d is answered %d, %+v", c.method, c.policy, i+1, res.StatusCode, e.Retries)
			}
		}
		if up.count() != c.hits || turns.Load() != int64(c.hits) || strings.Count(up.bytes(), "\r\n\r\nabc") != c.hits*strings.Count(strings.Join(c.fields, ""), "abc") {
			t.Errorf("%s %+v: six requests became %d, with %d turns", c.method, c.policy, up.count(), turns.Load())
		}
	}

	fresh := newRawUpstream(t, always(""))
	r := route("/", fresh.addr)
	obeying(r, quick(t))
	r.Retry = RetryPolicy{Most: 2}
	f := newFront(t, &Site{Routes: []*Route{r}})
	if res := f.get(t, "GET", "/"); res.StatusCode != 502 || fresh.count() != 1 {
		t.Errorf("a new connection that is closed: %d after %d requests", res.StatusCode, fresh.count())
	}
}

// A faulty upstream reads each request whole, and does as it is told.
type faulty struct {
	addr string
	mu   sync.Mutex
	hits map[string]int // by path
	all  int
}

// newFaulty answers the nth request with what may be no whole answer. It then
// closes the connection, or cuts it by a reset, or keeps it.
func newFaulty(t *testing.T, answer func(n int, req *http.Request) (text, then string)) *faulty {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &faulty{addr: l.Addr().String(), hits: map[string]int{}}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				stop := context.AfterFunc(t.Context(), func() { c.Close() })
				defer stop()
				defer c.Close()
				for br := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					if _, err := io.Copy(io.Discard, req.Body); err != nil {
						return
					}
					u.mu.Lock()
					u.all++
					u.hits[req.URL.Path]++
					text, then := answer(u.all, req)
					u.mu.Unlock()
					io.WriteString(c, text)
					switch then {
					case "reset":
						c.(*net.TCPConn).SetLinger(0)
						return
					case "close":
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return u
}

func (u *faulty) count(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if path == "" {
		return u.all
	}
	return u.hits[path]
}

// Nothing is sent again of which a byte was answered, be it of an interim answer.
func TestCase59NotOnceAnswered(t *testing.T) {
	tr := &http.Transport{DisableKeepAlives: true} // else it sends again by itself
	for _, begun := range []string{"H", "HTTP/1.1 200", "HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "nonsense"} {
		up := newFaulty(t, func(n int, _ *http.Request) (string, string) {
			if n == 1 {
				return ok200, ""
			}
			return begun, "close"
		})
		r := route("/", up.addr)
		obeying(r, quick(t))
		r.Retry = RetryPolicy{Most: 2}
		f := newFront(t, &Site{Routes: []*Route{r}})
		for range 2 {
			if res, err := tr.RoundTrip(f.request(t, "GET", "/")); err == nil {
				res.Body.Close()
			}
			if e := f.next(t); len(e.Retries) != 0 {
				t.Errorf("%q: %+v", begun, e)
			}
		}
		if n := up.count(""); n != 2 {
			t.Errorf("%q: %d requests", begun, n)
		}
	}
}

// TestCase59HTTP2: a connection with HTTP/2 that ends under a request, which is
// the second on it.
func TestCase59HTTP2(t *testing.T) {
	type key struct{}
	for method, want := range map[string]int{"GET": 200, "POST": 502} {
		var hits, turns atomic.Int64
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if hits.Add(1) == 2 {
				r.Context().Value(key{}).(net.Conn).Close()
				<-r.Context().Done()
			}
		}), ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) }}
		s.Protocols.SetUnencryptedHTTP2(true)
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		r := route("/", l.Addr().String(), func(o *UpstreamOptions) { o.Scheme = "h2c" })
		limited(r, counting{chain(limiter.NewMemory(), quick(t)), &turns})
		r.Retry = RetryPolicy{Most: 2}
		f := newFront(t, &Site{Routes: []*Route{r}})
		for i, status := range []int{200, want} {
			if res := f.get(t, method, "/"); res.StatusCode != status {
				t.Errorf("%s: request %d is answered %d", method, i+1, res.StatusCode)
			}
			f.next(t)
		}
		if sent := int64(3 - (want-200)/302); hits.Load() != sent || turns.Load() != sent {
			t.Errorf("%s: %d requests came with %d turns", method, hits.Load(), turns.Load())
		}
	}
}

// TestOneRequestEachTurn: whatever the upstream does to requests that it has read,
// it gets exactly one for each turn in the queue, and what must not be repeated
// once.
func TestOneRequestEachTurn(t *testing.T) {
	for _, policy := range []RetryPolicy{{Most: 3, Body: 1000}, {Most: 3, Body: 1000, Any: true}, {}} {
		rnd := rand.New(rand.NewPCG(59, 35))
		up := newFaulty(t, func(_ int, req *http.Request) (string, string) { // under its lock
			switch rnd.IntN(8) {
			case 0:
				return "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nslow", ""
			case 1:
				return "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\nslow", "close"
			case 2:
				return "", "close"
			case 3:
				return "", "reset"
			case 4:
				return "HTTP/1.1 200 OK\r\nContent-", "close"
			}
			return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""
		})
		var turns atomic.Int64
		r := route("/", up.addr)
		obeying(r, quick(t))
		r.Limiter = counting{r.Limiter, &turns}
		r.Retry = policy
		f := newFront(t, &Site{Routes: []*Route{r}})
		tr := &http.Transport{DisableKeepAlives: true} // else it sends again by itself
		const n = 400
		var clients sync.WaitGroup
		for c := range 8 {
			clients.Go(func() {
				for i := range n / 8 {
					method, body := []string{"GET", "POST", "PUT", "PUT"}[i%4], strings.Repeat("b", []int{0, 100, 1000, 5000}[i%4])
					req, _ := http.NewRequest(method, fmt.Sprintf("http://%s/%s/%d-%d", f.addr, method, c, i), strings.NewReader(body))
					if res, err := tr.RoundTrip(req); err == nil {
						io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				}
			})
		}
		clients.Wait()
		attempts, repeated := 0, 0
		for range n {
			e := f.next(t)
			hits := up.count(e.Path)
			if hits != e.Attempt() {
				t.Errorf("%+v: %s came %d times, in %d attempts", policy, e.Path, hits, e.Attempt())
			}
			if len(e.Retries) > policy.Most || len(e.Retries) > 0 && (policy.Most == 0 || e.Method == "POST" && !policy.Any || e.Received > policy.Body) {
				t.Errorf("%+v: %s was sent %d times", policy, e.Path, hits)
			}
			attempts += e.Attempt()
			repeated += len(e.Retries)
		}
		if up.count("") != attempts || int64(attempts) != turns.Load() {
			t.Errorf("%+v: %d attempts with %d turns, of which %d came", policy, attempts, turns.Load(), up.count(""))
		}
		if repeated > 100+n/10 || (repeated > 20) != (policy.Most > 0) {
			t.Errorf("%+v: %d retries", policy, repeated)
		}
		if kept := f.proxy.kept.Load(); kept != 0 {
			t.Errorf("%d bytes are kept", kept)
		}
	}
}
