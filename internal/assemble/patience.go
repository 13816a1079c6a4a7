package assemble

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// patience is how long a client says that it waits, by grpc-timeout or by a
// header in seconds of the operator's choice; 0 if it does not say, or says
// what cannot be read: a deadline is a courtesy of the client's, and one that
// is no number must not keep its request out. No patience at all is the
// shortest there is.
func patience(h http.Header, name string) time.Duration {
	least := grpcTimeout(first(h, "Grpc-Timeout"))
	if name == "" {
		return least
	}
	d := seconds(first(h, name))
	if least == 0 || d > 0 && d < least {
		return d
	}
	return least
}

func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return strings.TrimSpace(v[0])
	}
	return ""
}

// seconds reads a number of seconds, which may have a fraction.
func seconds(s string) time.Duration {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || len(s) > 32 {
		return 0
	}
	if f >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return max(1, time.Duration(f*float64(time.Second)))
}

var grpcUnits = map[byte]time.Duration{
	'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond,
}

// grpcTimeout reads at most eight digits and a unit (gRPC over HTTP/2,
// "Requests").
func grpcTimeout(s string) time.Duration {
	if len(s) < 2 || len(s) > 9 {
		return 0
	}
	unit, ok := grpcUnits[s[len(s)-1]]
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	if !ok || err != nil {
		return 0
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return max(1, time.Duration(n)*unit)
}
