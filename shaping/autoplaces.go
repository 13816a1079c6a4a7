package shaping

import (
	"math"
	"time"
)

// AutoPlaces searches for how many requests an upstream can work on at once
// before it gets slower: the bound of TCP Vegas (Brakmo and Peterson, 1995), as
// Netflix's concurrency-limits uses it for requests. How long a request takes
// when the upstream has nothing else to do is compared with how long requests
// take now; what it takes longer, it has waited at the upstream, so that
//
//	waiting there = places × (1 − quiet / now)
//
// Is that less than a few, there is a place more to be had; is it more, there
// are too many. A request that was throttled, or failed for want of time, takes
// a tenth of the places away.
//
// The time when the upstream is quiet is not known for ever: once in a while a
// round is made with half the places to measure it again.
//
// It reads no clock and draws no lots. Times are nanoseconds since any epoch.
type AutoPlaces struct {
	least, most float64
	places      float64
	quiet       float64 // seconds that a request takes without others, on the average; 0: not known

	// of the round, in which about as many requests end as there are places
	began  int64
	sum    float64
	ended  int
	full   bool // all places were taken at some time
	failed bool
	found  bool // requests have waited at the upstream
	rounds int
	kept   float64 // the places, while half of them measure; 0: they do not
}

// leastRound is how many requests a round has at least: the average of a few says
// more of them than of the upstream.
const leastRound = 20

// remeasured is how many rounds pass until the quiet time is measured again.
const remeasured = 100

// NewAutoPlaces searches between two numbers of places, from the lower one up.
func NewAutoPlaces(least, most int) AutoPlaces {
	a := AutoPlaces{began: math.MinInt64}
	a.Adopt(least, most)
	return a
}

// Adopt goes on between two other numbers.
func (a *AutoPlaces) Adopt(least, most int) {
	a.least, a.most = float64(least), float64(most)
	a.places = min(max(a.places, a.least), a.most)
}

// start begins the search at a number, as far as it is within the bounds.
func (a *AutoPlaces) start(at int) { a.places = min(max(float64(at), a.least), a.most) }

// Places is how many requests may be unfinished for now.
func (a *AutoPlaces) Places() int { return int(a.places) }

// Done notes at now that a request which left at sent took so long, and how many
// were unfinished until then, itself included. Of one that the upstream throttled, or was too slow
// for, failed is true, and its time says nothing.
func (a *AutoPlaces) Done(now, sent int64, took time.Duration, unfinished int, failed bool) {
	if sent < a.began {
		return // it tells of another number of places
	}
	a.failed = a.failed || failed
	a.full = a.full || unfinished >= int(a.places)
	if !failed {
		a.sum += took.Seconds()
	}
	if a.ended++; a.ended < max(leastRound, int(a.places)) && !a.failed {
		return
	}
	a.round()
	a.began, a.sum, a.ended, a.full, a.failed = now, 0, 0, false, false
}

// round ends one.
func (a *AutoPlaces) round() {
	took := a.sum / float64(a.ended)
	switch {
	case a.failed:
		a.places = 0.9 * max(a.places, a.kept)
		a.kept = 0
	case a.kept > 0: // measured
		a.places, a.kept = a.kept, 0
		a.quiet, a.rounds = took, 0
	case a.rounds >= remeasured && a.places >= 2*a.least:
		a.kept, a.places = a.places, a.places/2
	default:
		a.rounds++
		a.grow(took)
	}
	a.places = min(max(a.places, a.least), a.most)
}

// grow moves the bound by what waits at the upstream. The steps grow with the
// logarithm, as that is how far a large number may stray.
func (a *AutoPlaces) grow(took float64) {
	if a.quiet == 0 || took < a.quiet {
		a.quiet = took
	}
	if !a.full {
		return // they were not needed
	}
	step := max(1, math.Log10(a.places))
	waiting := a.places * (1 - a.quiet/took)
	a.found = a.found || waiting > 2*step
	switch {
	case waiting <= step && !a.found:
		a.places *= 1.5 // it is not near
	case waiting <= step/2:
		a.places += 2 * step
	case waiting < step:
		a.places += step
	case waiting > 2*step:
		a.places -= step
	}
}
