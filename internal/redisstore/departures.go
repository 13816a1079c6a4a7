package redisstore

import (
	"context"
	_ "embed"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

//go:embed departures.lua
var departuresBody string

const (
	// What is held in advance lasts for as long as two answers take, but for
	// shortAhead at least, so that few calls serve a high rate, and no longer
	// than longAhead.
	shortAhead = 5 * time.Millisecond
	longAhead  = 100 * time.Millisecond
	// mostAhead bounds how many are held in advance.
	mostAhead = 1024
)

// Departures are the schedule of a queue whose lines are in several proxies. They
// are safe for concurrent use, and a shaping.SharedPace.
type Departures struct {
	store *Store
	now   atomic.Pointer[departing]
	queue *shaping.Shaper // who leaves by them; nil: not known yet
}

func (d *Departures) about() (name string, down Down) {
	set := d.now.Load()
	return set.meter.Policy().Name, set.Down
}

type departing struct {
	Definition
	*terms
	before, after string
}

var _ shaping.SharedPace = (*Departures)(nil)

// NewDepartures returns the schedules of p, one for each key.
func (s *Store) NewDepartures(p shaping.Policy, def Definition) (*Departures, error) {
	d := &Departures{store: s}
	if err := d.Adopt(p, def); err != nil {
		return nil, err
	}
	return d, nil
}

// Watch has the other proxies be told how many wait in q, and with Closed those who
// wait there, when the server is lost.
func (d *Departures) Watch(q *shaping.Shaper) {
	d.queue = q
	d.store.watch(q, func(w *watched) { w.departures = d })
}

// Drop ends that.
func (d *Departures) Drop() { d.store.watch(d.queue, func(w *watched) { w.departures = nil }) }

// Adopt goes on under another rate or burst. What was granted stands.
func (d *Departures) Adopt(p shaping.Policy, def Definition) error {
	t, err := newTerms(limiter.Policy{Name: p.Name, Algorithm: limiter.TokenBucket, Rate: p.Rate, Burst: p.Burst}, 0)
	if err != nil {
		return err
	}
	d.now.Store(&departing{Definition: def, terms: t, before: d.store.options.Prefix + ":{", after: "}:" + p.Name + ":q"})
	return nil
}

func (set *departing) key(s *Store, name string) string {
	return set.before + s.hashOf(set.CountedBy, name) + set.after
}

// Ask implements shaping.SharedPace.
func (d *Departures) Ask(name string, a shaping.Ask) shaping.Departures {
	set := d.now.Load()
	key := set.key(d.store, name)
	for range opensAfter {
		g, err := d.ask(set, key, &a)
		if err == nil {
			return g
		}
		if !d.store.circuit.of(key).closed.Load() || harmless(err) {
			break
		}
	}
	p := set.meter.Policy()
	switch set.Down {
	case Closed:
		return shaping.Departures{Reason: limiter.ReasonStoreDown}
	case Local:
		p = shareOf(p, d.store.Proxies())
	}
	return shaping.Departures{Alone: probeEvery, Rate: p.Rate, Burst: p.Burst}
}

func (d *Departures) ask(set *departing, key string, a *shaping.Ask) (g shaping.Departures, err error) {
	s, p := d.store, set.meter.Policy()
	takes, full := set.spanOf(a.N), set.spanOf(p.Burst-1)
	more := "0"
	if a.More {
		more = strconv.FormatInt(set.ahead(s.offset.answers()), 10)
	}
	// Who stood in the line already may use a departure of a moment ago.
	since := min(a.Waited, shaping.Slack)
	numbers := []int64{set.fractions(), takes.us, takes.frac, since.Microseconds(), a.After.Microseconds(), full.us}
	var answer []int64
	var began, ended int64
	err = s.within(key, func(ctx context.Context, client rueidis.Client) error {
		old, moved := "", ""
		for range attempts {
			began = s.sinceBase()
			var state string
			answer, state, err = s.askDepartures(ctx, client, "ask", key, set, old, moved, numbers, s.id, more)
			ended = s.sinceBase()
			switch {
			case err != nil:
				return err
			case len(answer) == 6 && answer[1] == 1 && answer[2] >= 0 && answer[3] >= 0 && answer[3] < set.fractions():
				return nil
			case len(answer) == 2 && answer[1] == -1:
				old, moved = state, set.resume(state, answer[0])
			default:
				return errAnswer
			}
		}
		return errAnswer
	})
	if err != nil {
		return g, err
	}
	ours, trip := s.offset.note(began, ended, answer[0]*1000, s.options.Cluster)
	first := span{answer[2], answer[3]}
	start := first.minus(full, set.fractions())
	count := p.Rate.Count
	g = shaping.Departures{
		N: a.N, Rate: p.Rate, Frac: start.frac % count, Rivals: answer[4],
		First:     s.base.Add(time.Duration(start.us*1000 + start.frac/count + ours)),
		NotBefore: s.base.Add(time.Duration((answer[0]-since.Microseconds())*1000 + ours)),
		// As many as the others, so that a share does not depend on the way to the server.
		Ahead: max(set.ahead(time.Duration(trip)), min(answer[5], mostAhead)),
	}
	left := a.N
	g.Return = func(n int64) bool {
		was, is := set.plus(first, left), set.plus(first, left-n)
		if !s.returnDepartures(key, set, was, is) {
			return false
		}
		left -= n
		return true
	}
	return g, nil
}

// plus is first and n intervals.
func (set *departing) plus(first span, n int64) span {
	more := set.spanOf(n)
	first.us, first.frac = first.us+more.us, first.frac+more.frac
	if first.frac >= set.fractions() {
		first.us, first.frac = first.us+1, first.frac-set.fractions()
	}
	return first
}

// ahead is how many departures are worth holding in advance, where an answer takes
// so long.
func (set *departing) ahead(trip time.Duration) int64 {
	held := min(max(2*trip, shortAhead), longAhead)
	rate := set.meter.Policy().Rate
	n := float64(held) * float64(rate.Count) / float64(rate.Per)
	return 2 * int64(math.Ceil(min(max(1, n), mostAhead/2)))
}

// resume is a state that was left under another policy: what was granted stands,
// and the next leaves an interval of this one after it. Tokens that are there are
// kept, up to the burst.
func (set *departing) resume(state string, now int64) string {
	fresh := set.text([]int64{0, 0}, now)
	fields := strings.Fields(state)
	if len(fields) != 4 {
		return fresh
	}
	p, err := parseTag(fields[0])
	if err != nil {
		return fresh
	}
	was, err := newTerms(p, 0)
	if err != nil || was.letter != "b" {
		return fresh
	}
	us, err1 := strconv.ParseInt(fields[2], 10, 64)
	frac, err2 := strconv.ParseInt(fields[3], 10, 64)
	if err1 != nil || err2 != nil || us < 0 || us > latest || frac < 0 || frac >= was.fractions() {
		return fresh
	}
	nanos := func(s span, count int64) int64 { return s.us*1000 + s.frac/count }
	is := set.meter.Policy()
	// The next that was to leave, rounded up, in nanoseconds.
	next := nanos(span{us, frac}.minus(was.spanOf(p.Burst-1), was.fractions()), p.Rate.Count) + 1
	one := nanos(was.spanOf(1), p.Rate.Count)
	from, used := next-one, is.Burst
	if over := now*1000 - next; over >= 0 {
		// That many tokens are there.
		free := p.Burst
		if over < nanos(was.spanOf(p.Burst), p.Rate.Count) {
			n, _ := mulDiv(over, p.Rate.Count, int64(p.Rate.Per))
			free = min(free, n+1)
		}
		from, used = now*1000, is.Burst-min(free, is.Burst)
	}
	full := set.spanOf(used)
	tat := from + nanos(full, is.Rate.Count) + 1
	return set.text([]int64{max(0, tat), 0}, now)
}

// returnDepartures gives back what was granted last.
func (s *Store) returnDepartures(key string, set *departing, was, is span) (ok bool) {
	_ = s.within(key, func(ctx context.Context, client rueidis.Client) error {
		answer, _, err := s.askDepartures(ctx, client, "return", key, set, "", "", []int64{was.us, was.frac, is.us, is.frac, 0, 0}, s.id, "0")
		if err != nil {
			return err
		}
		if len(answer) != 2 {
			return errAnswer
		}
		ok = answer[1] == 1
		return nil
	})
	return ok
}

// askDepartures runs the script. The state is told if it is under another policy.
func (s *Store) askDepartures(ctx context.Context, client rueidis.Client, mode, key string, set *departing, old, moved string, numbers []int64, who, more string) (answer []int64, state string, err error) {
	args := make([]string, 0, 12)
	args = append(args, mode, set.tag, old, moved)
	for _, n := range numbers {
		args = append(args, strconv.FormatInt(n, 10))
	}
	args = append(args, who, more)
	if s.clock != nil {
		args = append(args, strconv.FormatInt(s.clock(), 10))
	}
	list, err := s.departing.Exec(ctx, client, []string{key}, args).ToArray()
	if err != nil {
		return nil, "", err
	}
	for i := range list {
		if i == 2 && answer[1] == saysForeign {
			state, err = list[i].ToString()
			return answer, state, err
		}
		n, err := list[i].ToInt64()
		if err != nil {
			return nil, "", errAnswer
		}
		answer = append(answer, n)
	}
	if len(answer) < 2 || answer[0] < earliest || answer[0] > latest {
		return nil, "", errAnswer
	}
	return answer, "", nil
}

// Forget makes the schedule of a key begin anew.
func (d *Departures) Forget(name string) error {
	key := d.now.Load().key(d.store, name)
	err := d.store.within(key, func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Del().Key(key).Build()).Error()
	})
	if err != nil {
		return errUnknown
	}
	return nil
}
