package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A likeness is an upstream of the demo that behaves as real APIs do, and what
// the proxy is told of it: mostly nothing but to listen.
type likeness struct {
	name   string
	is     string // what it is
	limit  string // the table that stands for [limit.steady]
	crowd  int    // how many requests at once show the difference
	direct string // what becomes of them at the upstream itself
	rests  string // until it is as good as new
	shaped string // what becomes of them through the proxy
	behave func() func(now time.Time, inFlight int) likeAnswer
}

// A likeAnswer is what a likeness answers.
type likeAnswer struct {
	status int
	fields [][2]string
	after  time.Duration // how long it takes
}

func (r *likeAnswer) say(name, format string, args ...any) {
	r.fields = append(r.fields, [2]string{name, fmt.Sprintf(format, args...)})
}

const listens = `algorithm = "leaky-bucket"
rate = "20/s" # the upstream's own word makes it slower
queue = 200
max_wait = "2m"
`

var likenesses = []likeness{
	{
		name: "github", is: "20 requests in each window of 10 s, told by X-RateLimit fields; more get 403 until it ends",
		limit: listens, crowd: 50, direct: "20 get 200, or 40 around the end of a window, and the rest 403", rests: "10 s",
		shaped: "all 50 get 200, about two a second", behave: windowLike,
	},
	{
		name: "shopify", is: "a bucket of 40 that leaks 2 a second, told by X-Shopify-Shop-Api-Call-Limit; what overflows gets 429",
		limit: listens, crowd: 60, direct: "40 get 200 and the rest 429", rests: "20 s",
		shaped: "all 60 get 200, the last ones as fast as it leaks", behave: func() func(time.Time, int) likeAnswer { return bucketLike(40, 2, shopifyFields) },
	},
	{
		name: "llm", is: "10 requests at once and then 2 a second, told by x-ratelimit-…-requests; more get 429 with retry-after-ms",
		limit: listens, crowd: 30, direct: "10 get 200 and the rest 429", rests: "5 s",
		shaped: "all 30 get 200, about two a second", behave: func() func(time.Time, int) likeAnswer { return bucketLike(10, 2, llmFields) },
	},
	{
		name: "banning", is: "12 requests in a second; more get 429, and so does everything in the next 30 s",
		limit: "algorithm = \"leaky-bucket\"\nrate = \"10/s\"\nqueue = 200\nmax_wait = \"1m\"\n", crowd: 40,
		direct: "12 get 200 and the rest 429, as does everything for 30 s", rests: "30 s",
		shaped: "all 40 get 200, ten a second", behave: banLike,
	},
	{
		name: "slots", is: "20 requests at once in 0.1 s each; with more it gets slower for all, steeply",
		limit: "algorithm = \"concurrency\"\nmax_in_flight = \"auto\" # nobody has told it how many\nmin_in_flight = 5\nqueue = 500\nmax_wait = \"1m\"\n", crowd: 200,
		direct: "the last one takes 10 s", rests: "10 s",
		shaped: "all are answered in 2 to 4 s, as it is found out how many it takes at once", behave: slotsLike,
	},
}

// windowLike counts in windows, as api.github.com does.
func windowLike() func(time.Time, int) likeAnswer {
	const window, limit = 10 * time.Second, 20
	var of time.Time
	used := 0
	return func(now time.Time, _ int) likeAnswer {
		if w := now.Truncate(window); w != of {
			of, used = w, 0
		}
		r := likeAnswer{status: http.StatusForbidden}
		if used < limit {
			used++
			r.status = http.StatusOK
		}
		r.say("X-RateLimit-Limit", "%d", limit)
		r.say("X-RateLimit-Remaining", "%d", limit-used)
		r.say("X-RateLimit-Used", "%d", used)
		r.say("X-RateLimit-Reset", "%d", of.Add(window).Unix())
		return r
	}
}

// bucketLike is a leaky bucket, which fields tells of.
func bucketLike(size, perSecond float64, fields func(r *likeAnswer, level, size, perSecond float64)) func(time.Time, int) likeAnswer {
	var level float64
	var seen time.Time
	return func(now time.Time, _ int) likeAnswer {
		level = max(0, level-now.Sub(seen).Seconds()*perSecond)
		seen = now
		r := likeAnswer{status: http.StatusTooManyRequests}
		if level+1 <= size {
			level++
			r.status = http.StatusOK
		}
		fields(&r, level, size, perSecond)
		return r
	}
}

func shopifyFields(r *likeAnswer, level, size, _ float64) {
	r.say("X-Shopify-Shop-Api-Call-Limit", "%d/%d", int(math.Ceil(level)), int(size))
	if r.status != http.StatusOK {
		r.say("Retry-After", "2.0")
	}
}

