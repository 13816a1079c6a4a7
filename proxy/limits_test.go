package proxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// tokens is a token bucket that fills in a day, so that no test sees a token
// come.
func tokens(t *testing.T, store *limiter.Memory, burst int64, change func(*limiter.Policy)) shaping.Link {
	t.Helper()
	rate, err := limiter.NewRate(burst, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p := limiter.Policy{Name: "tokens", Algorithm: limiter.TokenBucket, Rate: rate, Burst: burst}
	if change != nil {
		change(&p)
	}
	l, err := store.NewLimit(p)
	if err != nil {
		t.Fatal(err)
	}
	return shaping.Link{Reject: l}
}

// keyedBy makes a route count by key.
func keyedBy(t *testing.T, r *Route, words ...string) {
	t.Helper()
	key, err := identity.ParseKey(words)
	if err != nil {
		t.Fatal(err)
	}
	r.Identify = func(id Identity) ([]limiter.Key, error) {
		v, present, err := key.Of(identity.Source{Request: id.Request, Client: id.Client, Host: id.Host, Route: id.Route, PathValue: id.PathValue})
		return []limiter.Key{{Value: v, Missing: !present}}, err
	}
}

func respond(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }

// TestN03OneBucketTwoRoutes: what counts is the limit and not the route, and a
// limit's own status is sent. Refusals are not charged (N4).
func TestN03OneBucketTwoRoutes(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(respond))
	store := limiter.NewMemory()
	shared := tokens(t, store, 2, func(p *limiter.Policy) { p.Status = 501 })
	a, b := limited(route("/a", addr), chain(store, shared)), limited(route("/b", addr), chain(store, shared))
	f := newFront(t, &Site{Routes: []*Route{a, b}, RateLimitHeaders: everyDialect})
	for i, want := range []int{204, 204, 501, 501, 501} {
		res := f.get(t, "GET", []string{"/a", "/b"}[i%2])
		if res.StatusCode != want {
			t.Errorf("request %d is answered %d, want %d", i+1, res.StatusCode, want)
		}
		if left := parameter(t, member(t, res.Header["Ratelimit"], "tokens"), "r"); left != max(1-int64(i), 0) {
			t.Errorf("request %d: r=%d", i+1, left)
		}
		if want == 501 && res.Header.Get("Retry-After") != "43200" {
			t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
		}
	}
}

// TestS24OnePrefixIsOneClient: a /64 has 2^64 addresses and one budget (traefik
// #9721).
func TestS24OnePrefixIsOneClient(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(respond))
	store := limiter.NewMemory()
	r := limited(route("/", addr), chain(store, tokens(t, store, 10, nil)))
	keyedBy(t, r, "client-ip")
	f := newFront(t, &Site{Routes: []*Route{r}, Client: trusting(t, "127.0.0.0/8")})
	client := h1Client(t)
	count := func(prefix string) (passed int) {
		for i := range 100 {
			res, err := client.Do(f.request(t, "GET", "/", fmt.Sprintf("X-Forwarded-For: %s%x", prefix, i+1)))
			if err != nil {
				t.Fatal(err)
			}
			if body(t, res); res.StatusCode == 204 {
				passed++
			}
		}
		return passed
	}
	if n := count("2001:db8:0:1::"); n != 10 {
		t.Errorf("%d of one prefix passed, want 10", n)
	}
	if n := count("2001:db8:0:2::"); n != 10 {
		t.Errorf("%d of the next prefix passed, want 10", n)
	}
	if n := count("2001:db8:0:1:2:3:4:"); n != 0 {
		t.Errorf("%d of the first prefix passed again", n)
	}
}

