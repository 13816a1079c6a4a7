package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A wire is a client of /api/events that takes one write at a time, or none.
type wire struct {
	header   http.Header
	status   int
	writes   chan string
	deadline time.Time
}

func newWire() *wire { return &wire{header: make(http.Header), writes: make(chan string)} }

func (w *wire) Header() http.Header                { return w.header }
func (w *wire) WriteHeader(status int)             { w.status = status }
func (w *wire) FlushError() error                  { return nil }
func (w *wire) SetWriteDeadline(t time.Time) error { w.deadline = t; return nil }
func (w *wire) Write(p []byte) (int, error) {
	select {
	case w.writes <- string(p):
		return len(p), nil
	case <-time.After(time.Until(w.deadline)):
		return 0, os.ErrDeadlineExceeded
	}
}

// next is the event that comes next.
func (w *wire) next(t *testing.T) snapshot {
	t.Helper()
	return parse(t, <-w.writes)
}

func parse(t *testing.T, event string) snapshot {
	t.Helper()
	data, ok := strings.CutPrefix(event, "data: ")
	data, end := strings.CutSuffix(data, "\n\n")
	var s snapshot
	if err := json.Unmarshal([]byte(data), &s); err != nil || !ok || !end || strings.Contains(data, "\n") {
		t.Fatalf("not an event (%v): %q", err, event)
	}
	return s
}

// listen lets w listen to a's events; ended is closed when the answer ended.
func listen(ctx context.Context, a *Admin, w http.ResponseWriter) (ended chan struct{}) {
	ended = make(chan struct{})
	r := httptest.NewRequest("GET", "http://localhost/api/events", nil).WithContext(ctx)
	go func() {
		defer close(ended)
		a.Handler().ServeHTTP(w, r)
	}()
	return ended
}

// run starts a's Run; stop ends it and waits for that.
func run(a *Admin) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { a.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}

func TestEventsEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		a.SetReady(true)
		stop := run(a)
		synctest.Wait()
		start := time.Now()

		w := newWire()
		ended := listen(t.Context(), a, w)
		first := w.next(t)
		if first.Time != start.UnixMilli() || !first.Ready || len(first.Limits) != 3 ||
			len(first.Upstreams) != 1 || first.Upstreams[0].Name != "billing" || first.Upstreams[0].InFlight != 3 {
			t.Errorf("first event: %+v", first)
		}
		if l := first.Limits[0]; l.Name != "fragile" || l.PerSecond != 20 || l.Depth != 12 || len(l.Samples) != 1 || l.Samples[0].Depth != 12 {
			t.Errorf("fragile at first: %+v", l)
		}

		for i := range 7 {
			a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true, Queued: i%2 == 0}})
		}
		a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonQueueFull}})
		a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonMaxWait}})
		a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Reason: limiter.ReasonClientGone}})
		a.SetReady(false)

		second := w.next(t)
		if at := time.Since(start); at != time.Second || second.Time != start.Add(time.Second).UnixMilli() || second.Ready {
			t.Errorf("second event at %v: %+v", at, second)
		}
		want := sample{
			Time: second.Time, Depth: 12, OldestWait: .55,
			Admitted: 3, Queued: 4, Rejected: 2, Gone: 1, In: 10, Out: 7,
		}
		if l := second.Limits[0]; len(l.Samples) != 1 || l.Samples[0] != want {
			t.Errorf("samples of the second event: %+v, want %+v", l.Samples, want)
		}
		if d := second.Limits[0].Decisions.totals(); d != (totals{3, 4, 2, 1}) {
			t.Errorf("totals %+v", d)
		}

		if third := w.next(t); time.Since(start) != 2*time.Second || third.Limits[0].Samples[0].Queued != 0 {
			t.Errorf("third event at %v: %+v", time.Since(start), third.Limits[0].Samples)
		}

		stop()
		<-ended
		if w.status != 200 || w.header.Get("Content-Type") != "text/event-stream" || w.header.Get("Connection") != "close" {
			t.Errorf("status %d, header %v", w.status, w.header)
		}
		if time.Since(start) != 2*time.Second {
			t.Errorf("ended after %v", time.Since(start))
		}
		if w := ask(a, "GET /api/events", ""); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("after the end: status %d", w.Code)
		}
	})
}

