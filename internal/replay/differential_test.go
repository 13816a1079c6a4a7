package replay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/assemble"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// everything has limits of every kind and form, alone and together. Those who are
// let go at one instant come to the next queue in any order, so in the dry run, to
// which some come behind others, all cost the same.
const everything = `
[server]
trusted_proxies = ["198.51.100.0/24"]

[limit.bucket]
algorithm = "token-bucket"
rate = "3/s"
burst = 4
key = "client-ip"
cost = 2

[limit.leaky]
algorithm = "leaky-bucket"
rate = "9/s"
burst = 3
dry_run = true

[limit.window]
algorithm = "fixed-window"
limit = 25
window = "3s"

[limit.log]
algorithm = "sliding-window-log"
limit = 30
window = "2s"
key = "header:X-Key"
missing_key = "skip"
cost = "header:X-Cost"

[limit.counter]
algorithm = "sliding-window-counter"
limit = 40
window = "4s"

[limit.places]
algorithm = "concurrency"
max_in_flight = 9
reserve = { high = 0.3 }

[limit.queue]
algorithm = "leaky-bucket"
rate = "7/s"
queue = 12
max_wait = "1500ms"
fair_by = "client-ip"
promote_after = "500ms"
reserve = { high = 0.25 }
cost = "header:X-Cost"

[limit.perkey]
algorithm = "token-bucket"
rate = "2/s"
burst = 2
queue = 3
max_in_flight = 2
reserve = { high = 0.5 }
key = "client-ip"
cost = "header:X-Cost"

[limit.dry]
algorithm = "leaky-bucket"
rate = "5/s"
queue = 6
dry_run = true
cost = 2

[upstream.u]
url = "http://127.0.0.1:1"

[[route]]
match = "/a"
upstream = "u"
limits = ["queue", "bucket", "window", "places"]
priority = "high"

[[route]]
match = "/b"
upstream = "u"
limits = ["leaky", "queue", "perkey", "dry"]
priority = "low"

[[route]]
match = "/c"
upstream = "u"
limits = ["log", "counter", "dry", "perkey", "places"]

[[route]]
match = "/d"
upstream = "u"
`

// A step is one request of a random trace.
type step struct {
	at      time.Duration
	client  string
	path    string
	key     string
	cost    string
	service time.Duration
}

// trace has requests in crowds and alone, no two of them at one instant.
func trace(random *rand.Rand, n int) []step {
	steps := make([]step, n)
	at := time.Duration(0)
	for i := range steps {
		if at++; random.IntN(3) == 0 {
			at += time.Duration(random.Int64N(int64(400 * time.Millisecond)))
		}
		steps[i] = step{
			at: at, client: fmt.Sprintf("198.51.100.%d", random.IntN(4)+1), path: "/" + string("abcde"[random.IntN(5)]),
			service: time.Duration(random.Int64N(int64(time.Second))),
		}
		if random.IntN(2) == 0 {
			steps[i].key = string("xy"[random.IntN(2)])
		}
		if random.IntN(3) == 0 {
			steps[i].cost = string("01235"[random.IntN(5)])
		}
	}
	return steps
}

// A book is what was decided, in words that both sides can write.
type book struct {
	mu    sync.Mutex
	count map[string]int
	waits map[string][]int64
}

func newBook() *book { return &book{count: make(map[string]int), waits: make(map[string][]int64)} }

func (b *book) Decided(_ string, all []limiter.Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range all {
		if d.Peeked {
			continue
		}
		b.count[fmt.Sprintf("%s %s %s", d.Policy, d.Outcome(), d.Reason)]++
		if d.Queued && d.Allowed {
			b.waits[d.Policy] = append(b.waits[d.Policy], int64(d.Waited))
		}
	}
}

func (*book) Done(*proxy.Event) {}

// of are the same words of a replay.
func of(s *stats) *book {
	b := newBook()
	add := func(name, outcome string, reason limiter.Reason, n int) {
		if n > 0 {
			b.count[fmt.Sprintf("%s %s %s", name, outcome, reason)] += n
		}
	}
	for _, l := range s.limits {
		add(l.conf.Name, "admitted", "", l.once)
		add(l.conf.Name, "queued", "", l.later)
		for reason, n := range l.no {
			add(l.conf.Name, "rejected", reason, n)
		}
		if len(l.waits.some) > 0 {
			b.waits[l.conf.Name] = l.waits.some
		}
	}
	return b
}

