package replay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// stats are what is counted while a log is replayed.
type stats struct {
	began, last int64 // first and last arrival
	bin         int64 // length of one bin of the timelines
	limits      []*limitStats
	routes      []*routeStats
	upstreams   []*upstreamStats
	total       int
	noRoute     int
	malformed   int
}

// bins is how many bins a timeline has from the first arrival to the last, and
// maxBins how many in all: those who wait leave after the last arrival.
const (
	bins    = 600
	maxBins = 10 * bins
)

// niceBins are lengths of bins that a reader can name.
var niceBins = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

func newStats(began, last int64) *stats {
	s := &stats{began: began, last: last}
	for _, d := range niceBins {
		if s.bin = int64(d); (last-began)/s.bin < bins {
			return s
		}
	}
	for (last-began)/s.bin >= bins {
		s.bin *= 2
	}
	return s
}

func (s *stats) unrouted(bad bool) {
	if bad {
		s.malformed++
	} else {
		s.noRoute++
	}
}

// at is the bin of an instant; it is not ok past the last bin.
func (s *stats) at(now int64) (int, bool) {
	i := (now - s.began) / s.bin
	return int(min(i, maxBins-1)), i < maxBins
}

// limitStats are of one limit.
type limitStats struct {
	of    *stats
	conf  *config.Limit
	asked int
	once  int // admitted at once
	later int // after waiting
	no    map[limiter.Reason]int
	waits waits
	deep  int // how many wait now, over all keys
	peak  int // of deep
	long  int // the greatest depth of one key's queue
	keys  map[string]*keyStats
	line  []bin
}

// A keyStats is what one key asked and got.
type keyStats struct{ Offered, Rejected int }

// A bin is one stretch of a timeline.
type bin struct {
	offered, released, rejected int
	depth                       int   // the greatest
	wait                        int64 // the longest of those who were released
}

func (s *stats) limit(c *config.Limit) *limitStats {
	l := &limitStats{of: s, conf: c, no: make(map[limiter.Reason]int), keys: make(map[string]*keyStats)}
	s.limits = append(s.limits, l)
	return l
}

// at is the bin of an instant; what comes past the last is kept in none.
func (l *limitStats) at(now int64) *bin {
	i, ok := l.of.at(now)
	if !ok {
		return new(bin)
	}
	for len(l.line) <= i {
		l.line = append(l.line, bin{depth: l.deep})
	}
	return &l.line[i]
}

func (l *limitStats) key(name string) *keyStats {
	k := l.keys[name]
	if k == nil {
		k = new(keyStats)
		l.keys[name] = k
	}
	return k
}

func (l *limitStats) ask(now int64, key string) {
	l.asked++
	l.key(key).Offered++
	l.at(now).offered++
}

func (l *limitStats) admitted(now int64) {
	l.once++
	l.waits.add(0)
	l.at(now).released++
}

// queued counts one that waits or waited so long; in a dry run it would have.
func (l *limitStats) queued(now, waited int64) {
	l.later++
	l.waits.add(waited)
	b := l.at(now)
	b.released++
	b.wait = max(b.wait, waited)
}

func (l *limitStats) rejected(now int64, key string, why limiter.Reason) {
	l.no[why]++
	l.key(key).Rejected++
	l.at(now).rejected++
}

// decided counts an answer that is given at once.
func (l *limitStats) decided(now int64, key string, why limiter.Reason) {
	l.ask(now, key)
	if why == limiter.ReasonNone {
		l.admitted(now)
	} else {
		l.rejected(now, key, why)
	}
}

// depth is told how many wait in one line, and in all of the limit's.
func (l *limitStats) depth(now int64, line, n int) {
	l.long = max(l.long, line)
	if n == l.deep {
		return
	}
	l.at(now) // bins that have passed meanwhile were as deep as before
	l.deep = n
	l.peak = max(l.peak, n)
	b := l.at(now)
	b.depth = max(b.depth, n)
}

// busiest are the keys that asked most, and of those that asked as much the
// ones that were refused most.
func (l *limitStats) busiest(n int) []string {
	names := slices.Collect(maps.Keys(l.keys))
	slices.SortFunc(names, func(a, b string) int {
		x, y := l.keys[a], l.keys[b]
		return cmp.Or(cmp.Compare(y.Offered, x.Offered), cmp.Compare(y.Rejected, x.Rejected), cmp.Compare(a, b))
	})
	return names[:min(n, len(names))]
}

// routeStats are of one route.
type routeStats struct {
	Match     string
	Offered   int
	Forwarded int
	no        map[limiter.Reason]int
	waits     waits
}

func (s *stats) route(match string) *routeStats {
	r := &routeStats{Match: match, no: make(map[limiter.Reason]int)}
	s.routes = append(s.routes, r)
	return r
}

func (r *routeStats) reject(why limiter.Reason) { r.no[why]++ }

// upstreamStats are of one upstream.
type upstreamStats struct {
	name   string
	sent   int
	peak   int     // the most that left in any second
	recent []int64 // what left within the last second, oldest first
}

func (s *stats) upstream(name string) *upstreamStats {
	for _, u := range s.upstreams {
		if u.name == name {
			return u
		}
	}
	u := &upstreamStats{name: name}
	s.upstreams = append(s.upstreams, u)
	return u
}

func (u *upstreamStats) depart(now int64) {
	u.sent++
	old := 0
	for old < len(u.recent) && u.recent[old] <= now-int64(time.Second) {
		old++
	}
	u.recent = append(u.recent[old:], now)
	u.peak = max(u.peak, len(u.recent))
}

// waits are how long requests waited; most do not.
type waits struct {
	none int
	some []int64
}

func (w *waits) add(d int64) {
	if d <= 0 {
		w.none++
	} else {
		w.some = append(w.some, d)
	}
}

// A Wait is how long requests waited that were let go, in seconds: those who did
// not have to are counted with 0.
type Wait struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// wait sorts what was added.
func (w *waits) wait() Wait {
	slices.Sort(w.some)
	n := w.none + len(w.some)
	at := func(percent int) float64 {
		if n == 0 {
			return 0
		}
		// The nearest rank: the least wait that so many had not to exceed.
		i := (n*percent+99)/100 - 1 - w.none
		if i < 0 {
			return 0
		}
		return time.Duration(w.some[i]).Seconds()
	}
	return Wait{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}
