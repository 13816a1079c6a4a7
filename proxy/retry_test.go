package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// obeying puts limits on r whose queues stand before a gate, which the upstream
// closes by Retry-After.
func obeying(r *Route, links ...shaping.Link) {
	gates := shaping.NewGates()
	limited(r, shaping.NewChain(limiter.NewMemory(), links...).To(gates))
	r.Ask = func([]limiter.Key) func(int, http.Header) bool {
		return func(status int, h http.Header) bool {
			if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
				gates.Of("").Close("throttled", time.Now().Add(time.Duration(s)*time.Second))
			}
			return status == http.StatusTooManyRequests
		}
	}
}

func oneASecond(t *testing.T, maxWait time.Duration) shaping.Link {
	return line(t, shaping.Policy{Name: "q", Rate: limiter.Rate{Count: 1, Per: time.Second}, Burst: 1, Queue: 10, MaxWait: maxWait})
}

// throttle answers the first n requests of each path with 429.
func throttle(n int, after string) http.HandlerFunc {
	var mu sync.Mutex
	seen := map[string]int{}
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if seen[r.URL.Path]++; seen[r.URL.Path] <= n {
			w.Header().Set("Retry-After", after)
			w.Header().Set("X-Upstream", "its own")
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, "slow down")
			return
		}
		w.Write(b)
	}
}

func (w *world) reached(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for _, a := range w.arrivals {
		got = append(got, fmt.Sprint(a.at, a.path))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the upstream got %q, want %q", got, want)
	}
	if kept, in := w.proxy.kept.Load(), w.proxy.site.Load().Routes[0].Upstream.inFlight.Load(); kept != 0 || in != 0 {
		t.Errorf("%d bytes are kept, %d in flight", kept, in)
	}
}

// TestCase35ThrottledGoesAgain: the one that is throttled is the first to be sent
// when the pause is over, and those behind it go on at the pace (api7/aisix #144,
// headroomlabs-ai/headroom PR #1329).
func TestCase35ThrottledGoesAgain(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		handler := throttle(1, "3")
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/1" {
				handler(rw, r)
			}
		}, scheme, func(r *Route) {
			obeying(r, oneASecond(t, time.Minute))
			r.Retry = RetryPolicy{Most: 2}
			r.Timeout = 2 * time.Second // does not run while it waits
		})
		c := w.client(t, clientH2)
		var codes [3]int
		for i := range codes {
			go func() { codes[i], _ = w.get(t.Context(), c, fmt.Sprint("/", i+1)) }()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if codes != [...]int{200, 200, 200} {
			t.Errorf("answered %v", codes)
		}
		w.reached(t, "0s/1", "3s/1", "4s/2", "5s/3")
		for range codes {
			e := w.next(t)
			want := []string{"1 0s", "2 3s"}[min(1, len(e.Retries))]
			if e.Path != "/1" {
				want = "1 " + map[string]string{"/2": "4s", "/3": "5s"}[e.Path]
			}
			if got := fmt.Sprint(e.Attempt(), " ", e.Waited); got != want {
				t.Errorf("%s: attempt and wait %s, want %s", e.Path, got, want)
			}
			if e.Path == "/1" {
				if r := e.Retries; len(r) != 1 || r[0].Reason != RetryThrottled || r[0].Status != 429 || e.UpstreamStatus != 200 || e.Departed.Sub(w.start) != 3*time.Second {
					t.Errorf("%+v", e)
				}
			}
		}
	})
}

