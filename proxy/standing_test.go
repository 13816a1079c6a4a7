package proxy

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A pairNet has upstreams in memory at addresses, each of which can be made to
// refuse connections or not to answer the dial.
type pairNet struct {
	mu     sync.Mutex
	down   map[string]error // how dialling it fails; context.DeadlineExceeded hangs
	nets   map[string]*pipeNet
	dialed map[string]int
}

// newPairNet serves h at each address, which it finds in the request's Host.
func newPairNet(t *testing.T, h http.HandlerFunc, addresses ...string) *pairNet {
	p := &pairNet{down: map[string]error{}, nets: map[string]*pipeNet{}, dialed: map[string]int{}}
	for _, a := range addresses {
		n := newPipeNet()
		p.nets[a] = n
		s := &http.Server{Handler: h}
		go s.Serve(n)
		t.Cleanup(func() { s.Close() })
	}
	return p
}

func (p *pairNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	p.mu.Lock()
	err := p.down[address]
	p.dialed[address]++
	p.mu.Unlock()
	switch err {
	case nil:
		return p.nets[address].dial(ctx, network, address)
	case context.DeadlineExceeded:
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	return nil, &net.OpError{Op: "dial", Net: network, Err: err}
}

func (p *pairNet) set(address string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down[address] = err
}

// pairWorld is a proxy before the addresses, in a bubble.
func pairWorld(t *testing.T, p *pairNet, change func(*UpstreamOptions), addresses ...string) (*world, *Upstream) {
	w := &world{net: newPipeNet(), start: time.Now()}
	r := route("/", addresses[0], func(o *UpstreamOptions) {
		o.Places = nil
		for _, a := range addresses {
			o.Places = append(o.Places, Place{Address: a, Host: a})
		}
		change(o)
	})
	r.Upstream.dial = p.dial
	w.front = serveOn(t, w.net, &Site{Routes: []*Route{r}})
	return w, r.Upstream
}

const one, two = "192.0.2.1:80", "192.0.2.2:80"

func (w *world) ask(t *testing.T, c *http.Client, path string) *http.Response {
	t.Helper()
	res, err := c.Get("http://front.test" + path)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res
}

func healthyOf(u *Upstream) (all []bool) {
	for _, a := range u.Status().Addresses {
		all = append(all, a.Healthy)
	}
	return all
}

// TestAddressGoesOut: after three dials in vain no request tries the address,
// until a single dial, made when its time is over, finds it there again.
func TestAddressGoesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {}, one, two)
		w, u := pairWorld(t, p, func(o *UpstreamOptions) {
			o.Health = HealthPolicy{MaxFails: 3, FailTimeout: 10 * time.Second}
			o.MaxIdleConns = 1
		}, one, two)
		c := w.client(t, false)
		p.set(one, syscall.ECONNREFUSED)
		for i := range 12 {
			if res := w.ask(t, c, "/"); res.StatusCode != 200 {
				t.Errorf("request %d is answered %d", i, res.StatusCode)
			}
			w.next(t)
		}
		if n := p.dialed[one]; n != 3 {
			t.Errorf("%d dials in vain, want 3", n)
		}
		if got := healthyOf(u); !slices.Equal(got, []bool{false, true}) {
			t.Errorf("healthy: %v", got)
		}
		time.Sleep(10*time.Second - 1)
		w.ask(t, c, "/")
		synctest.Wait()
		if n := p.dialed[one]; n != 3 {
			t.Errorf("tried before its time: %d", n)
		}
		time.Sleep(time.Nanosecond)
		for range 5 {
			w.ask(t, c, "/")
		}
		synctest.Wait()
		if n := p.dialed[one]; n != 4 {
			t.Errorf("%d dials after its time, want a single one more", n-3)
		}
		p.set(one, nil)
		time.Sleep(10 * time.Second)
		w.ask(t, c, "/") // has it tried
		synctest.Wait()
		if got := healthyOf(u); !slices.Equal(got, []bool{true, true}) {
			t.Errorf("healthy: %v, when it is back", got)
		}
	})
}

