// Package tracing sends what becomes of requests to a collector of OpenTelemetry:
// a span for each, one within it for its waiting, and one for each time that it
// was sent upstream.
package tracing

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/shapeproxy/shapeproxy/proxy"
)

// Options say where spans go and of how many requests.
type Options struct {
	Endpoint string  // URL of the collector's OTLP over HTTP; without a path /v1/traces is meant
	Sample   float64 // the share of traces that is recorded, from 0 to 1
	Version  string  // of this program
	Log      *slog.Logger
}

// A Tracer is a proxy.Tracer. It keeps at most 2048 spans that are still to be
// sent, and drops what comes on top, so a collector that is slow or away costs
// no request anything. It must be closed.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

// complained is when a failure to send was last logged, in nanoseconds since
// 1970: OpenTelemetry has one handler of errors in a process.
var complained atomic.Int64

// New returns a Tracer. It connects to nobody yet.
func New(o Options) (*Tracer, error) {
	if u, err := url.Parse(o.Endpoint); err == nil && strings.Trim(u.Path, "/") == "" {
		o.Endpoint = u.JoinPath("v1", "traces").String()
	}
	exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(o.Endpoint), otlptracehttp.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now, last := time.Now().UnixNano(), complained.Load()
		if now-last > int64(time.Minute) && complained.CompareAndSwap(last, now) {
			o.Log.Warn("spans cannot be sent to the collector; check [tracing] endpoint", "error", err)
		}
	}))
	return newTracer(o, sdk.WithBatcher(exporter)), nil
}

func newTracer(o Options, out sdk.TracerProviderOption) *Tracer {
	// What a client says it samples cannot make us record more than our share.
	share := share{o.Sample, maphash.MakeSeed()}
	p := sdk.NewTracerProvider(out,
		sdk.WithSampler(sdk.ParentBased(share, sdk.WithRemoteParentSampled(share))),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "shapeproxy"), attribute.String("service.version", o.Version))),
		sdk.WithRawSpanLimits(sdk.SpanLimits{AttributeValueLengthLimit: 1024, AttributeCountLimit: 32, EventCountLimit: 1, LinkCountLimit: 1}),
	)
	return &Tracer{provider: p, tracer: p.Tracer("github.com/shapeproxy/shapeproxy")}
}

// A share records so much of all traces. Which, nobody can tell by their IDs: of
// OpenTelemetry's own sampler by ratio it is known, and a client who chooses them
// would have all that it does recorded, in the place of what others do.
type share struct {
	of   float64
	seed maphash.Seed
}

// ShouldSample implements sdk.Sampler. A trace is recorded in all of its requests
// or in none.
func (s share) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	const bits = 53 // of a float64
	result := sdk.SamplingResult{Decision: sdk.Drop, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if float64(maphash.Comparable(s.seed, p.TraceID)>>(64-bits)) < s.of*(1<<bits) {
		result.Decision = sdk.RecordAndSample
	}
	return result
}

// Description implements sdk.Sampler.
func (s share) Description() string { return fmt.Sprintf("share of %g", s.of) }

// Close sends what is still to be sent, for at most some seconds.
func (t *Tracer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Begin implements proxy.Tracer.
func (t *Tracer) Begin(came http.Header, e *proxy.Event) proxy.Span {
	ctx := context.Background()
	if came != nil {
		ctx = t.context.Extract(ctx, propagation.HeaderCarrier(came))
	}
	// Named by the route: a path would make as many names as clients can think of.
	name := "no route"
	if e.Route != "" {
		name = e.Route
	}
	s := &span{tracer: t}
	s.ctx, s.whole = t.tracer.Start(ctx, name, trace.WithTimestamp(e.Start), trace.WithSpanKind(trace.SpanKindServer))
	return s
}

// A span is one request's.
type span struct {
	tracer *Tracer
	ctx    context.Context
	whole  trace.Span
	sent   trace.Span // the last try; nil: none
}

// Sent implements proxy.Span.
func (s *span) Sent(e *proxy.Event, fields http.Header) {
	if s.sent == nil {
		s.waited(e, e.Departed)
	} else {
		s.again(e)
	}
	var ctx context.Context
	ctx, s.sent = s.tracer.tracer.Start(s.ctx, "upstream "+e.Upstream, trace.WithTimestamp(e.Departed), trace.WithSpanKind(trace.SpanKindClient))
	delete(fields, "Tracestate") // that of another traceparent
	s.tracer.context.Inject(ctx, propagation.HeaderCarrier(fields))
}

// again ends the span of the try before, after which the request has waited for
// another turn.
func (s *span) again(e *proxy.Event) {
	tried := e.Retries[len(e.Retries)-1]
	ended := tried.Departed.Add(tried.Duration)
	s.sent.SetAttributes(attribute.String("shapeproxy.retry", tried.Reason))
	if tried.Status > 0 {
		s.sent.SetAttributes(attribute.Int("http.response.status_code", tried.Status))
	}
	s.sent.End(trace.WithTimestamp(ended))
	if s.whole.IsRecording() {
		_, wait := s.tracer.tracer.Start(s.ctx, "wait", trace.WithTimestamp(ended))
		wait.End(trace.WithTimestamp(e.Departed))
	}
}

// waited is a span for the time in queues, up to an instant.
func (s *span) waited(e *proxy.Event, until time.Time) {
	if e.Waited <= 0 || !s.whole.IsRecording() {
		return
	}
	_, wait := s.tracer.tracer.Start(s.ctx, "wait", trace.WithTimestamp(until.Add(-e.Waited)))
	wait.End(trace.WithTimestamp(until))
}

// End implements proxy.Span.
func (s *span) End(e *proxy.Event) {
	ended := e.Start.Add(e.Duration)
	if s.sent != nil {
		if e.UpstreamStatus > 0 {
			s.sent.SetAttributes(attribute.Int("http.response.status_code", e.UpstreamStatus))
		}
		if e.UpstreamStatus == proxy.UpstreamError || e.UpstreamStatus >= 500 {
			s.sent.SetStatus(codes.Error, e.Error)
		}
		s.sent.End(trace.WithTimestamp(ended))
	} else {
		s.waited(e, ended)
	}
	if s.whole.IsRecording() {
		// A path may be of any bytes, and be cut within a character. With one
		// that is no UTF-8 the collector would get none of the spans that are sent
		// together.
		path := strings.ToValidUTF8(e.Path, "\ufffd")
		s.whole.SetAttributes(
			attribute.String("http.request.method", e.Method), attribute.String("url.path", path),
			attribute.String("http.route", e.Route), attribute.Int("http.response.status_code", e.Status))
		if e.Reason != "" {
			s.whole.SetAttributes(attribute.String("shapeproxy.reason", string(e.Reason)), attribute.String("shapeproxy.policy", e.Policy))
		}
		if e.Error != "" {
			s.whole.SetAttributes(attribute.String("error.type", e.Error))
		}
		if e.Status >= 500 {
			s.whole.SetStatus(codes.Error, e.Error)
		}
	}
	s.whole.End(trace.WithTimestamp(ended))
}
