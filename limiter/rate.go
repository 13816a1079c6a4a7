package limiter

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Rate is Count requests in each Per, kept as the exact fraction in lowest
// terms, so that no rate drifts: 7 a minute is 7/60s and never 8.571428571 s
// rounded. The zero Rate is no rate at all; ParseRate and NewRate never
// return it.
type Rate struct {
	Count int64
	Per   time.Duration
}

// The widest rates that NewRate takes.
const (
	MaxRateCount = 1_000_000_000
	MaxPeriod    = 100 * 365 * 24 * time.Hour
)

// NewRate returns count requests in each per, reduced to lowest terms.
func NewRate(count int64, per time.Duration) (Rate, error) {
	if count <= 0 || per <= 0 {
		return Rate{}, errors.New("a rate must be above zero")
	}
	g := gcd(count, int64(per))
	r := Rate{Count: count / g, Per: per / time.Duration(g)}
	if r.Per > MaxPeriod {
		return Rate{}, errors.New("a rate must be at least 1 in 100 years")
	}
	// Not above one a nanosecond, the finest step of the schedule.
	if r.Count > int64(r.Per) {
		return Rate{}, errors.New("a rate must be at most 1000000000/s")
	}
	if r.Count > MaxRateCount {
		return Rate{}, errors.New("a rate must have at most 1000000000 requests in its period; write it for a shorter one")
	}
	return r, nil
}

var (
	rateForm   = regexp.MustCompile(`^(\d{1,18})(?:\.(\d{1,9}))?/(.+)$`)
	plainCount = regexp.MustCompile(`^\d+(\.\d+)?$`)
)

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

// ParseRate reads the form N/UNIT or N/DURATION: "10/s", "6/m", "0.5/s",
// "100/10s", "5000/h", "1/d". N may have a fraction; the result is exact.
func ParseRate(s string) (Rate, error) {
	if plainCount.MatchString(s) {
		return Rate{}, fmt.Errorf("a rate needs a unit; write %q for %s requests a second", s+"/s", s)
	}
	m := rateForm.FindStringSubmatch(s)
	if m == nil {
		return Rate{}, fmt.Errorf("%q is not a rate; write N/unit, such as \"10/s\", \"6/m\" or \"100/10s\"", s)
	}
	per, ok := units[m[3]]
	if !ok {
		d, err := ParseDuration(m[3])
		if err != nil {
			return Rate{}, fmt.Errorf("%q is not a rate: %q is not a unit (ms, s, m, h, d) or a duration; write N/unit, such as \"10/s\", \"6/m\" or \"100/10s\"", s, m[3])
		}
		per = d
	}
	// N.F requests in per are NF requests in per × 10^len(F); big integers,
	// as the product may pass 2^63 before it is reduced.
	count, _ := new(big.Int).SetString(m[1]+m[2], 10)
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(m[2]))), nil)
	period := new(big.Int).Mul(big.NewInt(int64(per)), scale)
	if count.Sign() == 0 || period.Sign() <= 0 {
		return Rate{}, fmt.Errorf("the rate %q lets nothing through; a rate must be above zero", s)
	}
	g := new(big.Int).GCD(nil, nil, count, period)
	count.Div(count, g)
	period.Div(period, g)
	if !count.IsInt64() || !period.IsInt64() {
		return Rate{}, fmt.Errorf("the rate %q is out of range: between 1 in 100 years and 1000000000/s", s)
	}
	r, err := NewRate(count.Int64(), time.Duration(period.Int64()))
	if err != nil {
		return Rate{}, fmt.Errorf("%q: %w", s, err)
	}
	return r, nil
}

// String is the rate in the form that ParseRate reads, in the smallest
// unit that needs no fraction: "10/s", "6/m", "3/7s".
func (r Rate) String() string {
	if r.Count <= 0 || r.Per <= 0 {
		return "0"
	}
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}} {
		// r is in lowest terms, so it is whole per u just when Per divides u.
		if u.d%r.Per == 0 {
			if n := r.Count * int64(u.d/r.Per); n/r.Count == int64(u.d/r.Per) {
				return strconv.FormatInt(n, 10) + "/" + u.name
			}
		}
	}
	return strconv.FormatInt(r.Count, 10) + "/" + FormatDuration(r.Per)
}

// Interval is the time between two requests at this rate, rounded up to a
// nanosecond. Schedules use the exact fraction instead.
func (r Rate) Interval() time.Duration {
	d := r.Per / time.Duration(r.Count)
	if r.Per%time.Duration(r.Count) != 0 {
		d++
	}
	return d
}

var dayForm = regexp.MustCompile(`^(\d+(?:\.\d+)?)d(.*)$`)

// ParseDuration reads a duration in Go's form, with d for days of 24 hours
// before it: "90s", "1h30m", "1d", "1d12h".
func ParseDuration(s string) (time.Duration, error) {
	var days time.Duration
	rest := s
	if m := dayForm.FindStringSubmatch(s); m != nil {
		// A fraction of days is exact, down to a nanosecond.
		n, _ := new(big.Rat).SetString(m[1])
		n.Mul(n, new(big.Rat).SetInt64(int64(24*time.Hour)))
		ns := new(big.Int).Quo(n.Num(), n.Denom())
		if !ns.IsInt64() {
			return 0, fmt.Errorf("the duration %q is too long", s)
		}
		days = time.Duration(ns.Int64())
		if rest = m[2]; rest == "" {
			return days, nil
		}
		if rest[0] == '-' || rest[0] == '+' {
			return 0, fmt.Errorf("%q is not a duration; a sign stands before everything", s)
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		if plainCount.MatchString(s) {
			return 0, fmt.Errorf("a duration needs a unit; write %q for %s seconds", s+"s", s)
		}
		return 0, fmt.Errorf("%q is not a duration; write a number and a unit (ms, s, m, h, d), such as \"30s\"", s)
	}
	if d > math.MaxInt64-days {
		return 0, fmt.Errorf("the duration %q is too long", s)
	}
	return days + d, nil
}

// FormatDuration is d as ParseDuration reads it, without zero parts: "1m",
// not "1m0s".
func FormatDuration(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
