package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
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

// A told upstream does to the nth try what the nth word says, and to any other
// what the last one does.
func told(words string) http.HandlerFunc {
	var n atomic.Int64
	all := strings.Fields(words)
	return func(w http.ResponseWriter, r *http.Request) {
		switch word := all[min(int(n.Add(1)), len(all))-1]; word {
		case "429":
			w.WriteHeader(429)
			io.WriteString(w, "slow down")
		case "503":
			w.WriteHeader(503)
		case "503+":
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(503)
		case "long": // more than is kept
			w.WriteHeader(429)
			io.WriteString(w, strings.Repeat("x", keptAnswer+1))
		case "cut": // within the body of a 429
			w.Header().Set("Content-Length", "9")
			w.WriteHeader(429)
			io.WriteString(w, "slow")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "close":
			panic(http.ErrAbortHandler)
		case "silent":
			<-r.Context().Done()
		case "ok":
			io.WriteString(w, "ok")
		default:
			panic(word)
		}
	}
}

// TestOneRequestEachTurnInEveryFault: whatever goes wrong in a try, while the
// request waits for the next and in that, the upstream gets one request for each
// turn; or none, if by then it cannot be asked, and then it is as if there had been
// no further turn.
func TestOneRequestEachTurnInEveryFault(t *testing.T) {
	breaks := func(f *mishap) { // by other requests, which fail
		a := f.up.known()[0]
		a.mu.Lock()
		a.breaker.open(time.Now())
		a.mu.Unlock()
	}
	for _, tt := range []struct {
		name, says string
		at         time.Duration // when that happens: turns are at 0, 1 and 2 s, and answers are at once
		happens    func(*mishap)
		status     int // 0: the client gets no answer
		turns      int
		hits       int
	}{
		{"answered", "ok", 0, nil, 200, 1, 1},
		{"throttled once", "429 ok", 0, nil, 200, 2, 2},
		{"throttled always", "429", 0, nil, 429, 3, 3},
		{"throttled by 503", "503+ ok", 0, nil, 200, 2, 2},
		{"overloaded", "503 ok", 0, nil, 503, 1, 1},
		{"a long 429", "long ok", 0, nil, 429, 1, 1},
		{"a 429 that is cut", "cut ok", 0, nil, 0, 1, 1},
		{"then a long one", "429 long ok", 0, nil, 429, 2, 2},
		{"then one that is cut", "429 cut ok", 0, nil, 0, 2, 2},
		{"closed on a new connection", "close ok", 0, nil, 502, 1, 1},
		{"then closed on the kept one, and on a new one", "429 close close", 0, nil, 502, 3, 3},
		{"silent, until its head is late", "silent ok", 0, nil, 504, 1, 1},
		{"then silent", "429 silent ok", 0, nil, 504, 2, 2},
		{"the client leaves in the first try", "silent ok", time.Second / 2, (*mishap).leave, 0, 1, 1},
		{"the client leaves while it waits", "429 ok", time.Second / 2, (*mishap).leave, 0, 1, 1},
		{"the client leaves in the second try", "429 silent ok", 3 * time.Second / 2, (*mishap).leave, 0, 2, 2},
		{"stopped while it waits", "429 ok", time.Second / 2, func(f *mishap) { f.cut(limiter.ErrShutdown) }, 429, 1, 1},
		{"stopped in the second try", "429 silent", 3 * time.Second / 2, func(f *mishap) { f.cut(limiter.ErrShutdown) }, 503, 2, 2},
		{"its breaker opens while it waits", "429 ok", time.Second / 2, breaks, 429, 2, 1},
		{"its breaker opens in the second try", "429 429 ok", 3 * time.Second / 2, breaks, 429, 3, 2},
		{"it cannot be reached any more", "429 ok", time.Second / 2, (*mishap).unreachable, 429, 2, 1},
		{"another site is served", "429 ok", time.Second / 2, func(f *mishap) {
			f.proxy.Serve(f.other)
			f.up.Close() // as a reload does
		}, 200, 2, 2},
		{"a pause that it has not the patience for", "429 ok", time.Second / 2, func(f *mishap) {
			f.gates.Of("").Close("throttled", time.Now().Add(time.Hour))
		}, 429, 1, 1},
	} {
		for _, scheme := range []string{"http", "h2c"} {
			if scheme == "h2c" && strings.Contains(tt.says, "close") {
				continue // there it is a stream that ends, and its connection does not; see TestCase59HTTP2
			}
			t.Run(tt.name+" "+scheme, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newMishap(t, tt.says, scheme)
					c := f.client(t, false)
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					f.leaves = leave
					if tt.happens != nil {
						time.AfterFunc(tt.at, func() { tt.happens(f) })
					}
					status, err := f.get(ctx, c, "/")
					if err != nil {
						status = 0
					}
					e := f.next(t)
					time.Sleep(time.Minute) // nothing more is sent
					synctest.Wait()
					if len(f.arrivals) != tt.hits || f.turns.Load() != int64(tt.turns) || e.Attempt() != tt.hits {
						t.Errorf("it came %d times in %d turns, and %d attempts are told; want %d times in %d turns", len(f.arrivals), f.turns.Load(), e.Attempt(), tt.hits, tt.turns)
					}
					if status != tt.status {
						t.Errorf("answered %d, want %d: %+v", status, tt.status, e)
					}
					if status == 429 && (e.UpstreamStatus != 429 || e.Reason != "" || e.Error != "") {
						t.Errorf("the upstream's answer is told as %+v", e)
					}
					retries := int64(tt.hits-1) * retryCost
					if got := f.up.retries.spent.Load(); got != retries {
						t.Errorf("of the budget %d is spent, want %d", got, retries)
					}
					if kept, in := f.proxy.kept.Load(), f.up.inFlight.Load(); kept != 0 || in != 0 {
						t.Errorf("%d bytes are kept, %d in flight", kept, in)
					}
				})
			})
		}
	}
}