// TestAllOut: while every address is out the answer is there at once, with the
// time that it takes; whoever waits that long and comes first is let through.
func TestAllOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {}, one, two)
		w, u := pairWorld(t, p, func(o *UpstreamOptions) {
			o.Health = HealthPolicy{MaxFails: 1, FailTimeout: 10 * time.Second}
		}, one, two)
		c := w.client(t, false)
		p.set(one, context.DeadlineExceeded)
		p.set(two, syscall.ECONNREFUSED)
		if res := w.ask(t, c, "/"); res.StatusCode/100 != 5 || time.Since(w.start) != 2*time.Second {
			t.Errorf("the first is answered %d after %v", res.StatusCode, time.Since(w.start))
		}
		w.next(t)
		dialed := p.dialed[one] + p.dialed[two]
		time.Sleep(3 * time.Second)
		res := w.ask(t, c, "/")
		e := w.next(t)
		if res.StatusCode != 503 || errorType(t, res.Header) != "destination_unavailable" || e.Duration != 0 ||
			e.Reason != ReasonUnhealthy || e.Upstream != "" || e.UpstreamStatus != 0 || !e.Departed.IsZero() {
			t.Errorf("status %d %q, told %+v", res.StatusCode, res.Header["Proxy-Status"], e)
		}
		after := res.Header.Get("Retry-After")
		if after != "7" && after != "5" { // either may have been first
			t.Errorf("Retry-After: %s", after)
		}
		if n := p.dialed[one] + p.dialed[two]; n != dialed {
			t.Errorf("%d dials for a request that is refused", n-dialed)
		}
		p.set(one, nil)
		p.set(two, nil)
		wait, _ := time.ParseDuration(after + "s")
		time.Sleep(wait)
		if res := w.ask(t, c, "/"); res.StatusCode != 200 {
			t.Errorf("after Retry-After: %d", res.StatusCode)
		}
		if s := u.Status(); s.Refused[0].Count != 1 || s.Refused[1].Count != 0 || s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestOnlyAddress: from the only address there is nothing to turn to, so it is
// tried for each request.
func TestOnlyAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {}, one)
		w, u := pairWorld(t, p, func(o *UpstreamOptions) {
			o.Health = HealthPolicy{MaxFails: 2, FailTimeout: 10 * time.Second}
		}, one)
		c := w.client(t, false)
		p.set(one, syscall.ECONNREFUSED)
		for range 5 {
			if res := w.ask(t, c, "/"); res.StatusCode != 502 || errorType(t, res.Header) != "connection_refused" {
				t.Errorf("status %d", res.StatusCode)
			}
		}
		if got := healthyOf(u); !slices.Equal(got, []bool{false}) || p.dialed[one] != 5 {
			t.Errorf("healthy: %v after %d dials", got, p.dialed[one])
		}
		p.set(one, nil)
		if res := w.ask(t, c, "/"); res.StatusCode != 200 || !healthyOf(u)[0] {
			t.Errorf("status %d, healthy: %v", res.StatusCode, healthyOf(u))
		}
	})
}

// TestHealthChecks: checks take an address out and bring it back at their
// instants, also the only one, and what they ask for is not counted anywhere.
func TestHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var checks []time.Duration
		start, status := time.Now(), 200
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if r.URL.RequestURI() == "/up?deep" {
				checks = append(checks, time.Since(start))
				w.WriteHeader(status)
			}
		}, one)
		w, u := pairWorld(t, p, func(o *UpstreamOptions) {
			o.Health = HealthPolicy{Path: "/up?deep", Interval: 5 * time.Second, Timeout: time.Second, Fails: 3, Passes: 2}
		}, one)
		u.Start()
		c := w.client(t, false)
		set := func(s int) { mu.Lock(); status = s; mu.Unlock() }
		at := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(d)))
			res := w.ask(t, c, "/")
			if e := w.next(t); res.StatusCode != want || want == 503 && (e.Reason != ReasonUnhealthy || res.Header.Get("Retry-After") != "") {
				t.Errorf("at %v: %d, told %+v", d, res.StatusCode, e)
			}
		}
		at(time.Second, 200)
		set(404)
		at(14*time.Second, 200) // checks failed at 5 and 10
		at(16*time.Second, 503) // and at 15
		set(204)
		at(24*time.Second, 503) // one passed, at 20
		at(26*time.Second, 200) // two passed
		p.set(one, context.DeadlineExceeded)
		time.Sleep(time.Second)
		u.Close()
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{0, 5e9, 10e9, 15e9, 20e9, 25e9}; !slices.Equal(checks, want) {
			t.Errorf("checks at %v", checks)
		}
		if n := u.Status().InFlight; n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// TestHealthCheckTakesTooLong: an answer that does not come in time is none.
func TestHealthCheckTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/up" {
				<-r.Context().Done()
			}
		}, one)
		start := time.Now()
		_, u := pairWorld(t, p, func(o *UpstreamOptions) {
			o.Health = HealthPolicy{Path: "/up", Interval: 5 * time.Second, Timeout: time.Second, Fails: 2, Passes: 2}
		}, one)
		u.Start()
		time.Sleep(time.Until(start.Add(6*time.Second - 1)))
		before := healthyOf(u)[0]
		time.Sleep(2 * time.Nanosecond)
		if !before || healthyOf(u)[0] {
			t.Errorf("healthy %v before the second check is over, %v after it", before, healthyOf(u)[0])
		}
		u.Close()
	})
}

// TestBreakerRefuses: the breaker's course at its instants, as clients see it.
// What clients do wrong, and leaving, is no failure; no turn is spent on what is
// refused.
func TestBreakerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/fail"):
				w.WriteHeader(503)
			case r.URL.Path == "/hang":
				select {
				case <-r.Context().Done():
				case <-time.After(time.Hour):
				}
			case r.URL.Path == "/bad":
				w.WriteHeader(400)
			}
		}, one)
		policy := policyOf(4, 0.5)
		policy.Statuses = []int{503}
		w, u := pairWorld(t, p, func(o *UpstreamOptions) { o.Breaker = policy }, one)
		turns := &turnstile{}
		limited(w.proxy.site.Load().Routes[0], turns)
		c := w.client(t, false)
		get := func(path string, want int) *http.Response {
			t.Helper()
			res := w.ask(t, c, path)
			w.next(t)
			if res.StatusCode != want {
				t.Errorf("%v: %s is answered %d, want %d", time.Since(w.start), path, res.StatusCode, want)
			}
			return res
		}
		for range 10 { // 10 who leave, at 1 s each
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			w.get(ctx, c, "/hang")
			cancel()
			w.next(t)
		}
		get("/bad", 400)
		get("/fail", 503)
		get("/fail", 503)
		if s := u.Status().Breaker; s != BreakerClosed {
			t.Errorf("two failures of three ended: %v", s)
		}
		get("/fail", 503) // three of four
		opened := time.Now()
		spent := turns.turns.Load()
		res := get("/", 503)
		if errorType(t, res.Header) != "destination_unavailable" || res.Header.Get("Retry-After") != "5" || u.Status().Breaker != BreakerOpen {
			t.Errorf("refused with %q", res.Header)
		}
		time.Sleep(time.Until(opened.Add(5*time.Second - 1)))
		get("/", 503)
		if turns.turns.Load() != spent {
			t.Error("a turn was spent on a request that the breaker refuses")
		}
		time.Sleep(time.Nanosecond)
		var all sync.WaitGroup
		all.Go(func() { get("/hang2", 200) })
		all.Wait()
		get("/fail", 503) // the second probe fails
		if s := u.Status().Breaker; s != BreakerOpen {
			t.Errorf("after a probe that failed: %v", s)
		}
		time.Sleep(5 * time.Second)
		get("/", 200)
		if s := u.Status().Breaker; s != BreakerHalfOpen {
			t.Errorf("after one good probe: %v", s)
		}
		// While a probe is under way, others are refused.
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() { w.get(ctx, c, "/hang"); w.next(t) })
		synctest.Wait()
		if res := w.ask(t, c, "/"); res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" {
			t.Errorf("beside a probe: %d", res.StatusCode)
		}
		cancel() // its client leaves: another may probe
		all.Wait()
		w.next(t)
		get("/", 200)
		if s := u.Status().Breaker; s != BreakerClosed {
			t.Errorf("after two good probes: %v", s)
		}
	})
}

// TestOneBreakerOfTwo: an address that fails is left alone while the other goes
// on.
func TestOneBreakerOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairNet(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Host == one {
				w.WriteHeader(500)
			}
		}, one, two)
		w, u := pairWorld(t, p, func(o *UpstreamOptions) { o.Breaker = policyOf(3, 1) }, one, two)
		c := w.client(t, false)
		failures := 0
		for range 20 {
			if w.ask(t, c, "/").StatusCode == 500 {
				failures++
			}
			w.next(t)
		}
		if failures != 3 {
			t.Errorf("%d requests failed, want 3", failures)
		}
		if got := healthyOf(u); !slices.Equal(got, []bool{false, true}) || u.Status().Breaker != BreakerClosed {
			t.Errorf("healthy: %v, breaker %v", got, u.Status().Breaker)
		}
	})
}
