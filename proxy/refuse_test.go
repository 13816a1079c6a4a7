package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// limiterRefusal is a refusal in queue form.
var limiterRefusal = limiter.Decision{
	Policy: "fragile", Reason: limiter.ReasonQueueFull, Status: 429, Limit: 101, Window: 100 * time.Millisecond,
	ResetAfter: 7200 * time.Millisecond, RetryAfter: 4200 * time.Millisecond,
}

// refuses is a Limiter that always refuses with d.
func refuses(d limiter.Decision) limiter.Limiter {
	return limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
		d.At = time.Now()
		watched := limiter.Decision{Policy: "watched", Reason: limiter.ReasonLimit, Limit: 1, DryRun: true}
		seen := limiter.Decision{Policy: "seen", Allowed: true, Peeked: true, Limit: 8, Remaining: 8}
		return limiter.Permit{Decision: d, All: []limiter.Decision{watched, d, seen}}, nil
	})
}

// errorType is the error of the Proxy-Status of an answer that we made.
func errorType(t *testing.T, h http.Header) string {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h["Proxy-Status"])
	if err != nil || len(list) != 1 {
		t.Fatalf("Proxy-Status %q: %v", h["Proxy-Status"], err)
	}
	item := list[0].(httpsfv.Item)
	if item.Value != httpsfv.Token("shapeproxy") {
		t.Errorf("Proxy-Status of %v", item.Value)
	}
	kind, _ := item.Params.Get("error")
	return fmt.Sprint(kind)
}

func problemOf(t *testing.T, res *http.Response) (p struct {
	Type, Title, Detail, Reason string
	Status                      int
	Violated                    []string `json:"violated-policies"`
}) {
	t.Helper()
	if ct := res.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	d := json.NewDecoder(strings.NewReader(body(t, res)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatal(err)
	}
	if p.Status != res.StatusCode || p.Title == "" || p.Detail == "" {
		t.Errorf("status %d, problem %+v", res.StatusCode, p)
	}
	return p
}

func TestRefusal(t *testing.T) {
	const quota = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	for _, c := range []struct {
		name       string
		change     func(*limiter.Decision)
		retryAfter string
		typ        string
	}{
		{"queue full", func(*limiter.Decision) {}, "5", quota},
		{"limit", func(d *limiter.Decision) { d.Reason, d.RetryAfter = limiter.ReasonLimit, 20*time.Millisecond }, "1", quota},
		{"max wait, another status", func(d *limiter.Decision) { d.Reason, d.Status = limiter.ReasonMaxWait, 503 }, "5", quota},
		{"a quota with status 400", func(d *limiter.Decision) { d.Status = 400 }, "5", quota},
		{"no status given", func(d *limiter.Decision) { d.Status = 0 }, "5", quota},
		{"never", func(d *limiter.Decision) { d.RetryAfter = limiter.Never }, "", quota},
		{"missing key", func(d *limiter.Decision) {
			*d = limiter.Decision{Policy: "fragile", Reason: limiter.ReasonMissingKey, Status: 400, RetryAfter: limiter.Never}
		}, "", "about:blank"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := limiterRefusal
			c.change(&d)
			status := d.Status
			if status == 0 {
				status = 429
			}
			up := newRawUpstream(t, always(ok200))
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), refuses(d))}, RateLimitHeaders: everyDialect})
			res := f.get(t, "GET", "/")
			p := problemOf(t, res)
			if res.StatusCode != status || p.Type != c.typ || p.Reason != string(d.Reason) || !slices.Equal(p.Violated, []string{"fragile"}) {
				t.Errorf("status %d, problem %+v", res.StatusCode, p)
			}
			if got := res.Header.Get("Retry-After"); got != c.retryAfter {
				t.Errorf("Retry-After %q, want %q", got, c.retryAfter)
			}
			if kind := errorType(t, res.Header); kind != "http_request_denied" {
				t.Errorf("error=%s", kind)
			}
			if d.Limit > 0 {
				if r := parameter(t, member(t, res.Header["Ratelimit"], "fragile"), "r"); r != 0 {
					t.Errorf("r=%d", r)
				}
				if got := res.Header.Get("RateLimit-Limit"); got != "101" {
					t.Errorf("RateLimit-Limit %q", got)
				}
			}
			e := f.next(t)
			if e.Status != status || e.Reason != d.Reason || e.Policy != "fragile" || e.Upstream != "" || e.UpstreamStatus != 0 ||
				!e.Departed.IsZero() || e.DryRun != "watched:limit" || e.Route != "/" || e.Error != "" {
				t.Errorf("told %+v", e)
			}
			if up.count() != 0 {
				t.Error("a refused request reached the upstream")
			}
		})
	}
}