// TestS26KeysWithoutEnd: many keys, large keys and odd keys take bounded room,
// and do not make the limit forget a client that it refuses.
func TestS26KeysWithoutEnd(t *testing.T) {
	const keys = 256
	addr := upstreamHTTP(t, http.HandlerFunc(respond))
	store := limiter.NewMemory()
	link := tokens(t, store, 5, func(p *limiter.Policy) { p.MaxKeys = keys })
	r := limited(route("/", addr), chain(store, link))
	keyedBy(t, r, "header:X-Key")
	f := newFront(t, &Site{Routes: []*Route{r}})
	client := h1Client(t)
	ask := func(key string) int {
		res, err := client.Do(f.request(t, "GET", "/", "X-Key: "+key))
		if err != nil {
			t.Fatal(err)
		}
		body(t, res)
		return res.StatusCode
	}
	for range 5 {
		ask("exhausted")
	}
	if code := ask("exhausted"); code != 429 {
		t.Fatalf("the sixth is answered %d", code)
	}
	huge := strings.Repeat("k", 60_000)
	var before, after runtime.MemStats
	for i := range 10 * keys {
		key := fmt.Sprintf("%s%d", huge[:min(i*37, len(huge))], i)
		if code := ask(key); code != 204 {
			t.Fatalf("key %d is answered %d", i, code)
		}
		if i == 2*keys {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if n := link.Reject.Keys(); n > keys {
		t.Errorf("%d keys are remembered, %d may be", n, keys)
	}
	if code := ask("exhausted"); code != 429 {
		t.Errorf("the exhausted client is answered %d after the flood", code)
	}
}

// TestS22StrictKeys: where the query is a key, one that can be read in two ways
// is 400, and so are requests without the key.
func TestS22StrictKeys(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(respond))
	store := limiter.NewMemory()
	r := limited(route("/{id}", addr), chain(store, tokens(t, store, 1, nil)))
	keyedBy(t, r, "query:k")
	f := newFront(t, &Site{Routes: []*Route{r}, RateLimitHeaders: everyDialect})
	for _, c := range []struct {
		target string
		status int
		kind   string
	}{
		{"/x?k=1;k=2", 400, "http_request_error"},
		{"/x?k=%zz", 400, "http_request_error"},
		{"/x?k=1&k=2", 204, ""},
		{"/x?%6b=1", 429, "http_request_denied"}, // the first counts, decoded
		{"/x?k=2", 204, ""},
		{"/x", 400, "http_request_denied"},
	} {
		res := f.get(t, "GET", c.target)
		if res.StatusCode != c.status || c.kind != "" && errorType(t, res.Header) != c.kind {
			t.Errorf("%s is answered %d, %v", c.target, res.StatusCode, res.Header["Proxy-Status"])
		}
		if res.StatusCode == 400 && res.Header.Get("Retry-After") != "" {
			t.Errorf("%s: Retry-After on what no wait mends", c.target)
		}
		if e := f.next(t); e.Status != c.status || (c.target == "/x") != (e.Reason == limiter.ReasonMissingKey) {
			t.Errorf("%s: told %+v", c.target, e)
		}
	}
	var reasons []limiter.Reason
	for _, d := range f.decisions {
		reasons = append(reasons, d.Reason)
	}
	if want := []limiter.Reason{"", "limit", "", "missing_key"}; !slices.Equal(reasons, want) {
		t.Errorf("decided %q, want %q", reasons, want)
	}
}

// TestNoRouteNoKey: a request without a route asks no limit, and its answer
// tells of none.
func TestNoRouteNoKey(t *testing.T) {
	turns := &turnstile{}
	f := newFront(t, &Site{Routes: []*Route{limited(route("POST /only", "127.0.0.1:1"), turns)}, RateLimitHeaders: everyDialect})
	for _, c := range []struct {
		method, target, kind string
		status               int
	}{{"GET", "/none", "destination_not_found", 404}, {"GET", "/only", "http_request_denied", 405}} {
		res := f.get(t, c.method, c.target)
		if res.StatusCode != c.status || errorType(t, res.Header) != c.kind || res.Header["Ratelimit"] != nil || res.Header.Get("RateLimit-Limit") != "" {
			t.Errorf("%s %s: status %d, %v", c.method, c.target, res.StatusCode, res.Header)
		}
		if c.status == 405 && res.Header.Get("Allow") != "POST" {
			t.Errorf("Allow %q", res.Header.Get("Allow"))
		}
		problemOf(t, res)
		if e := f.next(t); e.Status != c.status || e.Route != "" || e.Upstream != "" || e.Error != c.kind {
			t.Errorf("told %+v", e)
		}
	}
	if turns.turns.Load() != 0 || len(f.decisions) != 0 {
		t.Error("a limit was asked")
	}
}

// TestUnknownClient: over a Unix socket the client has no address; the upstream
// and the log are told so.
func TestUnknownClient(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}, Client: func(string, []string) (netip.Addr, bool) { return netip.Addr{}, false }})
	h := f.server.Handler
	f.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { r.RemoteAddr = "@"; h.ServeHTTP(w, r) })
	if res := f.get(t, "GET", "/"); res.StatusCode != 200 {
		t.Fatalf("status %d", res.StatusCode)
	}
	if got := fieldsOf(up.bytes(), "X-Forwarded-For"); !slices.Equal(got, []string{"unix:"}) {
		t.Errorf("X-Forwarded-For %q", got)
	}
	if e := f.next(t); e.Client.IsValid() {
		t.Errorf("client %v", e.Client)
	}
}
