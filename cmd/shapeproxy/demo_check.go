package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// checkHandler answers GET /check?algo=… by asking that algorithm for one more
// request of the client's address: a bucket of 5 that refills by one each two
// seconds, or 5 in each 10 s.
type checkHandler map[limiter.Algorithm]*limiter.Limit

func newCheckHandler() (checkHandler, error) {
	memory, h := limiter.NewMemory(), make(checkHandler)
	for _, algo := range limiter.Algorithms {
		var err error
		if h[algo], err = memory.NewLimit(demoPolicy(algo)); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// demoPolicy is what /check and /play show of an algorithm, which takes what is
// its own of these.
func demoPolicy(algo limiter.Algorithm) limiter.Policy {
	return limiter.Policy{
		Name: string(algo), Algorithm: algo,
		Rate: limiter.Rate{Count: 1, Per: 2 * time.Second}, Burst: 5,
		Limit: 5, Window: 10 * time.Second,
	}
}

// A verdict is the body of an answer of /check. Times are in seconds.
type verdict struct {
	Algo       limiter.Algorithm `json:"algo"`
	Allowed    bool              `json:"allowed"`
	Limit      int64             `json:"limit"`
	Remaining  int64             `json:"remaining"`
	ResetAfter float64           `json:"reset_after"`
	RetryAfter float64           `json:"retry_after"`
}

func (h checkHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	algo := limiter.Algorithm(r.URL.Query().Get("algo"))
	limit, known := h[algo]
	if !known {
		names := make([]string, len(limiter.Algorithms))
		for i, a := range limiter.Algorithms {
			names[i] = string(a)
		}
		writeJSON(w, http.StatusBadRequest, map[string]any{
			"error": fmt.Sprintf("algo is %q; it must be one of %s", algo, strings.Join(names, ", ")),
			"algos": names,
		})
		return
	}
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr // as on a Unix socket
	}
	d := limit.Take(client, 1)
	dialects := []proxy.Dialect{proxy.DialectIETF, proxy.DialectIETF03}
	proxy.WriteRateLimit(w.Header(), dialects, limiter.Permit{Decision: d, All: []limiter.Decision{d}})
	status := http.StatusOK
	if !d.Allowed {
		status = d.Status
		w.Header().Set("Retry-After", strconv.FormatInt(proxy.Seconds(d.RetryAfter), 10))
	}
	writeJSON(w, status, verdictOf(algo, d))
}

func verdictOf(algo limiter.Algorithm, d limiter.Decision) verdict {
	return verdict{
		Algo: algo, Allowed: d.Allowed, Limit: d.Limit, Remaining: d.Remaining,
		ResetAfter: seconds(d.ResetAfter), RetryAfter: seconds(d.RetryAfter),
	}
}

// seconds is d to the next millisecond, as a client that comes earlier is
// refused.
func seconds(d time.Duration) float64 {
	return float64((d+time.Millisecond-1)/time.Millisecond) / 1000
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only for a client that has gone
}