// What never fits is told apart from what does not fit now, and that from an
// empty budget.
func TestRefusalOfACost(t *testing.T) {
	for _, c := range []struct {
		remaining int64
		after     time.Duration
		want      string
	}{
		{2, limiter.Never, "the request costs more than the limit daily ever lets through; this request can never be let through"},
		{2, time.Minute, "the limit daily has less left than the request costs; try again in 60 s"},
		{0, time.Minute, "the limit daily has nothing left; try again in 60 s"},
	} {
		d := limiter.Decision{Policy: "daily", Reason: limiter.ReasonLimit, Remaining: c.remaining, RetryAfter: c.after}
		if got := refusalDetail(d); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// Who refuses itself by its deadline is not told that the limit does.
func TestRefusalOfAnOwnDeadline(t *testing.T) {
	d := limiter.Decision{Policy: "p", Reason: limiter.ReasonMaxWait, RetryAfter: time.Second}
	for own, want := range map[bool]string{
		false: "the wait in the queue of p would be longer than it allows; try again in 1 s",
		true:  "the wait in the queue of p would be longer than the request itself allows; try again in 1 s",
	} {
		if d.OwnDeadline = own; refusalDetail(d) != want {
			t.Errorf("own %v: %q", own, refusalDetail(d))
		}
	}
}

func TestRefusalOfHEAD(t *testing.T) {
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", "127.0.0.1:1"), refuses(limiterRefusal))}})
	wire := f.wire(t, "HEAD / HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(wire, "HTTP/1.1 429 ") || !strings.HasSuffix(wire, "\r\n\r\n") || !strings.Contains(wire, "Retry-After: 5\r\n") {
		t.Errorf("HEAD is answered %q", wire)
	}
}

// TestRefusalDoesNotReadTheBody: the answer comes at once, however large or
// slow the body is, and little of it is read.
func TestRefusalDoesNotReadTheBody(t *testing.T) {
	for _, fields := range [][]string{
		{"Content-Length: 100000000"}, {"Content-Length: 10"}, {"Transfer-Encoding: chunked"}, {"Content-Length: 10", "Expect: 100-continue"},
	} {
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", "127.0.0.1:1"), refuses(limiterRefusal))}})
		// Nothing of the body is sent before the answer has been read.
		res := f.get(t, "POST", "/", fields...)
		if p := problemOf(t, res); res.StatusCode != 429 || p.Reason != "queue_full" {
			t.Errorf("%q: status %d, problem %+v", fields, res.StatusCode, p)
		}
		if !res.Close {
			t.Errorf("%q: the client is not told that the connection ends", fields)
		}
		if e := f.next(t); e.Received != 0 {
			t.Errorf("%q: %d bytes were read", fields, e.Received)
		}
	}
	// A client that sends all before it reads still sees the answer, not a reset.
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", "127.0.0.1:1"), refuses(limiterRefusal))}})
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	const size = 600 << 10
	io.WriteString(c, fmt.Sprintf("POST / HTTP/1.1\r\nHost: front.test\r\nContent-Length: %d\r\n\r\n", size)+strings.Repeat("x", size))
	got, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(got), "HTTP/1.1 429 ") || !strings.Contains(string(got), `"queue_full"`) {
		t.Errorf("answered %q", got)
	}
}

// TestCase58GRPCRefusal: a gRPC client is told in its own words, with HTTP 200.
func TestCase58GRPCRefusal(t *testing.T) {
	for _, c := range []struct {
		contentType string
		change      func(*limiter.Decision)
		code        string
	}{
		{"application/grpc", func(*limiter.Decision) {}, "8"},
		{"application/grpc+proto", func(d *limiter.Decision) { d.Status = 503 }, "14"},
		{"application/grpc;x=y", func(d *limiter.Decision) { d.Status = 404 }, "8"},
		{"application/grpc", func(d *limiter.Decision) { d.Status, d.Reason = 400, limiter.ReasonMissingKey }, "13"},
	} {
		d := limiterRefusal
		c.change(&d)
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", "127.0.0.1:1"), refuses(d))}, RateLimitHeaders: everyDialect})
		req := f.request(t, "POST", "/pkg.Service/Method", "Content-Type: "+c.contentType, "TE: trailers")
		req.Body = io.NopCloser(strings.NewReader("\x00\x00\x00\x00\x00"))
		res, err := h2cClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		h := res.Header
		if b := body(t, res); res.StatusCode != 200 || b != "" || h.Get("Grpc-Status") != c.code || h.Get("Content-Type") != "application/grpc" || h.Get("Grpc-Message") == "" {
			t.Errorf("%s %d: status %d, body %q, %v", c.contentType, d.Status, res.StatusCode, b, h)
		}
		if d.Reason == limiter.ReasonQueueFull && h.Get("Retry-After") != "5" || errorType(t, h) != "http_request_denied" {
			t.Errorf("%v", h)
		}
	}
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", "127.0.0.1:1"), refuses(limiterRefusal))}})
	if res := f.get(t, "POST", "/", "Content-Type: application/grpcx", "Content-Length: 0"); res.StatusCode != 429 {
		t.Errorf("what is not gRPC is answered %d", res.StatusCode)
	}
}

// TestFailedLimiter: a limiter that breaks is our fault, and lets nothing pass.
func TestFailedLimiter(t *testing.T) {
	broken := limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
		return limiter.Permit{}, io.ErrNoProgress
	})
	panics := limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) { panic("at the limiter") })
	for _, l := range []limiter.Limiter{broken, panics} {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), l)}})
		res := f.get(t, "GET", "/")
		if kind := errorType(t, res.Header); res.StatusCode != 500 || kind != "proxy_internal_error" || up.count() != 0 {
			t.Errorf("status %d, error=%s, %d requests upstream", res.StatusCode, kind, up.count())
		}
		if e := f.next(t); e.Status != 500 || e.Error != "proxy_internal_error" {
			t.Errorf("told %+v", e)
		}
	}
}