// What is sent again and what is not, and that then the answer is the upstream's
// own.
func TestRetryPolicy(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		name, method, body string
		policy             RetryPolicy
		throttled          int // tries
		after              string
		maxWait            time.Duration
		came               string
		status             int
		at                 time.Duration
	}{
		{"as often as may be", "GET", "", RetryPolicy{Most: 2}, 5, "1", time.Minute, "0s 1s 2s", 429, 2 * time.Second},
		{"never", "GET", "", RetryPolicy{}, 1, "1", time.Minute, "0s", 429, 0},
		{"not idempotent", "POST", "", RetryPolicy{Most: 2}, 1, "1", time.Minute, "0s", 429, 0},
		{"an unknown method", "PATCH", "x", RetryPolicy{Most: 2, Body: 9}, 1, "1", time.Minute, "0s", 429, 0},
		{"idempotent with a body", "PUT", long, RetryPolicy{Most: 2, Body: 5000}, 1, "1", time.Minute, "0s 1s", 200, time.Second},
		{"any", "POST", long, RetryPolicy{Most: 2, Any: true, Body: 1 << 16}, 2, "4", time.Minute, "0s 4s 8s", 200, 8 * time.Second},
		{"too long a body", "PUT", long, RetryPolicy{Most: 2, Any: true, Body: 4999}, 1, "1", time.Minute, "0s", 429, 0},
		{"no patience", "GET", "", RetryPolicy{Most: 2}, 1, "3", 2 * time.Second, "0s", 429, 0},
		{"patience from the first arrival", "GET", "", RetryPolicy{Most: 2}, 2, "3", 5 * time.Second, "0s 3s", 429, 3 * time.Second},
		{"at the pace, without a pause", "GET", "", RetryPolicy{Most: 2}, 2, "", time.Minute, "0s 1s 2s", 200, 2 * time.Second},
	} {
		for _, chunked := range []bool{false, true} {
			if chunked && tt.body == "" {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, throttle(tt.throttled, tt.after), "http", func(r *Route) {
					obeying(r, oneASecond(t, tt.maxWait))
					r.Retry = tt.policy
				})
				req, _ := http.NewRequest(tt.method, "http://front.test/", strings.NewReader(tt.body))
				if chunked {
					req.ContentLength = -1
				}
				res, err := w.client(t, false).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got := body(t, res)
				want := tt.body
				if tt.status == 429 {
					want = "slow down"
					if res.Header.Get("X-Upstream") != "its own" || tt.after != "" && res.Header.Get("Retry-After") != tt.after || res.Header.Get("Proxy-Status") != "" {
						t.Errorf("%s: the answer is not the upstream's own: %v", tt.name, res.Header)
					}
				}
				if res.StatusCode != tt.status || got != want || time.Since(w.start) != tt.at {
					t.Errorf("%s: %d with %d bytes after %v", tt.name, res.StatusCode, len(got), time.Since(w.start))
				}
				e := w.next(t)
				if e.UpstreamStatus != tt.status {
					t.Errorf("%s: upstream's status %d", tt.name, e.UpstreamStatus)
				}
				var want2 []string
				for _, at := range strings.Fields(tt.came) {
					want2 = append(want2, at+"/")
				}
				w.reached(t, want2...)
				if len(e.Retries) != len(want2)-1 {
					t.Errorf("%s: retries %+v", tt.name, e.Retries)
				}
			})
		}
	}
}

// An upstream may refuse a request before whoever sends its body has come to the
// end of it, which the proxy has had since before the turn.
func TestRetryWhileItsBodyIsStillSent(t *testing.T) {
	const all = "all of the body"
	b := &clientBody{ReadCloser: io.NopCloser(iotest.DataErrReader(strings.NewReader(all))), keep: len(all)}
	if err := b.begin(int64(len(all))); err != nil {
		t.Fatal(err)
	}
	first := &attempt{body: b, leave: func() {}}
	d := dispatch{body: b, sent: first}
	some := make([]byte, 3)
	if n, err := first.Read(some); n != 3 || err != nil || !d.whole() {
		t.Fatal(n, err, d.whole())
	}
	d.again()
	if n, err := first.Read(some); n != 0 || err != errBodyOver {
		t.Errorf("the try that is over took %q, %v", some[:n], err)
	}
	if got, err := io.ReadAll(&attempt{body: b, leave: func() {}}); string(got) != all || err != nil {
		t.Errorf("sent again: %q, %v", got, err)
	}
}

// A client that leaves while its request waits again, and a shutdown then.
func TestRetryEndsWhileItWaits(t *testing.T) {
	for _, shutdown := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var up *Upstream
			w := newWorld(t, throttle(1, "10"), "http", func(r *Route) {
				obeying(r, oneASecond(t, time.Minute))
				r.Retry = RetryPolicy{Most: 2}
				up = r.Upstream
			})
			ctx, cancel := context.WithCancel(t.Context())
			code := 0
			go func() { code, _ = w.get(ctx, w.client(t, false), "/") }()
			time.Sleep(time.Second)
			want := StatusClientGone
			if shutdown {
				want = 429 // the upstream's answer is as good as ours
				w.cut(limiter.ErrShutdown)
			} else {
				cancel()
			}
			e := w.next(t)
			if e.Status != want || e.UpstreamStatus != 429 || e.Waited != time.Second || len(e.Retries) != 0 {
				t.Errorf("%+v", e)
			}
			if got := up.retries.spent.Load(); got != 0 {
				t.Errorf("of the budget %d is spent, for what was not sent", got)
			}
			synctest.Wait()
			if shutdown && code != 429 {
				t.Errorf("the client got %d", code)
			}
			time.Sleep(time.Minute)
			w.reached(t, "0s/")
			cancel()
		})
	}
}