// The last minute is there at once, and no more than it.
func TestEventsBeginWithTheLastMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		defer run(a)()
		synctest.Wait()
		start := time.Now()
		for range 200 {
			a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "per-client", Allowed: true}, {Policy: "per-client", Allowed: true}})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(300 * time.Millisecond)

		ctx, leave := context.WithCancel(t.Context())
		w := newWire()
		ended := listen(ctx, a, w)
		for _, l := range w.next(t).Limits {
			if len(l.Samples) != 60 {
				t.Fatalf("%s has %d samples", l.Name, len(l.Samples))
			}
			for i, s := range l.Samples {
				if want := start.Add(time.Duration(141+i) * time.Second).UnixMilli(); s.Time != want {
					t.Errorf("%s: sample %d at %d, want %d", l.Name, i, s.Time, want)
				}
				if want := map[bool]float64{true: 2}[l.Name == "per-client"]; s.Admitted != want {
					t.Errorf("%s: sample %d: %v admitted a second, want %v", l.Name, i, s.Admitted, want)
				}
			}
		}
		if n := len(w.next(t).Limits[1].Samples); n != 1 {
			t.Errorf("the next event has %d samples", n)
		}
		leave()
		<-ended
		if len(a.subscribers) != 0 {
			t.Error("who has left is still subscribed")
		}
	})
}

// One who takes nothing costs nobody else an event, misses some itself, and
// loses its place in the end.
func TestSlowSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		defer run(a)()
		synctest.Wait()
		start := time.Now()
		slow, quick := newWire(), newWire()
		slowEnded := listen(t.Context(), a, slow)
		ctx, leave := context.WithCancel(t.Context())
		quickEnded := listen(ctx, a, quick)

		slow.next(t)
		for second := range 5 {
			if quick.next(t); time.Since(start) != time.Duration(second)*time.Second {
				t.Fatalf("event %d came after %v", second, time.Since(start))
			}
		}
		// The event of second 1 has waited since; that of second 4 took the place
		// of those between.
		for _, second := range []int{1, 4} {
			if got, want := slow.next(t).Time, start.Add(time.Duration(second)*time.Second).UnixMilli(); got != want {
				t.Errorf("slow one got the event of %d ms, want that of second %d", got-start.UnixMilli(), second)
			}
			synctest.Wait()
		}

		gone := false
		for !gone {
			select {
			case <-quick.writes:
			case <-slowEnded:
				gone = true
			}
		}
		// The event of second 5 was the first that was not taken in time.
		if got := time.Since(start); got != 5*time.Second+eventDeadline {
			t.Errorf("the slow one was let go after %v", got)
		}
		quick.next(t)
		leave()
		<-quickEnded
	})
}

func TestSubscribersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		stop := run(a)
		synctest.Wait()
		var ends []chan struct{}
		ctx, leave := context.WithCancel(t.Context())
		wires := make([]*wire, maxSubscribers)
		for i := range wires {
			wires[i] = newWire()
			if i == 0 {
				ends = append(ends, listen(ctx, a, wires[i]))
			} else {
				ends = append(ends, listen(t.Context(), a, wires[i]))
			}
			wires[i].next(t)
		}
		if w := ask(a, "GET /api/events", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("one too many: status %d", w.Code)
		}
		if w := ask(a, "HEAD /api/events", ""); w.Code != http.StatusOK {
			t.Errorf("HEAD takes no place: status %d", w.Code)
		}
		leave()
		<-ends[0]
		next := newWire()
		ends = append(ends, listen(t.Context(), a, next))
		next.next(t)
		stop()
		for _, ended := range ends {
			<-ended
		}
	})
}

