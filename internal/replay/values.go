package replay

import (
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func readClient(r *record, v string, _ *clockText) bool { r.client = v; return v != "" }

func readRequest(r *record, v string, _ *clockText) bool { return r.splitRequest(v) }

func readMethod(r *record, v string, _ *clockText) bool {
	if v == "-" {
		return false
	}
	r.method = v
	return v != ""
}

func readTarget(r *record, v string, _ *clockText) bool {
	if v == "-" {
		return false
	}
	r.target = v
	return v != ""
}

// readPath reads a path that the server has decoded.
func readPath(r *record, v string, c *clockText) bool {
	_, query, asks := strings.Cut(r.target, "?")
	if !readTarget(r, (&url.URL{Path: v}).EscapedPath(), c) {
		return false
	}
	if asks {
		r.target += "?" + query
	}
	return true
}

func readQuery(r *record, v string, _ *clockText) bool {
	if v = strings.TrimPrefix(v, "?"); v != "" && v != "-" {
		path, _, _ := strings.Cut(r.target, "?")
		r.target = path + "?" + v
	}
	return true
}

func readHost(r *record, v string, _ *clockText) bool {
	if v != "" && v != "-" && v != "_" {
		r.host = v
	}
	return true
}

func readLocal(r *record, v string, c *clockText) bool {
	at, ok := c.local(v)
	r.at, r.whole = at, true
	return ok
}

func readISO(r *record, v string, _ *clockText) bool {
	at, err := time.Parse(time.RFC3339Nano, v)
	r.at, r.whole = at, !strings.Contains(v, ".")
	return err == nil
}

// readUnix reads seconds since 1970, with or without a fraction.
func readUnix(r *record, v string, _ *clockText) bool {
	at, ok := unixTime(v)
	r.at, r.whole = at, !strings.Contains(v, ".")
	return ok
}

// latest bounds instants so that their nanoseconds are numbers.
const latest = 1 << 33

func unixTime(v string) (time.Time, bool) {
	whole, fraction, _ := strings.Cut(v, ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || s < 0 || s > latest || len(fraction) > 9 {
		return time.Time{}, false
	}
	ns, err := strconv.ParseUint((fraction + "000000000")[:9], 10, 32)
	if err != nil {
		return time.Time{}, false
	}
	return time.Unix(s, int64(ns)), true
}

func readTook(unit time.Duration) func(*record, string, *clockText) bool {
	return func(r *record, v string, _ *clockText) bool {
		d, ok := durationOf(v, unit)
		if ok {
			r.took = d
			if r.service < 0 {
				r.service = d
			}
		}
		return ok
	}
}

// readService reads NGINX's list of the times that the upstreams needed, one
// after the other.
func readService(r *record, v string, _ *clockText) bool {
	var sum time.Duration
	for part := range strings.FieldsFuncSeq(v, func(c rune) bool { return c == ',' || c == ':' || c == ' ' }) {
		d, ok := durationOf(part, time.Second)
		if !ok {
			return false
		}
		sum += d
	}
	r.service = sum
	return true
}

// longest bounds what a log may say that a request took.
const longest = 366 * 24 * time.Hour

func durationOf(v string, unit time.Duration) (time.Duration, bool) {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*float64(unit) > float64(longest) {
		return 0, false
	}
	return time.Duration(math.Round(f * float64(unit))), true
}

// A clockText reads time stamps in the form of the common log format, of which
// a busy log has many that are equal.
type clockText struct {
	last string
	at   time.Time
}

func (c *clockText) local(v string) (time.Time, bool) {
	if v == c.last && v != "" {
		return c.at, true
	}
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", v)
	if err != nil {
		return time.Time{}, false
	}
	c.last, c.at = strings.Clone(v), at
	return at, true
}