func (b *book) compare(t *testing.T, live *book) {
	t.Helper()
	for _, word := range slices.Sorted(maps.Keys(live.count)) {
		if live.count[word] != b.count[word] {
			t.Errorf("%s: %d live, %d replayed", word, live.count[word], b.count[word])
		}
	}
	for word, n := range b.count {
		if live.count[word] == 0 {
			t.Errorf("%s: none live, %d replayed", word, n)
		}
	}
	for name, waits := range live.waits {
		waits = slices.DeleteFunc(waits, func(d int64) bool { return d == 0 })
		slices.Sort(waits)
		slices.Sort(b.waits[name])
		if !slices.Equal(waits, b.waits[name]) {
			t.Errorf("%s: the waits differ: %d live, %d replayed", name, len(waits), len(b.waits[name]))
		}
	}
}

// replayed is the trace as a log, begun at that instant.
func replayed(t *testing.T, began time.Time, steps []step, text string) *book {
	t.Helper()
	var log strings.Builder
	for _, s := range steps {
		at := began.Add(s.at)
		fmt.Fprintf(&log, "%d.%09d|%s|GET|%s|%.9f|%s|%s\n", at.Unix(), at.Nanosecond(), s.client, s.path, s.service.Seconds(), s.key, s.cost)
	}
	l := read(t, log.String(), Options{Format: "$msec|$remote_addr|$request_method|$request_uri|$upstream_response_time|$http_x_key|$http_x_cost"}, load(t, text))
	r, err := l.Run(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return of(r.stats)
}

// Live requests wait by alarms and goroutines, replayed ones in a heap of
// events: both must decide the same, to the nanosecond.
func TestReplayDecidesAsTheLimitsDo(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			steps := trace(rand.New(rand.NewPCG(seed, 1)), 400)
			live := newBook()
			var began time.Time
			synctest.Test(t, func(t *testing.T) {
				began = time.Now()
				system := assemble.New(proxy.Observers{}, slog.New(slog.DiscardHandler))
				defer system.Close()
				if err := system.Apply(load(t, everything)); err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for _, s := range steps {
					time.Sleep(time.Until(began.Add(s.at)))
					all.Go(func() { s.ask(t, system, live) })
				}
				all.Wait()
			})
			replayed(t, began, steps, everything).compare(t, live)
		})
	}
}

// ask asks the limits of the step's route as the proxy does, and is under way
// for as long as the step says.
func (s step) ask(t *testing.T, system *assemble.System, live *book) {
	r := httptest.NewRequest(http.MethodGet, s.path, nil)
	r.RemoteAddr = s.client + ":1234"
	s.head(r.Header)
	route, keys, err := system.Proxy.Find(r)
	if err != nil || route.Limiter == nil {
		return
	}
	p, err := route.Limiter.Acquire(context.Background(), limiter.Request{Keys: keys})
	if err != nil {
		t.Error(err)
	}
	live.Decided(route.Match, p.All)
	if p.Allowed {
		time.Sleep(s.service.Truncate(time.Nanosecond))
		p.Release()
	}
}

// head puts what the step says into the header of a request.
func (s step) head(h http.Header) {
	for name, value := range map[string]string{"X-Key": s.key, "X-Cost": s.cost} {
		if value != "" {
			h.Set(name, value)
		}
	}
}

// The same through the whole proxy, before an upstream that is not there: it
// answers 502 at the instant of the release.
func TestReplayDecidesAsTheProxyDoes(t *testing.T) {
	text := strings.ReplaceAll(everything, "max_in_flight = 2\n", "")
	text = strings.ReplaceAll(text, `, "places"`, "")
	steps := trace(rand.New(rand.NewPCG(99, 1)), 400)
	for i := range steps {
		steps[i].service = 0
	}
	live := newBook()
	var began time.Time
	synctest.Test(t, func(t *testing.T) {
		began = time.Now()
		system := assemble.New(live, slog.New(slog.DiscardHandler))
		defer system.Close()
		if err := system.Apply(load(t, text)); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, s := range steps {
			time.Sleep(time.Until(began.Add(s.at)))
			all.Go(func() {
				r := httptest.NewRequest(http.MethodGet, s.path, nil)
				r.RemoteAddr = s.client + ":1234"
				s.head(r.Header)
				system.Proxy.ServeHTTP(httptest.NewRecorder(), r)
			})
		}
		all.Wait()
	})
	replayed(t, began, steps, text).compare(t, live)
}
