package limiter_test

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const day = 24 * time.Hour

func TestParseRate(t *testing.T) {
	for text, want := range map[string]limiter.Rate{
		"10/s":               {Count: 1, Per: 100 * time.Millisecond},
		"6/m":                {Count: 1, Per: 10 * time.Second},
		"7/m":                {Count: 7, Per: time.Minute},
		"0.5/s":              {Count: 1, Per: 2 * time.Second},
		"0.1/s":              {Count: 1, Per: 10 * time.Second},
		"1.5/m":              {Count: 1, Per: 40 * time.Second},
		"100/10s":            {Count: 1, Per: 100 * time.Millisecond},
		"5000/h":             {Count: 1, Per: 720 * time.Millisecond},
		"1/d":                {Count: 1, Per: day},
		"1/1d12h":            {Count: 1, Per: 36 * time.Hour},
		"3/ms":               {Count: 3, Per: time.Millisecond},
		"1000000000/s":       {Count: 1, Per: 1},
		"999999999/s":        {Count: 999999999, Per: time.Second},
		"1/36500d":           {Count: 1, Per: limiter.MaxPeriod},
		"0.000000001/s":      {Count: 1, Per: 1_000_000_000 * time.Second},
		"1000000.000000/s":   {Count: 1, Per: 1000},
		"31536000000/36500d": {Count: 1, Per: 100 * time.Millisecond},
	} {
		got, err := limiter.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("%q: %d in %v, %v; want %d in %v", text, got.Count, got.Per, err, want.Count, want.Per)
		}
	}
}

func TestParseRateRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                       "is not a rate",
		"10":                     `write "10/s"`, // traefik #5918: a plain number says nothing
		"0.5":                    `write "0.5/s"`,
		"10/":                    "is not a rate",
		"/s":                     "is not a rate",
		"-1/s":                   "is not a rate",
		"+1/s":                   "is not a rate",
		"1e3/s":                  "is not a rate",
		"1./s":                   "is not a rate",
		".5/s":                   "is not a rate",
		"10 / s":                 "is not a rate",
		"10r/s":                  "is not a rate",
		"10/w":                   "not a unit",
		"10/S":                   "not a unit",
		"10/10":                  "not a unit",
		"0/s":                    "above zero",
		"0.000/h":                "above zero",
		"1/0s":                   "above zero",
		"1/-5s":                  "above zero",
		"1/1d-2h":                "not a unit",
		"1000000001/s":           "at most 1000000000/s",
		"2/1ns":                  "at most 1000000000/s",
		"999999999999999999/s":   "at most 1000000000/s",
		"1000000007/d":           "shorter",
		"1/36501d":               "100 years",
		"0.000000001/d":          "100 years",
		"1/292000000000h":        "not a unit",
		"9999999999999999999/s":  "is not a rate",
		"0.0000000001/s":         "is not a rate",
		"0.000000001/2500000h":   "out of range",
		"10/s\n":                 "is not a rate",
		"10/s; rate":             "not a unit",
		"1/999999999999999999d":  "not a unit",
		strings.Repeat("9", 4e4): "needs a unit",
	} {
		r, err := limiter.ParseRate(text)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %+v, %v; want an error that says %q", text, r, err, says)
		}
	}
}

func TestRateString(t *testing.T) {
	for text, want := range map[string]string{
		"10/s": "10/s", "6/m": "6/m", "0.5/s": "30/m", "100/10s": "10/s", "5000/h": "5000/h", "1/d": "1/d",
		"100/7s": "1/70ms", "3/7s": "3/7s", "60/m": "1/s", "1/36h": "1/36h", "1/2d": "1/2d", "3/ms": "3000/s", "1/90m": "16/d",
	} {
		r, err := limiter.ParseRate(text)
		if err != nil || r.String() != want {
			t.Errorf("%q reads as %q, %v; want %q", text, r, err, want)
		}
	}
	if s := (limiter.Rate{}).String(); s != "0" {
		t.Errorf("no rate reads as %q", s)
	}
}

func TestRateInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10/s": 100 * time.Millisecond, "3/s": 333_333_334, "1/d": day, "999999999/s": 2, "1000000000/s": 1,
	} {
		if r, err := limiter.ParseRate(text); err != nil || r.Interval() != want {
			t.Errorf("%q: one each %v, %v; want %v", text, r.Interval(), err, want)
		}
	}
}

// TestRateRoundTrip: what String writes, ParseRate reads as the same.
func TestRateRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		per := r.Int64N(int64(limiter.MaxPeriod)) >> uint(r.IntN(61))
		rate, err := limiter.NewRate(1+r.Int64N(1e9)>>uint(r.IntN(30)), time.Duration(per+1))
		if err != nil {
			continue
		}
		if again, err := limiter.ParseRate(rate.String()); err != nil || again != rate {
			t.Fatalf("%+v writes %q, which reads %+v, %v", rate, rate, again, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1d": day, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour,
		"0s": 0, "0": 0, "36500d": limiter.MaxPeriod, "300000h": 300_000 * time.Hour, "106751d": 106751 * day,
		"0.29d": 25056 * time.Second, "0.7d": 60480 * time.Second, "1.1d": 95040 * time.Second, "-5s": -5 * time.Second,
		"0.000000000001d": 86,
	} {
		if d, err := limiter.ParseDuration(text); err != nil || d != want {
			t.Errorf("%q: %v, %v; want %v", text, d, err, want)
		}
	}
	for text, says := range map[string]string{
		"": "is not a duration", "5": `write "5s"`, "1.5": `write "1.5s"`, "NaN": "is not a duration", "inf": "is not a duration",
		"5x": "is not a duration", "d": "is not a duration", "1d-2h": "sign", "1d1d": "is not a duration", "1dx": "is not a duration",
		"106752d": "too long", "106751d24h": "too long", "99999999999999999999999d": "too long", "9999999999h": "is not a duration",
	} {
		if d, err := limiter.ParseDuration(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want an error that says %q", text, d, err, says)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", day: "1d", 36 * time.Hour: "36h", 10 * time.Hour: "10h",
		20 * time.Minute: "20m", 1500 * time.Millisecond: "1.5s", 0: "0s", limiter.MaxPeriod: "36500d", time.Hour + time.Second: "1h0m1s",
	} {
		got := limiter.FormatDuration(d)
		if got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
		if again, err := limiter.ParseDuration(got); err != nil || again != d {
			t.Errorf("%q reads as %v, %v", got, again, err)
		}
	}
}

// FuzzParseRate: what is accepted is exact, in range, and survives being
// written and read again.
func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"10/s", "6/m", "7/m", "0.5/s", "100/10s", "1/d", "0.000000001/1d12h", "1/1.5d", "3/1h0m1s", "999999999/s", "1", "0/s", "1/-1s", "1/1d-1h", "18/2d3h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := limiter.ParseRate(s)
		if err != nil {
			return
		}
		if r.Count < 1 || r.Count > limiter.MaxRateCount || r.Per < 1 || r.Per > limiter.MaxPeriod || r.Count > int64(r.Per) {
			t.Fatalf("%q: %+v is out of range", s, r)
		}
		if again, err := limiter.ParseRate(r.String()); err != nil || again != r {
			t.Fatalf("%q: %+v writes %q, which reads %+v, %v", s, r, r, again, err)
		}
		if err := limiter.ValidateBucket(r, 1); err != nil {
			t.Fatalf("%q: a bucket of one is refused: %v", s, err)
		}
		number, unit, _ := strings.Cut(s, "/")
		per, ok := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": day}[unit]
		if !ok {
			per, _ = limiter.ParseDuration(unit)
		}
		want, _ := new(big.Rat).SetString(number)
		want.Quo(want, new(big.Rat).SetInt64(int64(per)))
		if got := big.NewRat(r.Count, int64(r.Per)); got.Cmp(want) != 0 {
			t.Fatalf("%q is %v, want %v", s, got, want)
		}
	})
}
