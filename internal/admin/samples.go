package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

const (
	sampleEvery = time.Second
	samplesKept = 60 // the last minute
)

// A snapshot is one event of /api/events: how things stand. The first event of
// a connection has the samples of the last minute, every further one those
// that are new.
type snapshot struct {
	Time      int64          `json:"t"` // Unix time in milliseconds
	Ready     bool           `json:"ready"`
	Limits    []liveLimit    `json:"limits"`
	Upstreams []liveUpstream `json:"upstreams"`
}

type liveLimit struct {
	limitJSON
	PerSecond float64    `json:"per_second"`             // rate, or limit ÷ window, to draw beside the samples
	Waits     *waitsJSON `json:"wait_seconds,omitempty"` // of a queue, in the last minute
	Samples   []sample   `json:"samples"`
}

type liveUpstream struct {
	Name      string                    `json:"name"`
	InFlight  int64                     `json:"in_flight"`
	Breaker   string                    `json:"breaker,omitempty"` // closed, half-open, open; if there is one
	Addresses []liveAddress             `json:"addresses"`
	Refused   map[limiter.Reason]uint64 `json:"refused"` // since the start, by the reasons that occurred
}

type liveAddress struct {
	Address  string `json:"address"`
	Healthy  bool   `json:"healthy"`
	InFlight int64  `json:"in_flight"`
}

func liveUpstreamOf(u proxy.UpstreamStatus) liveUpstream {
	l := liveUpstream{Name: u.Name, InFlight: u.InFlight, Addresses: make([]liveAddress, len(u.Addresses)), Refused: make(map[limiter.Reason]uint64)}
	if u.Guarded {
		l.Breaker = u.Breaker.String()
	}
	for i, a := range u.Addresses {
		l.Addresses[i] = liveAddress(a)
	}
	for _, r := range u.Refused {
		if r.Count > 0 {
			l.Refused[r.Reason] = r.Count
		}
	}
	return l
}

// A sample is one second of a limit: its queue at the end of it, and decisions
// a second in the time since the sample before.
type sample struct {
	Time       int64   `json:"t"` // Unix time in milliseconds
	Depth      int     `json:"depth"`
	OldestWait float64 `json:"oldest_wait_seconds"`
	Admitted   float64 `json:"admitted"`
	Queued     float64 `json:"queued"`
	Rejected   float64 `json:"rejected"`
	Gone       float64 `json:"gone"`

	// What came, and what was let go. Who waits has come and is not decided yet, so
	// In is about right where a request waits in several queues.
	In  float64 `json:"in"`
	Out float64 `json:"out"`
}

// A track is what is remembered of one limit between ticks.
type track struct {
	samples []sample // oldest first, at most samplesKept
	at      time.Time
	counted totals // at that time
	depth   int    // at that time
	waits   waitMinute
}

type totals struct{ admitted, queued, rejected, gone uint64 }

func (d decisionsJSON) totals() totals {
	t := totals{admitted: d.Admitted, queued: d.Queued, gone: d.Gone}
	for _, n := range d.Rejected {
		t.rejected += n
	}
	return t
}

// Run takes a sample each second and sends it to whoever listens to
// /api/events, until ctx ends; then it ends their answers. It is to be called
// once.
func (a *Admin) Run(ctx context.Context) {
	defer a.endEvents()
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		a.tick(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (a *Admin) tick(now time.Time) {
	// Asked before the lock, so that a slow answer holds up nobody.
	statuses, upstreams := a.opts.Limits(), a.opts.Upstreams()
	next := snapshot{
		Time:      now.UnixMilli(),
		Ready:     a.unready() == "",
		Limits:    make([]liveLimit, len(statuses)),
		Upstreams: make([]liveUpstream, len(upstreams)),
	}
	for i, u := range upstreams {
		next.Upstreams[i] = liveUpstreamOf(u)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	tracks := make(map[string]*track, len(statuses)) // those of removed limits end here
	for i, s := range statuses {
		l := describe(s, a.opts.Tally.decisions(s.Name))
		t := a.tracks[s.Name]
		if t == nil {
			t = &track{at: now, counted: l.Decisions.totals(), depth: l.Depth}
		}
		tracks[s.Name] = t
		live := liveLimit{limitJSON: l, PerSecond: perSecond(s), Samples: []sample{t.add(now, l)}}
		if s.Queue > 0 {
			waits := a.opts.Tally.waits(s.Name)
			t.waits.add(&waits)
			live.Waits = t.waits.percentiles()
		}
		next.Limits[i] = live
	}
	a.tracks, a.last = tracks, next
	if len(a.subscribers) > 0 {
		a.sendLocked(event(next))
	}
}

func (t *track) add(now time.Time, l limitJSON) sample {
	total := l.Decisions.totals()
	rate := func(now, before uint64, elapsed time.Duration) float64 {
		if now < before { // the limit was removed, and is back
			before = 0
		}
		if elapsed <= 0 {
			return 0
		}
		return float64(now-before) / elapsed.Seconds()
	}
	elapsed := now.Sub(t.at)
	s := sample{
		Time: now.UnixMilli(), Depth: l.Depth, OldestWait: l.OldestWait,
		Admitted: rate(total.admitted, t.counted.admitted, elapsed),
		Queued:   rate(total.queued, t.counted.queued, elapsed),
		Rejected: rate(total.rejected, t.counted.rejected, elapsed),
		Gone:     rate(total.gone, t.counted.gone, elapsed),
	}
	s.Out = s.Admitted + s.Queued
	s.In = s.Out + s.Rejected + s.Gone
	if elapsed > 0 && !l.DryRun { // in a dry run nobody waits to be decided
		s.In = max(0, s.In+float64(l.Depth-t.depth)/elapsed.Seconds())
	}
	if len(t.samples) == samplesKept {
		t.samples = slices.Delete(t.samples, 0, 1)
	}
	t.samples = append(t.samples, s)
	t.at, t.counted, t.depth = now, total, l.Depth
	return s
}

func perSecond(s limiter.Status) float64 {
	count, per := s.Rate.Count, s.Rate.Per
	if s.Algorithm.Windowed() {
		count, per = s.Limit, s.Window
	}
	if per <= 0 {
		return 0
	}
	return float64(count) / per.Seconds()
}

// lastMinuteLocked is the last snapshot with every sample that is kept.
func (a *Admin) lastMinuteLocked() snapshot {
	s := a.last
	s.Limits = slices.Clone(s.Limits)
	for i := range s.Limits {
		s.Limits[i].Samples = slices.Clone(a.tracks[s.Limits[i].Name].samples)
	}
	return s
}

// event is s as a server-sent event.
func event(s snapshot) []byte {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain data of ours; without NaN, as elapsed is above zero
	}
	return slices.Concat([]byte("data: "), data, []byte("\n\n"))
}
