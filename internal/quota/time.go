package quota

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// longest bounds what is read: nobody plans further ahead, and the sums stay
// within an int64.
const longest = 100 * 365 * 24 * time.Hour

// count reads a whole number that is not negative. Fractions are cut: 4.5 left
// are four.
func count(s string) (int64, bool) {
	whole, fraction, has := strings.Cut(s, ".")
	if !digits(whole) || has && !digits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	return n, err == nil
}

// number reads so many units, with or without a fraction. More than longest is
// longest.
func number(s string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, has := strings.Cut(s, ".")
	if !digits(whole) || has && !digits(fraction) {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 1) {
		return 0, false
	}
	if f >= float64(longest)/float64(unit) {
		return longest, true
	}
	return time.Duration(math.Ceil(f * float64(unit))), true
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Numbers from which on a reset is no time span but Unix time, in seconds or
// milliseconds: 2001 in either, and thirty years as a span.
const (
	unixSeconds = 1e9
	unixMillis  = 1e12
)

// until reads when a quota is as good as new, as the time from now: seconds from
// now, Unix seconds or milliseconds, a span such as 1m30s, or a date. An instant
// that is just past is no time at all; one long past is not believed.
func (r *reader) until(s string) (time.Duration, bool) {
	if d, ok := number(s, time.Second); ok {
		f, _ := strconv.ParseFloat(s, 64)
		switch {
		case f >= unixMillis:
			return r.at(time.UnixMilli(int64(math.Min(f, 1e16))))
		case f >= unixSeconds:
			return r.at(time.UnixMilli(int64(f * 1000)))
		}
		return d, true
	}
	if d, ok := span(s); ok {
		return d, true
	}
	bare, _, _ := strings.Cut(s, " (") // JavaScript's dates end in the zone's name
	for _, layout := range layouts {
		if at, err := time.Parse(layout, bare); err == nil {
			return r.at(at)
		}
	}
	return 0, false
}

var layouts = []string{
	time.RFC3339Nano, time.RFC1123, time.RFC850, time.ANSIC, time.RFC1123Z,
	"Mon Jan 02 2006 15:04:05 GMT-0700", // JavaScript's
	"2006-01-02 15:04:05 UTC", "2006-01-02 15:04:05 -0700",
}

// agrees is how far in the past the end of a window may lie, for clocks that
// disagree and answers that took their time.
const agrees = time.Minute

func (r *reader) at(t time.Time) (time.Duration, bool) {
	// Not beyond what can be subtracted.
	if year := t.Year(); year < 1970 || year > 2200 {
		return 0, false
	}
	d := t.Sub(r.sent)
	if d < -agrees {
		return 0, false
	}
	return min(max(0, d), longest), true
}

// span reads a Go duration, with d for days before it: 12ms, 1m30s, 6m0s, 1d2h.
func span(s string) (time.Duration, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	var days time.Duration
	if before, after, ok := strings.Cut(s, "d"); ok {
		n, fine := number(before, 24*time.Hour)
		if !fine {
			return 0, false
		}
		if days, s = n, after; s == "" {
			return days, true
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, false
	}
	return min(longest, days+min(d, longest)), true
}