// A mishap is a world with a route of one request a second.
type mishap struct {
	*world
	up     *Upstream
	gates  *shaping.Gates
	turns  atomic.Int64
	leaves context.CancelFunc
	other  *Site
	dead   atomic.Bool
}

func newMishap(t *testing.T, says, scheme string) *mishap {
	f := &mishap{gates: shaping.NewGates()}
	f.world = newWorld(t, told(says), scheme, func(r *Route) {
		f.up = NewUpstream(func() UpstreamOptions {
			o := r.Upstream.Options()
			o.Breaker = policyOf(100, 1)
			return o
		}())
		dial := r.Upstream.dial
		f.up.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if f.dead.Load() {
				return nil, errors.New("no route to host")
			}
			return dial(ctx, network, address)
		}
		r.Upstream = f.up
		limited(r, counting{shaping.NewChain(limiter.NewMemory(), oneASecond(t, time.Minute)).To(f.gates), &f.turns})
		r.Ask = func([]limiter.Key) func(int, http.Header) bool {
			return func(status int, h http.Header) bool {
				return status == 429 || status == 503 && h["Retry-After"] != nil
			}
		}
		r.Retry = RetryPolicy{Most: 2}
	})
	f.other = &Site{}
	if err := f.other.Check(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *mishap) leave() { f.leaves() }

// unreachable ends the connections to the upstream, and has none be made.
func (f *mishap) unreachable() {
	f.dead.Store(true)
	f.up.known()[0].transport.CloseIdleConnections()
}

// What the client gets when a further try comes to nothing is what the upstream
// said: its status, fields and body.
func TestRetryThatIsNotSent(t *testing.T) {
	for _, happens := range []func(*mishap){(*mishap).unreachable, func(f *mishap) {
		a := f.up.known()[0]
		a.mu.Lock()
		defer a.mu.Unlock()
		a.breaker.open(time.Now())
	}} {
		synctest.Test(t, func(t *testing.T) {
			f := newMishap(t, "503+ ok", "http")
			time.AfterFunc(time.Second/2, func() { happens(f) })
			res, err := f.client(t, false).Get("http://front.test/")
			if err != nil {
				t.Fatal(err)
			}
			if body(t, res); res.StatusCode != 503 || res.Header.Get("Retry-After") != "2" || res.Header.Get("Proxy-Status") != "" {
				t.Errorf("answered %d, %v", res.StatusCode, res.Header)
			}
			if e := f.next(t); e.Departed.Sub(f.start) != 0 || e.UpstreamStatus != 503 || e.Waited != time.Second {
				t.Errorf("%+v", e)
			}
		})
	}
}

// Interim answers to each try reach the client as they come, once, and what
// bounds them counts each try's.
func TestInterimAnswersOfEachTry(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		const hints = maxInterim - 2
		var try atomic.Int64
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			n := try.Add(1)
			for i := range hints {
				rw.Header().Set("Link", fmt.Sprintf("</%d-%d>", n, i))
				rw.WriteHeader(http.StatusEarlyHints)
			}
			rw.Header().Del("Link")
			if n < 3 {
				rw.WriteHeader(429)
			}
		}, scheme, func(r *Route) {
			obeying(r, oneASecond(t, time.Minute))
			r.Retry = RetryPolicy{Most: 2}
		})
		var mu sync.Mutex
		var got, want []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, h.Get("Link"))
			return nil
		}})
		for n := range 3 {
			for i := range hints {
				want = append(want, fmt.Sprintf("</%d-%d>", n+1, i))
			}
		}
		tr := w.client(t, clientH2)
		if code, err := w.get(ctx, tr, "/"); code != 200 || err != nil {
			t.Errorf("answered %d, %v", code, err)
		}
		w.next(t)
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(got, want) {
			t.Errorf("the client got %q, want %q", got, want)
		}
	})
}

// A crowd whose bodies are said to be large and come slowly takes of what may be
// kept only what has come, and gives that back as it ends, whoever reads on.
func TestKeptIsWhatHasCome(t *testing.T) {
	var all atomic.Int64
	s := share{all: &all}
	r, w := io.Pipe()
	b := &clientBody{ReadCloser: r, keep: 64 << 10, share: &s}
	p := make([]byte, keptBytes)
	for i, want := range []int64{0, 2 * keptBytes, 4 * keptBytes, 4 * keptBytes, 8 * keptBytes} {
		go w.Write(p)
		if n, err := io.ReadFull(b, p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		if got := all.Load(); got != want || cap(b.kept) > int(max(want, 2*keptBytes)) {
			t.Errorf("%d bytes are taken for %d that came, which are in %d", got, (i+1)*keptBytes, cap(b.kept))
		}
	}
	s.end()
	go w.Write(make([]byte, 8*keptBytes))
	for range 8 {
		io.ReadFull(b, p)
	}
	if got := all.Load(); got != 0 || !b.lost {
		t.Errorf("%d bytes are taken by who is over", got)
	}
}
