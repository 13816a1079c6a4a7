package redisstore

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// FuzzAdopt: whatever lies under a key, what it is translated to is a state of
// the new policy that is no more than exhausted, or nothing.
func FuzzAdopt(f *testing.F) {
	for _, raw := range []string{
		"b|1|12000000000|3 1796067975915122 1796068011893834 0", "b|7|60000000000|9 5 9007199254740991 6999",
		"f|100|day|Europe/Berlin 1796067975915122 1795993200000000 3", "f|100|86400000000000 1796067975915122 1795996800000000 3",
		"c|100|60000000000 1796067975915122 1796067960000000 3 100", "l|5|60000000000 1 2 3", "b|0|0|0 1 2 3", "", "x y z", "b|1|1|9223372036854775807 1 2 3",
		"f|1|month|../../etc/passwd 1 2 3", "b|1|1000000000|5 -1 -2 -3",
	} {
		f.Add(raw, int64(1796067975915122))
	}
	var all []*terms
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowCounter} {
		p := limiter.Policy{Name: "p", Algorithm: a, Limit: 5, Window: time.Minute}
		if a == limiter.TokenBucket {
			p = limiter.Policy{Name: "p", Algorithm: a, Rate: limiter.Rate{Count: 7, Per: time.Minute}, Burst: 5}
		}
		t, err := newTerms(p, 1_000_000)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, t)
	}
	f.Fuzz(func(t *testing.T, raw string, now int64) {
		if now < earliest || now > latest {
			return
		}
		for _, to := range all {
			moved := to.adopt(raw, now)
			if moved == "" {
				continue
			}
			fields := strings.Fields(moved)
			if fields[0] != to.tag {
				t.Fatalf("%q became %q", raw, moved)
			}
			var n []int64
			for _, field := range fields[1:] {
				x, err := strconv.ParseInt(field, 10, 64)
				if err != nil || x > most || x < -most {
					t.Fatalf("%q became %q", raw, moved)
				}
				n = append(n, x)
			}
			if d, ok := to.meter.Decide(to.words(append(n[1:], 0)), now*1000, 1); !ok || d.Remaining < 0 || d.RetryAfter > 3*time.Minute {
				t.Fatalf("%q became %q, by which %+v", raw, moved, d)
			}
		}
	})
}

// FuzzResume: whatever lies where a schedule should, what it goes on as is a state of
// the new policy by which somebody may leave at some time.
func FuzzResume(f *testing.F) {
	for _, raw := range []string{
		"b|1|12000000000|3 1796067975915122 1796068011893834 0", "b|7|60000000000|9 5 9007199254740991 6999", "b|7|60000000000|9 5 4611686018427387 6999",
		"b|1|1000000000|1 1 -5 3", "b|1|1000000000|1 1 5 -3", "b|1|1000000000|1 x y z", "b|1|3153600000000000000|1 1 2 3", "l|5|60000000000 1 2 3", "b|0|0|0 1 2 3", "", "x y z",
	} {
		f.Add(raw, int64(1796067975915122))
	}
	terms, err := newTerms(limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 7, Per: time.Minute}, Burst: 5}, 0)
	if err != nil {
		f.Fatal(err)
	}
	set := &departing{terms: terms}
	f.Fuzz(func(t *testing.T, raw string, now int64) {
		if now < earliest || now > latest {
			return
		}
		fields := strings.Fields(set.resume(raw, now))
		if len(fields) != 4 || fields[0] != set.tag {
			t.Fatalf("%q became %q", raw, fields)
		}
		for i, field := range fields[1:] {
			most := []int64{latest, 1 << 53, set.fractions() - 1}[i]
			if x, err := strconv.ParseInt(field, 10, 64); err != nil || x < 0 || x > most {
				t.Fatalf("%q became %q", raw, fields)
			}
		}
	})
}
