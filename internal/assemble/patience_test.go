package assemble

import (
	"math"
	"net/http"
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		grpc, own string
		want      time.Duration
	}{
		{"", "", 0},
		{"5S", "", 5 * time.Second},
		{"100m", "", 100 * time.Millisecond},
		{"99999999H", "", math.MaxInt64},
		{"0n", "", 1},
		{"123456789S", "", 0}, // nine digits
		{"S", "", 0}, {"5", "", 0}, {"-5S", "", 0}, {"+5S", "", 0}, {"5X", "", 0},
		{"", "2", 2 * time.Second},
		{"", " 0.25 ", 250 * time.Millisecond},
		{"", "0", 1},
		{"", "-1", 0}, {"", "soon", 0}, {"", "NaN", 0}, {"", "1e300", math.MaxInt64}, {"", "Inf", math.MaxInt64},
		{"5S", "2", 2 * time.Second},
		{"1S", "2", time.Second},
		{"1S", "soon", time.Second},
	} {
		h := http.Header{}
		if c.grpc != "" {
			h.Set("grpc-timeout", c.grpc)
		}
		if c.own != "" {
			h.Set("Request-Timeout", c.own)
		}
		if got := patience(h, "Request-Timeout"); got != c.want {
			t.Errorf("grpc-timeout %q, Request-Timeout %q: %v, want %v", c.grpc, c.own, got, c.want)
		}
	}
}

func FuzzPatience(f *testing.F) {
	f.Add("5S", "2")
	f.Add("99999999H", "1e999")
	f.Fuzz(func(t *testing.T, grpc, own string) {
		h := http.Header{"Grpc-Timeout": {grpc}, "X": {own}}
		if d := patience(h, "X"); d < 0 {
			t.Fatalf("%q, %q: %v", grpc, own, d)
		}
	})
}