func llmFields(r *likeAnswer, level, size, perSecond float64) {
	reset := time.Duration(level / perSecond * float64(time.Second)).Round(time.Millisecond)
	r.say("x-ratelimit-limit-requests", "%d", int(size))
	r.say("x-ratelimit-remaining-requests", "%d", int(size-level))
	r.say("x-ratelimit-reset-requests", "%s", reset)
	if r.status != http.StatusOK {
		r.say("retry-after-ms", "%d", int(math.Ceil(1000*(level+1-size)/perSecond)))
	}
}

// banLike shuts whoever exceeds it out.
func banLike() func(time.Time, int) likeAnswer {
	const most, ban = 12, 30 * time.Second
	var came []time.Time
	var until time.Time
	return func(now time.Time, _ int) likeAnswer {
		for len(came) > 0 && now.Sub(came[0]) >= time.Second {
			came = came[1:]
		}
		if !now.Before(until) && len(came) == most {
			came, until = nil, now.Add(ban)
		}
		if now.Before(until) {
			r := likeAnswer{status: http.StatusTooManyRequests}
			r.say("Retry-After", "%s", strconv.Itoa(int(math.Ceil(until.Sub(now).Seconds()))))
			return r
		}
		came = append(came, now)
		return likeAnswer{status: http.StatusOK}
	}
}

// slotsLike does more at once the slower.
func slotsLike() func(time.Time, int) likeAnswer {
	const slots, quick, slowest = 20, 100 * time.Millisecond, 10 * time.Second
	return func(_ time.Time, inFlight int) likeAnswer {
		over := max(1, float64(inFlight)/slots)
		return likeAnswer{status: http.StatusOK, after: min(slowest, time.Duration(float64(quick)*over*over))}
	}
}

// A likeUpstream serves one of them.
type likeUpstream struct {
	mu       sync.Mutex
	behave   func(now time.Time, inFlight int) likeAnswer
	inFlight int
	most     int
	answered map[int]int // by status
}

func (u *likeUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.inFlight++
	u.most = max(u.most, u.inFlight)
	now := u.behave(time.Now(), u.inFlight)
	u.answered[now.status]++
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		u.inFlight--
		u.mu.Unlock()
	}()
	if now.after > 0 {
		select {
		case <-time.After(now.after):
		case <-r.Context().Done():
			return
		}
	}
	for _, f := range now.fields {
		w.Header()[f[0]] = []string{f[1]} // in the API's own letter case
	}
	w.WriteHeader(now.status)
	fmt.Fprintln(w, http.StatusText(now.status))
}

// findLikeness is the one of that name; nil for "".
func findLikeness(name string) (*likeness, error) {
	var names []string
	for i := range likenesses {
		if likenesses[i].name == name {
			return &likenesses[i], nil
		}
		names = append(names, likenesses[i].name)
	}
	if name == "" {
		return nil, nil
	}
	return nil, fmt.Errorf("--upstream-like is %q; it must be one of %s", name, strings.Join(names, ", "))
}

// config is the demo's with the limit for this upstream.
func (l *likeness) config() []byte {
	before, rest, _ := bytes.Cut(demoConfig, []byte("[limit.steady]\n"))
	_, routes, _ := bytes.Cut(rest, []byte("[[route]]\n"))
	return slices.Concat(before, []byte("[limit.steady]\n"+l.limit+"\n[[route]]\n"), routes)
}

func (l *likeness) upstream() *likeUpstream {
	return &likeUpstream{behave: l.behave(), answered: make(map[int]int)}
}

// print tells what runs where, and what to try.
func (l *likeness) print(w io.Writer, at demoAddresses) {
	crowd := func(address string) string {
		return fmt.Sprintf(`time (curl -Z --parallel-immediate --parallel-max %d -s -o /dev/null -w '%%{http_code}\n' 'http://%s/?[1-%d]' 2>/dev/null | sort | uniq -c)`, l.crowd, address, l.crowd)
	}
	fmt.Fprintf(w, `
  upstream   http://%s/   %s
  proxy      http://%s/   in front of it, with this limit:

%s
  live page  http://%s/   the queue as it fills and drains

Two things to try in another terminal, with the live page in view:

1. %d requests at once to the upstream itself: %s.

   %s

2. The same through the proxy, %s later: %s.

   %s

`, at.Upstream, l.is, at.Proxy, indent(l.limit), at.Admin, l.crowd, l.direct, crowd(at.Upstream), l.rests, l.shaped, crowd(at.Proxy))
}

func indent(text string) string {
	return "             " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n             ") + "\n"
}

// summary tells what the upstream has answered.
func (u *likeUpstream) summary(w io.Writer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(u.answered)) {
		parts = append(parts, fmt.Sprintf("%d to %d requests", status, u.answered[status]))
	}
	if len(parts) == 0 {
		parts = []string{"nothing"}
	}
	fmt.Fprintf(w, "the upstream answered %s, and had at most %d at once\n", strings.Join(parts, ", "), u.most)
}
