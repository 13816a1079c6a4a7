package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// An Aim is what a search for better numbers is to reach.
type Aim struct {
	Rate limiter.Rate  // what the upstream takes; zero: what the configuration says
	Wait time.Duration // the longest that anybody is to wait; 0: max_wait of the configuration
}

// A Suggestion is one way to write a limit, and what the log would have had of
// it.
type Suggestion struct {
	Limit    string            `json:"limit"`
	What     string            `json:"what"`
	Fields   map[string]string `json:"fields"`
	Offered  int               `json:"offered"`
	Rejected int               `json:"rejected"`
	Wait     Wait              `json:"wait"`

	names []string // of the fields, in the order of the file
}

// Suggest searches, for each limit by itself, for the smallest numbers that
// refuse fewest of the log. The other limits stay as they are. It calls step
// before each limit.
func (l *Log) Suggest(which int, aim Aim, step func(limit string)) ([]Suggestion, error) {
	var all []Suggestion
	p := l.plans[which]
	for _, conf := range p.config.Limits {
		if !slices.ContainsFunc(p.config.Routes, func(r config.Route) bool { return slices.Contains(r.Limits, conf.Name) }) {
			continue
		}
		step(conf.Name)
		s := &search{log: l, which: which, conf: conf, wait: cmp.Or(aim.Wait, conf.MaxWait)}
		if err := s.search(aim); err != nil {
			return nil, fmt.Errorf("limit %q: %w", conf.Name, err)
		}
		all = append(all, s.found...)
	}
	return all, nil
}

// A search is for the numbers of one limit.
type search struct {
	log   *Log
	which int
	conf  config.Limit
	wait  time.Duration
	found []Suggestion
}

// A numbers sets some of a limit's.
type numbers struct {
	rate  string // empty: as it is
	burst int64
	limit int64
	queue int
	wait  time.Duration
	slots int
}

