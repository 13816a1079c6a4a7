package shaping

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// DefaultMaxWait bounds the wait under a policy that does not say.
const DefaultMaxWait = 30 * time.Second

// MaxQueue is the longest queue.
const MaxQueue = 1_000_000_000

// A Policy describes one limit in queue form, or the places that may be taken
// at once.
type Policy struct {
	Name string // appears in decisions

	// Rate and Burst are how many may leave in the long run, and at once after
	// a quiet time. Without a Rate, MaxInFlight alone is the bound.
	Rate  limiter.Rate
	Burst int64

	// MaxInFlight is how many requests that were let go may be unfinished; 0:
	// any number.
	MaxInFlight int

	Queue   int           // how many may wait, for one key; without a Rate, 0 refuses what finds no place
	MaxWait time.Duration // who would have to wait longer is refused on arrival; 0 means DefaultMaxWait

	// PromoteAfter is the time for which a waiter counts one class better; 0:
	// never. Where all are of one class it only takes turns away from newcomers.
	PromoteAfter time.Duration

	// ShedAbove is the wait of the one who has waited longest from which on
	// requests of class Low are refused, and if that does not help of Normal too;
	// 0: never. In a dry run nobody is.
	ShedAbove time.Duration

	// ReserveHigh is the share of Rate, Burst and MaxInFlight that only requests of
	// class High may use, in whole thousandths; 0: none. Those of other classes have
	// the rest, rounded down, but at least one of each, also while nobody uses that
	// share. In a dry run all may use it.
	ReserveHigh float64

	// MinRate and MinInFlight, unless they are zero, have the rate in force
	// searched for between MinRate and Rate, and the places between MinInFlight
	// and MaxInFlight, for each key by itself. They are found by what Permits and
	// Grants report of requests; see AutoRate and AutoPlaces.
	MinRate     limiter.Rate
	MinInFlight int

	MaxKeys int  // keys remembered at once; 0 means limiter.DefaultMaxKeys
	Status  int  // HTTP status of a refusal; 0 means 429
	DryRun  bool // decide and count, delay nobody; the caller lets the request pass
}

// Validate says what is wrong with p, or returns nil.
func (p Policy) Validate() error {
	switch {
	case p.Rate.Count != 0:
		if err := limiter.ValidateBucket(p.Rate, p.Burst); err != nil {
			return err
		}
		if p.Queue < 1 {
			return fmt.Errorf("queue must be between 1 and %d", MaxQueue)
		}
	case p.MaxInFlight < 1:
		return errors.New("rate must be above zero, or max_in_flight at least 1")
	}
	if err := p.validateSearch(); err != nil {
		return err
	}
	if err := p.validateReserve(); err != nil {
		return err
	}
	switch {
	case p.Queue < 0 || p.Queue > MaxQueue:
		return fmt.Errorf("queue must be between 0 and %d", MaxQueue)
	case p.MaxInFlight < 0:
		return errors.New("max_in_flight must not be negative")
	case p.MaxWait < 0:
		return errors.New("max_wait must be above zero")
	case p.MaxWait > limiter.MaxPeriod:
		return errors.New("max_wait must be at most 36500d")
	case p.ShedAbove < 0:
		return errors.New("shed_above must not be negative")
	case p.PromoteAfter < 0:
		return errors.New("promote_after must not be negative")
	case p.MaxKeys < 0:
		return errors.New("max_keys must be at least 1")
	}
	return nil
}

func (p Policy) validateSearch() error {
	switch {
	case !p.searches():
		return nil
	case p.MinRate.Count != 0 && p.Rate.Count == 0:
		return errors.New("min_rate needs rate, as the highest")
	case p.MinRate.Count != 0 && slower(p.Rate, p.MinRate):
		return errors.New("min_rate must not be above the highest rate")
	case p.MinInFlight < 0 || p.MinInFlight > p.MaxInFlight:
		return fmt.Errorf("min_in_flight must be between 1 and %d, the most", p.MaxInFlight)
	case p.DryRun:
		return errors.New("dry_run lets everything pass, so that nothing can be found by it")
	case p.MinRate.Count != 0:
		return limiter.ValidateBucket(p.MinRate, p.Burst)
	}
	return nil
}

func (p Policy) validateReserve() error {
	n := limiter.Parts(p.ReserveHigh)
	switch {
	case p.ReserveHigh == 0:
		return nil
	case !(p.ReserveHigh > 0 && p.ReserveHigh < 1) || n == 0 || n == whole || p.ReserveHigh != float64(n)/whole:
		return errors.New("reserve must be a share between 0.001 and 0.999, in whole thousandths")
	case p.MaxInFlight == 1:
		return errors.New("reserve needs max_in_flight of at least 2: of one place nothing is left")
	}
	for _, rate := range [...]limiter.Rate{p.Rate, p.MinRate} {
		for _, share := range [...]int64{n, whole - n} {
			if _, exact := rate.Thousandths(share); !exact {
				return errors.New("reserve needs a higher rate: shares of this one are less than one in 100 years")
			}
		}
	}
	return nil
}

// searches reports whether the pace is searched for.
func (p Policy) searches() bool { return p.MinRate.Count != 0 || p.MinInFlight != 0 }

// rules are a valid policy with its defaults filled in, and what an operator
// has stopped. They do not change.
type rules struct {
	Policy
	window      time.Duration // burst ÷ rate
	below       limited       // for classes below High
	pausedUntil int64         // on the Shaper's clock; 0: not paused
}

// limited is what a decision says of the limit where a share is reserved.
type limited struct {
	limit  int64
	window time.Duration
}

func newRules(p Policy) (*rules, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p.MaxWait = cmp.Or(p.MaxWait, DefaultMaxWait)
	if p.MaxKeys == 0 {
		p.MaxKeys = limiter.DefaultMaxKeys
	}
	if p.Status == 0 {
		p.Status = http.StatusTooManyRequests
	}
	r := &rules{Policy: p}
	if p.Rate.Count > 0 {
		s := schedule{rate: p.Rate}
		r.window = time.Duration(s.intervals(p.Burst).ceil())
	}
	if p.ReserveHigh > 0 && !p.DryRun {
		line := NewLine[turn](p.Terms())
		rest := line.pace.rest
		r.below = limited{int64(rest.places), 0}
		if p.Rate.Count > 0 {
			r.below = limited{rest.burst + int64(p.Queue), time.Duration(rest.intervals(rest.burst).ceil())}
		}
	}
	return r, nil
}

// Terms are those of the Lines that a Shaper of p has.
func (p Policy) Terms() Terms {
	return Terms{
		Rate: p.Rate, Burst: p.Burst, Queue: p.Queue, MaxWait: cmp.Or(p.MaxWait, DefaultMaxWait),
		MaxInFlight: p.MaxInFlight, PromoteAfter: p.PromoteAfter, ShedAbove: p.ShedAbove, ReserveHigh: p.ReserveHigh,
		MinRate: p.MinRate, MinInFlight: p.MinInFlight,
	}
}

// decision is the part of a decision about one of that class that only the rules
// determine. The quota of a limit without a rate is its places: how many may wait is
// no part of it.
func (r *rules) decision(at time.Time, c queue.Class) limiter.Decision {
	d := limiter.Decision{
		Policy: r.Name, Status: r.Status, DryRun: r.DryRun,
		Limit: r.Burst + int64(r.Queue), Window: r.window, At: at,
	}
	if r.Rate.Count == 0 {
		d.Limit = int64(r.MaxInFlight)
	}
	if r.below.limit > 0 && c != queue.High {
		d.Limit, d.Window = r.below.limit, r.below.window
	}
	return d
}
