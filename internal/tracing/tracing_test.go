package tracing

import (
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

const (
	parent  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceID = "0af7651916cd43dd8448eb211c80319c"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func recorded(t *testing.T, sample float64, do func(*Tracer)) tracetest.SpanStubs {
	t.Helper()
	out := tracetest.NewInMemoryExporter()
	tracer := newTracer(Options{Sample: sample, Version: "test"}, sdk.WithSyncer(out))
	do(tracer)
	spans := out.GetSpans()
	if err := tracer.Close(); err != nil {
		t.Error(err)
	}
	return spans
}

func story(spans tracetest.SpanStubs) string {
	var lines []string
	for _, s := range spans {
		lines = append(lines, fmt.Sprintf("%s %v-%v", s.Name, s.StartTime.Sub(began), s.EndTime.Sub(began)))
	}
	return strings.Join(lines, "; ")
}

// A request that waited a second and was sent: all of it in the client's trace,
// and the upstream is told of the span that is its own.
func TestForwarded(t *testing.T) {
	came, sent := http.Header{}, http.Header{"Traceparent": {parent}, "Tracestate": {"a=b"}}
	came.Set("Traceparent", parent)
	came.Set("Tracestate", "a=b")
	spans := recorded(t, 1, func(tr *Tracer) {
		e := &proxy.Event{Start: began, Method: "GET", Path: "/secret?", Route: "/", Upstream: "u", Waited: time.Second, Departed: began.Add(1100 * time.Millisecond)}
		s := tr.Begin(came, e)
		s.Sent(e, sent)
		e.Status, e.UpstreamStatus, e.Duration = 200, 200, 1500*time.Millisecond
		s.End(e)
	})
	if got, want := story(spans), "wait 100ms-1.1s; upstream u 1.1s-1.5s; / 0s-1.5s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, s := range spans {
		if s.SpanContext.TraceID().String() != traceID {
			t.Errorf("%s is in trace %s", s.Name, s.SpanContext.TraceID())
		}
	}
	if want := "00-" + traceID + "-" + spans[1].SpanContext.SpanID().String() + "-01"; sent.Get("Traceparent") != want {
		t.Errorf("sent traceparent %s, want %s", sent.Get("Traceparent"), want)
	}
	if sent.Get("Tracestate") != "a=b" {
		t.Errorf("sent tracestate %q", sent.Get("Tracestate"))
	}
}

// Refused and gone requests have no span of an upstream; a second try has its own.
func TestOtherEnds(t *testing.T) {
	spans := recorded(t, 1, func(tr *Tracer) {
		e := &proxy.Event{Start: began, Route: "/", Status: 429, Reason: limiter.ReasonLimit, Policy: "l", Duration: time.Millisecond}
		tr.Begin(http.Header{}, e).End(e)
	})
	if got, want := story(spans), "/ 0s-1ms"; got != want {
		t.Errorf("refused: %s, want %s", got, want)
	}
	spans = recorded(t, 1, func(tr *Tracer) {
		e := &proxy.Event{Start: began, Status: 499, Waited: time.Second, Duration: time.Second}
		tr.Begin(nil, e).End(e)
	})
	if got, want := story(spans), "wait 0s-1s; no route 0s-1s"; got != want {
		t.Errorf("gone: %s, want %s", got, want)
	}
	spans = recorded(t, 1, func(tr *Tracer) {
		e := &proxy.Event{Start: began, Route: "/", Upstream: "u", Departed: began}
		s := tr.Begin(http.Header{}, e)
		s.Sent(e, http.Header{})
		e.Retries = []proxy.Retry{{Reason: proxy.RetryThrottled, Status: 429, Departed: began, Duration: time.Second}}
		e.Departed = began.Add(3 * time.Second)
		s.Sent(e, http.Header{})
		e.Status, e.UpstreamStatus, e.Duration = 502, proxy.UpstreamError, 4*time.Second
		s.End(e)
	})
	if got, want := story(spans), "upstream u 0s-1s; wait 1s-3s; upstream u 3s-4s; / 0s-4s"; got != want {
		t.Errorf("sent twice: %s, want %s", got, want)
	}
}

// What a client says about recording counts within our own share only.
func TestSampling(t *testing.T) {
	count := func(sample float64, flags string) int {
		return len(recorded(t, sample, func(tr *Tracer) {
			for i := range 200 {
				came, sent := http.Header{}, http.Header{}
				if flags != "" {
					came.Set("Traceparent", fmt.Sprintf("00-%s%016x-b7ad6b7169203331-%s", strings.Repeat("0", 16), uint64(i+1)*0x9e3779b97f4a7c15, flags))
				}
				e := &proxy.Event{Start: began, Route: "/", Upstream: "u", Departed: began}
				s := tr.Begin(came, e)
				s.Sent(e, sent)
				s.End(e)
				if sent.Get("Traceparent") == "" {
					t.Error("nothing is passed on")
				}
			}
		})) / 2
	}
	for _, test := range []struct {
		sample      float64
		flags       string
		least, most int
	}{
		{1, "", 200, 200}, {1, "01", 200, 200}, {1, "00", 0, 0}, {0.25, "01", 20, 80}, {0.25, "", 20, 80}, {0.25, "00", 0, 0},
	} {
		if n := count(test.sample, test.flags); n < test.least || n > test.most {
			t.Errorf("share %v, the client says %q: %d of 200 recorded", test.sample, test.flags, n)
		}
	}
}

// Nor does a client get more by the choice of its traces' IDs, or a trace fall
// apart.
func TestChosenTraces(t *testing.T) {
	n := len(recorded(t, 0.25, func(tr *Tracer) {
		for i := range 400 {
			came := http.Header{}
			came.Set("Traceparent", fmt.Sprintf("00-%032x-b7ad6b7169203331-01", i/2+1))
			e := &proxy.Event{Start: began, Route: "/"}
			tr.Begin(came, e).End(e)
		}
	}))
	if n%2 != 0 || n < 40 || n > 180 {
		t.Errorf("%d of 400 requests recorded", n)
	}
}

// Over the wire, to a collector that reads OTLP, and to one that is away. A
// client that sends bytes which no string may have costs nobody a span.
func TestCollector(t *testing.T) {
	var mu sync.Mutex
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var q collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &q)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range q.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					got = append(got, s.Name+" "+hex.EncodeToString(s.TraceId))
				}
			}
		}
	}))
	defer server.Close()
	var log strings.Builder
	for _, endpoint := range []string{server.URL, "http://127.0.0.1:1"} {
		tr, err := New(Options{Endpoint: endpoint, Sample: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		came := http.Header{}
		came.Set("Traceparent", parent)
		e := &proxy.Event{Start: began, Route: "/", Status: 200}
		tr.Begin(came, e).End(e)
		e = &proxy.Event{Start: began, Route: "/", Path: "/\xff\xc3", Status: 200}
		tr.Begin(came, e).End(e)
		if err := tr.Close(); err != nil {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 2 || got[0] != "/ "+traceID {
		t.Errorf("the collector got %q", got)
	}
	if n := strings.Count(log.String(), "spans cannot be sent"); n != 1 {
		t.Errorf("told %d times that a collector is away:\n%s", n, log.String())
	}
}