// What there is no queue for is sent once.
func TestRetryNeedsAQueue(t *testing.T) {
	windows := func(store *limiter.Memory) shaping.Link {
		l, err := store.NewLimit(limiter.Policy{Name: "w", Algorithm: limiter.FixedWindow, Limit: 9, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return shaping.Link{Reject: l}
	}
	for name, change := range map[string]func(*Route){
		"no limits": func(r *Route) { r.Limiter = nil },
		"no queue": func(r *Route) {
			store := limiter.NewMemory()
			limited(r, chain(store, windows(store)))
		},
		"not obeyed": func(r *Route) {
			limited(r, chain(limiter.NewMemory(), oneASecond(t, time.Minute)))
			r.Ask = nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, throttle(1, "1"), "http", func(r *Route) {
				obeying(r)
				change(r)
				r.Retry = RetryPolicy{Most: 2, Any: true, Body: 100}
			})
			if code, _ := w.get(t.Context(), w.client(t, false), "/"); code != 429 {
				t.Errorf("%s: answered %d", name, code)
			}
			w.next(t)
			w.reached(t, "0s/")
		})
	}
}

// An upstream that throttles everything gets a tenth more than there is, and a
// hundred.
func TestRetryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, throttle(1<<30, ""), "http", func(r *Route) {
			obeying(r, oneASecond(t, time.Minute))
			r.Retry = RetryPolicy{Most: 2}
		})
		c := w.client(t, false)
		const n = 300
		for range n {
			if code, _ := w.get(t.Context(), c, "/"); code != 429 {
				t.Fatalf("answered %d", code)
			}
		}
		if got := len(w.arrivals); got != n+100+(n-1)/10 { // the first adds nothing to a hundred
			t.Errorf("%d requests became %d", n, got)
		}
	})
	var b budget
	for range 100_000 {
		b.earn()
	}
	spent := 0
	for b.spend() {
		spent++
	}
	if spent != 100 {
		t.Errorf("%d were saved", spent)
	}
	b.giveBack()
	if !b.spend() || b.spend() {
		t.Error("what is given back is not one")
	}
}

// A request that was parked, with its body, may take another turn too.
func TestRetryOfAParkedRequest(t *testing.T) {
	up := newRawUpstream(t, func(n int, _ string) string {
		if n == 1 {
			return "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
		}
		return ok200
	})
	g, r := gated(up.addr)
	asked := make(chan bool, 1)
	r.Limiter = struct {
		foreseer
		limiter.Limiter
	}{g, limiterFunc(func(ctx context.Context, req limiter.Request) (limiter.Permit, error) {
		asked <- req.Again
		p, err := g.Acquire(ctx, req)
		p.Again = func(ctx context.Context, _ func() bool) (limiter.Permit, error) {
			return g.Acquire(ctx, limiter.Request{})
		}
		return p, err
	})}
	r.Ask = func([]limiter.Key) func(int, http.Header) bool {
		return func(status int, _ http.Header) bool { return status == 429 }
	}
	r.Retry = RetryPolicy{Most: 1, Body: 5}
	f := newFront(t, &Site{Routes: []*Route{r}})
	c := f.dial(t, "PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	<-g.came
	if !<-asked {
		t.Error("the limits were not told that it may come again")
	}
	g.let <- letGo()
	<-g.came
	g.let <- letGo()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, res); res.StatusCode != 200 || got != "ok" {
		t.Errorf("%d %q", res.StatusCode, got)
	}
	if e := f.next(t); len(e.Retries) != 1 || e.Waited != 14*time.Second || strings.Count(up.bytes(), "\r\n\r\nhello") != 2 {
		t.Errorf("%+v, and the upstream got %q", e, up.bytes())
	}
}