// try replays the log with these numbers.
func (s *search) try(n numbers) (*limitStats, error) {
	rate := s.conf.Rate
	if n.rate != "" {
		var err error
		if rate, err = limiter.ParseRate(n.rate); err != nil {
			return nil, err
		}
	}
	r, err := s.log.Run(s.which, func(c *config.Limit) {
		if c.Name != s.conf.Name {
			return
		}
		c.Rate = rate
		c.Burst = cmp.Or(n.burst, c.Burst)
		c.Limit = cmp.Or(n.limit, c.Limit)
		c.Queue = cmp.Or(n.queue, c.Queue)
		c.MaxWait = cmp.Or(n.wait, c.MaxWait)
		c.MaxInFlight = cmp.Or(n.slots, c.MaxInFlight)
	})
	if err != nil {
		return nil, err
	}
	for _, l := range r.stats.limits {
		if l.conf.Name == s.conf.Name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("is not in the configuration")
}

// propose notes what the log would have had of these numbers.
func (s *search) propose(what string, n numbers, l *limitStats) {
	out := Suggestion{
		Limit: s.conf.Name, What: what, Offered: l.asked, Rejected: l.refused(), Wait: l.waits.wait(),
		Fields: make(map[string]string),
	}
	set := func(name, value string) {
		out.Fields[name] = value
		out.names = append(out.names, name)
	}
	if s.conf.Rate.Count > 0 {
		set("rate", strconv.Quote(cmp.Or(n.rate, s.conf.Rate.String())))
		if s.conf.Algorithm == limiter.TokenBucket || s.conf.Queue == 0 {
			set("burst", strconv.FormatInt(cmp.Or(n.burst, s.conf.Burst), 10))
		}
	}
	if s.conf.Algorithm.Windowed() {
		set("limit", strconv.FormatInt(cmp.Or(n.limit, s.conf.Limit), 10))
	}
	if s.conf.MaxInFlight > 0 {
		set("max_in_flight", strconv.Itoa(cmp.Or(n.slots, s.conf.MaxInFlight)))
	}
	if s.conf.Queue > 0 {
		set("queue", strconv.Itoa(cmp.Or(n.queue, s.conf.Queue)))
		set("max_wait", strconv.Quote(limiter.FormatDuration(cmp.Or(n.wait, s.conf.MaxWait))))
	}
	s.found = append(s.found, out)
}

func (l *limitStats) refused() (n int) {
	for _, one := range l.no {
		n += one
	}
	return n
}

func (s *search) search(aim Aim) error {
	asIs, err := s.try(numbers{})
	if err != nil {
		return err
	}
	s.propose("as it is", numbers{}, asIs)
	if asIs.asked == 0 {
		return nil
	}
	base := numbers{wait: s.wait}
	if s.conf.Queue == 0 {
		base.wait = 0
	}
	if aim.Rate.Count > 0 && s.conf.Rate.Count > 0 {
		base.rate = aim.Rate.String()
	}
	if s.conf.Queue > 0 {
		if err := s.queue("the smallest queue that refuses fewest", base); err != nil {
			return err
		}
	}
	switch {
	case s.conf.Rate.Count > 0:
		if s.conf.Queue == 0 {
			if err := s.smallest("the smallest burst that refuses nobody", asIs.asked, func(n *numbers, x int) { n.burst = int64(x) }, base); err != nil {
				return err
			}
		}
		if aim.Rate.Count == 0 {
			return s.rate(base)
		}
	case s.conf.Algorithm.Windowed():
		return s.smallest("the smallest limit that refuses nobody", asIs.asked, func(n *numbers, x int) { n.limit = int64(x) }, base)
	default:
		roomy := base
		if s.conf.Queue > 0 {
			roomy.queue = shaping.MaxQueue
		}
		least := 1
		if s.conf.ReserveHigh > 0 {
			least = 2 // of one place nothing can be reserved
		}
		return s.smallest("the fewest places that refuse nobody", max(least, asIs.asked), func(n *numbers, x int) { n.slots = max(least, x) }, roomy)
	}
	return nil
}

// queue proposes as many places as are ever taken when there is no end of them:
// what is refused then would have waited too long.
func (s *search) queue(what string, n numbers) error {
	n.queue = shaping.MaxQueue
	l, err := s.try(n)
	if err != nil {
		return err
	}
	n.queue = max(1, l.long)
	s.propose(what, n, l)
	return nil
}

// smallest proposes the smallest number, up to most, that refuses nobody.
func (s *search) smallest(what string, most int, set func(n *numbers, x int), n numbers) error {
	var best *limitStats
	low, high := 1, most
	for low < high {
		middle := low + (high-low)/2
		trial := n
		set(&trial, middle)
		l, err := s.try(trial)
		if err != nil {
			return err
		}
		if l.refused() == 0 {
			high, best = middle, l
		} else {
			low = middle + 1
		}
	}
	set(&n, high)
	if best == nil || high == most {
		l, err := s.try(n)
		if err != nil {
			return err
		}
		best = l
	}
	if best.refused() > 0 {
		what = "not even this refuses nobody"
	}
	if n.queue == shaping.MaxQueue {
		return s.queue(what, n)
	}
	s.propose(what, n, best)
	return nil
}

// rate proposes the lowest rate in two digits that refuses nobody.
func (s *search) rate(n numbers) error {
	unit := s.conf.Rate.String()
	unit = unit[strings.IndexByte(unit, '/'):]
	var rates []string
	for _, zeros := range []string{"0.0", "0.", "", "0", "00", "000", "0000", "00000"} {
		for digits := 10; digits < 100; digits++ {
			d := strconv.Itoa(digits)
			switch zeros {
			case "0.0", "0.":
				rates = append(rates, zeros+strings.TrimSuffix(d, "0")+unit)
			case "":
				rates = append(rates, strings.TrimSuffix(d[:1]+"."+d[1:], ".0")+unit)
			default:
				rates = append(rates, d+zeros[1:]+unit)
			}
		}
	}
	if s.conf.Queue > 0 {
		n.queue = shaping.MaxQueue
	}
	return s.smallest("the lowest rate that refuses nobody", len(rates), func(n *numbers, x int) { n.rate = rates[x-1] }, n)
}

// Write is the fields as a configuration has them.
func (s Suggestion) Write() string {
	var fields []string
	for _, name := range s.names {
		fields = append(fields, name+" = "+s.Fields[name])
	}
	return strings.Join(fields, ", ")
}

func (r *Report) suggestions(b *strings.Builder) {
	if len(r.Suggest) == 0 {
		return
	}
	table(b, "SUGGESTED | limit | refused of | wait p99 | max | write", func(row func(...any)) {
		for _, s := range r.Suggest {
			row(s.What, s.Limit, fmt.Sprintf("%d of %d", s.Rejected, s.Offered), wait(s.Wait.P99), wait(s.Wait.Max), s.Write())
		}
	})
}
