package proxy

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/limiter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A recorder is an Observer that keeps what it was told.
type recorder struct {
	mu        sync.Mutex
	events    []Event
	decisions []limiter.Decision
	came      chan struct{}
}

func newRecorder() *recorder { return &recorder{came: make(chan struct{}, 10_000)} }

func (r *recorder) Decided(_ string, ds []limiter.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decisions = append(r.decisions, ds...)
}

func (r *recorder) Done(e *Event) {
	r.mu.Lock()
	r.events = append(r.events, *e)
	r.mu.Unlock()
	r.came <- struct{}{}
}

// next waits for the next request to end.
func (r *recorder) next(t *testing.T) Event {
	t.Helper()
	select {
	case <-r.came:
	case <-time.After(10 * time.Second):
		t.Fatal("no request ended")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.events[0]
	r.events = r.events[1:]
	return e
}

// A front is a Proxy on a loopback port, or wherever its listener is.
type front struct {
	*recorder
	proxy  *Proxy
	addr   string
	server *Server
	cut    context.CancelCauseFunc
}

// anyone is the Client of a Site that trusts the peers in trusted.
func anyone(trusted ...string) func(string, []string) (netip.Addr, bool) {
	return func(remote string, xff []string) (netip.Addr, bool) {
		ap, _ := netip.ParseAddrPort(remote)
		for _, p := range trusted {
			if netip.MustParsePrefix(p).Contains(ap.Addr()) {
				return ap.Addr(), true
			}
		}
		return ap.Addr(), false
	}
}

func newFront(t testing.TB, site *Site) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, site)
}

func serveOn(t testing.TB, l net.Listener, site *Site) *front {
	t.Helper()
	f := &front{recorder: newRecorder(), addr: l.Addr().String()}
	log := slog.New(slog.DiscardHandler)
	f.proxy = New(f.recorder, log)
	if site.Client == nil {
		site.Client = anyone()
	}
	if err := site.Check(); err != nil {
		t.Fatal(err)
	}
	f.proxy.Serve(site)
	ctx, cut := context.WithCancelCause(context.Background())
	f.cut = cut
	f.server = NewServer(ctx, f.proxy, ServerOptions{ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}, log)
	go f.server.Serve(l)
	t.Cleanup(func() {
		cut(context.Canceled)
		f.server.Close()
		f.proxy.Wait()
		for _, r := range site.Routes {
			r.Upstream.Close()
		}
	})
	return f
}

// route is a Route of pattern to the address of an upstream.
func route(pattern, address string, change ...func(*UpstreamOptions)) *Route {
	o := UpstreamOptions{
		Name: "up", Scheme: "http", Places: []Place{{Address: address, Host: address}}, SendHost: "upstream",
		DialTimeout: 2 * time.Second, TLSHandshakeTimeout: 2 * time.Second, ResponseHeaderTimeout: 10 * time.Second, MaxIdleConns: 16, IdleConnTimeout: time.Minute,
	}
	for _, c := range change {
		c(&o)
	}
	return &Route{Match: pattern, Pattern: pattern, Upstream: NewUpstream(o)}
}

// upstreamHTTP serves h until the test ends.
func upstreamHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// A rawUpstream speaks HTTP/1.1 by hand and keeps every byte that it gets.
type rawUpstream struct {
	addr string
	mu   sync.Mutex
	got  bytes.Buffer
	hits int
	reqs []string // request lines
	more chan struct{}
}

// newRawUpstream answers each request on a connection with answer, after its
// body by Content-Length or chunks. An answer of "" closes the connection.
func newRawUpstream(t *testing.T, answer func(n int, head string) string) *rawUpstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &rawUpstream{addr: l.Addr().String(), more: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	var conns sync.Map
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer c.Close()
				u.serve(c, answer)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return u
}

func (u *rawUpstream) serve(c net.Conn, answer func(int, string) string) {
	br := bufio.NewReader(io.TeeReader(c, locked{u}))
	for {
		var head strings.Builder
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			head.WriteString(line)
			if line == "\r\n" {
				break
			}
		}
		req, err := http.ReadRequest(bufio.NewReader(io.MultiReader(strings.NewReader(head.String()), br)))
		u.mu.Lock()
		u.hits++
		n := u.hits
		line, _, _ := strings.Cut(head.String(), "\r\n")
		u.reqs = append(u.reqs, line)
		u.mu.Unlock()
		if err == nil && req.ContentLength != 0 {
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
		}
		a := answer(n, head.String())
		if a == "" {
			return
		}
		if _, err := io.WriteString(c, a); err != nil {
			return
		}
	}
}

type locked struct{ u *rawUpstream }

func (l locked) Write(p []byte) (int, error) {
	l.u.mu.Lock()
	defer l.u.mu.Unlock()
	select {
	case l.u.more <- struct{}{}:
	default:
	}
	return l.u.got.Write(p)
}

// await waits until the bytes that came hold s.
func (u *rawUpstream) await(t *testing.T, s string) {
	t.Helper()
	for !strings.Contains(u.bytes(), s) {
		select {
		case <-u.more:
		case <-time.After(20 * time.Second):
			t.Fatalf("%q did not come, but %q", s, u.bytes())
		}
	}
}

func (u *rawUpstream) bytes() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.got.String()
}

func (u *rawUpstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hits
}

// lines are the request lines that came, in order.
func (u *rawUpstream) lines() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.reqs)
}

const ok200 = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func always(answer string) func(int, string) string {
	return func(int, string) string { return answer }
}

// A turnstile lets everything pass and counts.
type turnstile struct{ turns atomic.Int64 }

func (c *turnstile) Acquire(context.Context, limiter.Request) (limiter.Permit, error) {
	c.turns.Add(1)
	return passes("turnstile", 100, 99), nil
}

func passes(policy string, limit, remaining int64) limiter.Permit {
	d := limiter.Decision{
		Policy: policy, Allowed: true, Limit: limit, Remaining: remaining,
		Window: 10 * time.Second, ResetAfter: 1500 * time.Millisecond, At: time.Now(),
	}
	return limiter.Permit{Decision: d, All: []limiter.Decision{d}}
}

// A limiterFunc is a Limiter.
type limiterFunc func(context.Context, limiter.Request) (limiter.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, r limiter.Request) (limiter.Permit, error) {
	return f(ctx, r)
}

// limited puts l on r, with one key.
func limited(r *Route, l limiter.Limiter) *Route {
	r.Limiter = l
	r.Identify = func(Identity) ([]limiter.Key, error) { return []limiter.Key{{Value: "k"}}, nil }
	return r
}
