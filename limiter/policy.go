package limiter

import (
	"errors"
	"fmt"
	"time"
)

// An Algorithm names a way to count, in the words of the configuration.
type Algorithm string

// The algorithms. The first two also have a queue form, in package shaping.
const (
	TokenBucket          Algorithm = "token-bucket"
	LeakyBucket          Algorithm = "leaky-bucket"
	FixedWindow          Algorithm = "fixed-window"
	SlidingWindowLog     Algorithm = "sliding-window-log"
	SlidingWindowCounter Algorithm = "sliding-window-counter"
)

// Concurrency bounds how many are unfinished. That is no count of what came in
// some time, so no Policy has it: it is the business of package shaping.
const Concurrency Algorithm = "concurrency"

// Algorithms lists every algorithm that a Policy may have, in the order of the
// documentation.
var Algorithms = []Algorithm{LeakyBucket, TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter}

// Windowed reports whether the algorithm is described by limit and window
// rather than by rate and burst.
func (a Algorithm) Windowed() bool {
	return a == FixedWindow || a == SlidingWindowLog || a == SlidingWindowCounter
}

// A Policy describes one limit in reject mode.
type Policy struct {
	Name      string // appears in decisions
	Algorithm Algorithm

	Rate  Rate  // token and leaky bucket
	Burst int64 // token and leaky bucket: how many may go at once; at least 1

	Limit  int64         // windows: how many in each Window; at least 1
	Window time.Duration // windows

	// Calendar gives a fixed window its bounds instead of Window, by the clocks
	// of Location (nil: UTC).
	Calendar Calendar
	Location *time.Location

	MaxKeys int  // keys remembered at once; 0 means DefaultMaxKeys
	Status  int  // HTTP status of a refusal; 0 means 429
	DryRun  bool // marks the decisions; the caller lets the request pass
}

// DefaultMaxKeys bounds the keys of a limit that does not say.
const DefaultMaxKeys = 100_000

// MaxWindow is the longest window, and the longest time that a bucket may take
// to fill.
const MaxWindow = MaxPeriod

// Validate says what is wrong with p, or returns nil.
func (p Policy) Validate() error {
	if p.MaxKeys < 0 {
		return errors.New("max_keys must be at least 1")
	}
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		if p.Calendar != "" {
			return p.Calendar.validate(p)
		}
		return ValidateBucket(p.Rate, p.Burst)
	case FixedWindow, SlidingWindowLog, SlidingWindowCounter:
		if p.Limit < 1 {
			return errors.New("limit must be at least 1")
		}
		if p.Calendar != "" {
			return p.Calendar.validate(p)
		}
		if p.Window <= 0 {
			return errors.New("window must be above zero")
		}
		if p.Window > MaxWindow {
			return errors.New("window must be at most 36500d")
		}
		return nil
	}
	return fmt.Errorf("unknown algorithm %q", p.Algorithm)
}

// ValidateBucket says what is wrong with a bucket of burst at rate, or returns
// nil: both must be above zero, and the bucket must fill within MaxWindow.
func ValidateBucket(rate Rate, burst int64) error {
	if rate.Count <= 0 || rate.Per <= 0 {
		return errors.New("rate must be above zero")
	}
	// A literal may be what NewRate would not return.
	if _, err := NewRate(rate.Count, rate.Per); err != nil {
		return err
	}
	if burst < 1 {
		return errors.New("burst must be at least 1")
	}
	if most := int64(MaxWindow/rate.Per) * rate.Count; burst > most {
		return fmt.Errorf("burst must be at most %d, so that it fills at %s within 100 years", most, rate)
	}
	return nil
}
