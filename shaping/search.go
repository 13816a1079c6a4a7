package shaping

import (
	"math"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A search is what of a Line's terms nobody knows: its rate, its places, or both.
// What it finds is the pace's from the next departure on. A nil search searches
// for nothing.
type search struct {
	rate   *AutoRate   // nil: it is known
	places *AutoPlaces // nil: they are known
	used   int64       // when one left last
}

// remembered is for how long at least a line keeps what it has found, after it
// was last used. The quiet of a night is longer, and then it starts anew: it
// takes seconds, and the upstream of the morning is another.
const remembered = time.Hour

func newSearch(t Terms) *search {
	if t.MinRate.Count == 0 && t.MinInFlight == 0 {
		return nil
	}
	s := &search{used: math.MinInt64}
	if t.MinRate.Count > 0 {
		a := NewAutoRate(t.MinRate, t.Rate)
		s.rate = &a
	}
	if t.MinInFlight > 0 {
		a := NewAutoPlaces(t.MinInFlight, t.MaxInFlight)
		s.places = &a
	}
	return s
}

// found is the rate and the places for now.
func (s *search) found(t Terms) (limiter.Rate, int) {
	rate, places := t.Rate, t.MaxInFlight
	if s != nil && s.rate != nil {
		rate = s.rate.Rate()
	}
	if s != nil && s.places != nil {
		places = s.places.Places()
	}
	return rate, places
}

// adopt is the search under other terms, where those were in force. What was
// found is kept, within the new bounds; what was known until now is where a
// search for it begins.
func (s *search) adopt(t Terms, rate limiter.Rate, places int) *search {
	next := newSearch(t)
	if next == nil {
		return nil
	}
	if s != nil {
		next.used = s.used
	}
	if next.rate != nil {
		if s != nil && s.rate != nil {
			s.rate.Adopt(t.MinRate, t.Rate)
			next.rate = s.rate
		} else if rate.Count > 0 {
			next.rate.start(rate)
		}
	}
	if next.places != nil {
		if s != nil && s.places != nil {
			s.places.Adopt(t.MinInFlight, t.MaxInFlight)
			next.places = s.places
		} else if places > 0 {
			next.places.start(places)
		}
	}
	return next
}

// sooner is how long that may take which takes d by what was found, of which
// nothing can be said for held.
func (s *search) sooner(d, held time.Duration) time.Duration {
	if s == nil || s.rate == nil || d <= held {
		return d
	}
	return held + s.rate.Sooner(d-held)
}

// use notes a departure.
func (s *search) use(now int64) {
	if s != nil {
		s.used = now
	}
}

// kept is for how long what was found is to be kept.
func (s *search) kept(now int64) time.Duration {
	if s == nil || s.used == math.MinInt64 {
		return 0
	}
	return time.Duration(max(0, s.used+int64(remembered)-now))
}

// left notes the departure of one that the rate had held up.
func (s *search) left(now, cost int64) {
	if s.rate != nil {
		s.rate.Left(now, cost)
	}
}

// Learn notes, as the answer comes, how the upstream took a request that left at
// that instant. Only a Line that searches learns by it.
func (l *Line[T]) Learn(now, left int64, a limiter.Answer) {
	s := l.search
	if s == nil {
		return
	}
	l.settle(now)
	rest := int64(0)
	if s.rate != nil && a.Throttled {
		rest = s.rate.Throttled(now, left)
	}
	if s.places != nil {
		taken := l.pace.Taken()
		if r := l.pace.rest; r != nil && r.full(&l.pace) {
			taken = l.pace.places // there were more who wanted one, and could have none
		}
		s.places.Done(now, left, a.Latency, taken, a.Throttled || a.Late)
	}
	l.follow(now)
	l.pace.Rest(now, rest)
}

// follow makes what the search has found the pace's.
func (l *Line[T]) follow(now int64) {
	rate, places := l.search.found(Terms{Rate: l.pace.rate, MaxInFlight: l.pace.places})
	if rate != l.pace.rate || places != l.pace.places {
		l.pace.adopt(now, rate, l.pace.burst, places, l.pace.reserved())
	}
}

// Found is the rate and the places that are in force.
func (l *Line[T]) Found() (rate limiter.Rate, places int) { return l.pace.rate, l.pace.places }
