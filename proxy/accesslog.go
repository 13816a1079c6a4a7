package proxy

import (
	"context"
	"log/slog"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// AccessLog is an Observer that writes one line a request. Durations are in
// seconds; there is no query in it, as queries hold secrets.
type AccessLog struct{ Log *slog.Logger }

// Decided implements Observer.
func (AccessLog) Decided(string, []limiter.Decision) {}

// Done implements Observer.
func (a AccessLog) Done(e *Event) {
	attrs := make([]slog.Attr, 0, 24)
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	seconds := func(name string, d time.Duration) {
		attrs = append(attrs, slog.Float64(name, d.Seconds()))
	}
	client := "unknown"
	if e.Client.IsValid() {
		client = e.Client.String()
	}
	attrs = append(attrs,
		slog.String("client", client), slog.String("proto", e.Proto), slog.String("method", e.Method),
		slog.String("host", e.Host), slog.String("path", e.Path), slog.Int("status", e.Status))
	add("route", e.Route)
	add("reason", string(e.Reason))
	add("policy", e.Policy)
	add("error", e.Error)
	add("dry_run", e.DryRun)
	seconds("duration", e.Duration)
	seconds("waited", e.Waited)
	if e.Upstream != "" {
		attrs = append(attrs, slog.String("upstream", e.Upstream), slog.Time("departed", e.Departed))
		switch e.UpstreamStatus {
		case 0:
		case UpstreamError:
			add("upstream_status", "error")
		default:
			attrs = append(attrs, slog.Int("upstream_status", e.UpstreamStatus))
		}
		seconds("upstream_duration", e.UpstreamDuration)
		if n := e.Attempt(); n > 1 {
			attrs = append(attrs, slog.Int("attempt", n))
		}
	}
	attrs = append(attrs, slog.Int64("received", e.Received), slog.Int64("sent", e.Sent))
	a.Log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}

// Observers tells several Observers, in order.
type Observers []Observer

// Decided implements Observer.
func (os Observers) Decided(route string, decisions []limiter.Decision) {
	for _, o := range os {
		o.Decided(route, decisions)
	}
}

// Done implements Observer.
func (os Observers) Done(e *Event) {
	for _, o := range os {
		o.Done(e)
	}
}
