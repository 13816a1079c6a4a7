package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// A Spread says where in its second a request came of which the log tells no
// more than the second.
type Spread string

// Spreads.
const (
	Even   Spread = "even"   // those of one second follow each other at equal distances
	Random Spread = "random" // anywhere, each for itself
	Start  Spread = "start"  // all at its beginning: the worst that may have been
)

// Options say how logs are read.
type Options struct {
	Format      string        // of the lines, as NGINX's log_format or Apache's LogFormat has it; empty: found out
	Spread      Spread        // empty: Even
	Seed        uint64        // of Random
	Host        string        // of requests whose log does not tell it
	ServiceTime time.Duration // what the upstream needs for a request whose log does not tell it
}

// A Log is the requests of some logs in order of time, and what each of some
// configurations asks about them.
type Log struct {
	Tally  Tally
	plans  []*plan
	began  int64
	spread bool // stamps without fractions were spread
	moved  int  // how many lines were not in order
	known  bool // a service time was given

	arrivals [][]arrival // by configuration
}

// stamped is one request while logs are read.
type stamped struct {
	at      int64
	order   int32 // in the logs
	whole   bool
	service int64
	asks    [maxConfigs]*ask
}

const maxConfigs = 2

// Read reads logs for up to two configurations. It keeps some 60 bytes for each
// request, and each key once.
func Read(sources []Source, o Options, configs ...*config.Config) (*Log, error) {
	var layout *format
	if o.Format != "" {
		var err error
		if layout, err = newFormat(o.Format); err != nil {
			return nil, err
		}
	}
	if len(configs) > maxConfigs {
		return nil, fmt.Errorf("at most %d configurations can be compared", maxConfigs)
	}
	l := &Log{known: o.ServiceTime > 0}
	for _, c := range configs {
		p, err := newPlan(c)
		if err != nil {
			return nil, err
		}
		defer p.close()
		l.plans = append(l.plans, p)
	}
	var all []stamped
	err := each(sources, layout, &l.Tally, func(r *record) {
		at := r.arrived()
		s := stamped{at: at.UnixNano(), order: int32(len(all)), whole: r.whole, service: int64(r.service)}
		// What the stamp's second leaves open, a duration does not tell.
		if s.whole {
			s.at -= int64(at.Nanosecond())
		}
		if r.service < 0 {
			s.service = int64(o.ServiceTime)
		}
		for i, p := range l.plans {
			s.asks[i] = p.of(r, cmp.Or(o.Host, "localhost"))
		}
		all = append(all, s)
	})
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(all); i++ {
		if all[i].at < all[i-1].at {
			l.moved++
		}
	}
	slices.SortFunc(all, func(a, b stamped) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order)) })
	if err := l.place(all, o); err != nil {
		return nil, err
	}
	if l.began = all[0].at; l.began < 0 {
		return nil, errors.New("the log begins before 1970")
	}
	l.arrivals = make([][]arrival, len(configs))
	for i := range configs {
		l.arrivals[i] = make([]arrival, len(all))
		for n, s := range all {
			l.arrivals[i][n] = arrival{at: s.at, ask: s.asks[i], service: s.service}
		}
	}
	return l, nil
}

// place gives the requests of which only the second is known a place in it.
func (l *Log) place(all []stamped, o Options) error {
	random := rand.New(rand.NewPCG(o.Seed, 0))
	for i := 0; i < len(all); {
		n := i
		for n < len(all) && all[n].whole && all[n].at == all[i].at {
			n++
		}
		if n == i {
			i++
			continue
		}
		l.spread = true
		for k := i; k < n; k++ {
			switch o.Spread {
			case Even, "":
				all[k].at += int64(k-i) * int64(time.Second) / int64(n-i)
			case Random:
				all[k].at += random.Int64N(int64(time.Second))
			case Start:
			default:
				return fmt.Errorf("a spread is %s, %s or %s", Even, Random, Start)
			}
		}
		i = n
	}
	slices.SortStableFunc(all, func(a, b stamped) int { return cmp.Compare(a.at, b.at) })
	return nil
}

// Run replays the log under one of the configurations it was read for. A change
// of the limits, as a search for better ones makes it, is made by edit.
func (l *Log) Run(which int, edit func(*config.Limit)) (*Result, error) {
	p := l.plans[which]
	c := *p.config
	c.Limits = slices.Clone(c.Limits)
	if edit != nil {
		for i := range c.Limits {
			edit(&c.Limits[i])
		}
	}
	arrivals := l.arrivals[which]
	s := newStats(l.began, arrivals[len(arrivals)-1].at)
	// Routes of the copy are those of the original, which the asks point to.
	e, err := newEngine(&c, l.began, s)
	if err != nil {
		return nil, err
	}
	e.run(arrivals)
	return &Result{log: l, plan: p, config: &c, stats: s, ended: e.now}, nil
}

// A Result is what became of a log under one configuration.
type Result struct {
	log    *Log
	plan   *plan
	config *config.Config
	stats  *stats
	ended  int64
}