// What a reload takes away is no longer sent, and what comes back begins anew.
func TestEventsAfterReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[[]limiter.Status]
		all := limits()
		now.Store(&all)
		a := newAdmin(func(o *Options) { o.Limits = func() []limiter.Status { return *now.Load() } })
		defer run(a)()
		synctest.Wait()
		second := func() { time.Sleep(time.Second); synctest.Wait() }
		for range 10 {
			a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true}})
		}
		second()

		without := all[1:]
		now.Store(&without)
		a.opts.Tally.Configure([]string{"per-client", "daily.quota"})
		second()
		if s := a.lastMinuteLocked(); len(s.Limits) != 2 || len(a.tracks) != 2 {
			t.Errorf("%d limits, %d tracks; want 2", len(s.Limits), len(a.tracks))
		}

		now.Store(&all)
		a.opts.Tally.Configure([]string{"fragile", "per-client", "daily.quota"})
		second()
		a.opts.Tally.Decided("/", []limiter.Decision{{Policy: "fragile", Allowed: true}})
		second()
		samples := a.lastMinuteLocked().Limits[0].Samples
		if len(samples) != 2 || samples[0].Admitted != 0 || samples[1].Admitted != 1 {
			t.Errorf("samples of the limit that is back: %+v", samples)
		}
	})
}

// A count that begins again between two ticks is no torrent.
func TestCountBeginsAgain(t *testing.T) {
	start := time.Now()
	track := &track{at: start, counted: totals{admitted: 100}}
	s := track.add(start.Add(2*time.Second), limitJSON{Decisions: decisionsJSON{Admitted: 4}})
	if s.Admitted != 2 {
		t.Errorf("%v admitted a second, want 2", s.Admitted)
	}
	if s := track.add(start.Add(2*time.Second), limitJSON{Decisions: decisionsJSON{Admitted: 9}}); s.Admitted != 0 {
		t.Errorf("%v admitted a second in no time", s.Admitted)
	}
}

// Before the first sample there is nothing to show, which is not null.
func TestEventsBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		w := newWire()
		ended := listen(ctx, newAdmin(nil), w)
		if got, want := <-w.writes, "data: {\"t\":0,\"ready\":false,\"limits\":[],\"upstreams\":[]}\n\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		leave()
		<-ended
	})
}

// pipes is a listener on in-memory connections, which virtual time can wait
// for.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9090} }

// A server whose write time-out is far shorter than a stream lives, and whose
// Shutdown waits for every answer: the stream outlives the one and does not
// hold up the other.
func TestEventsThroughAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmin(nil)
		stop := run(a)
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: a.Handler(), WriteTimeout: 3 * time.Second}
		served := make(chan error)
		go func() { served <- server.Serve(l) }()

		client := &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				l.conns <- far
				return near, nil
			},
		}}
		res, err := client.Get("http://127.0.0.1:9090/api/events")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body := bufio.NewReader(res.Body)
		var event strings.Builder
		events := 0
		for events < 20 {
			line, err := body.ReadString('\n')
			if err != nil {
				t.Fatalf("after %d events: %v", events, err)
			}
			if event.WriteString(line); line == "\n" {
				parse(t, event.String())
				event.Reset()
				events++
			}
		}

		start := time.Now()
		shut := make(chan error)
		go func() { shut <- server.Shutdown(t.Context()) }()
		go func() { time.Sleep(time.Second / 2); stop() }()
		if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
			t.Errorf("at the end: %q, %v", rest, err)
		}
		if since := time.Since(start); since != time.Second/2 {
			t.Errorf("the stream ended %v after Shutdown, want when Run did", since)
		}
		if err := <-shut; err != nil {
			t.Error(err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Error(err)
		}
		client.CloseIdleConnections()
	})
}
