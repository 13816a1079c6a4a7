package replay

import (
	"net/http"
	"strings"
	"time"
)

// A record is one request of a log.
type record struct {
	at      time.Time // as logged
	ended   bool      // at is when the request ended, not when it came
	whole   bool      // at has no fraction of a second
	took    time.Duration
	service time.Duration // of took, what the upstream needed; negative: not known

	client string // address, with or without a port
	method string
	target string // as it came
	host   string // empty: not in the log
	header http.Header
}

// arrived is when the request came.
func (r *record) arrived() time.Time {
	if r.ended && r.took > 0 {
		return r.at.Add(-r.took)
	}
	return r.at
}

func (r *record) clear() {
	h := r.header
	clear(h)
	*r = record{service: -1, header: h}
}

func (r *record) set(name, value string) {
	if value == "" || value == "-" {
		return
	}
	if r.header == nil {
		r.header = make(http.Header)
	}
	r.header[http.CanonicalHeaderKey(name)] = []string{value}
}

// splitRequest takes a request line apart; a log writes "-" or garbage for what
// was none.
func (r *record) splitRequest(line string) bool {
	method, rest, ok := strings.Cut(line, " ")
	if !ok || method == "" {
		return false
	}
	target := rest // alone: HTTP/0.9, or a server that logs no version
	if i := strings.LastIndexByte(rest, ' '); i >= 0 {
		if target = rest[:i]; !strings.HasPrefix(rest[i+1:], "HTTP/") {
			return false
		}
	}
	if target == "" {
		return false
	}
	for i := 0; i < len(method); i++ {
		if c := method[i]; (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	r.method, r.target = method, target
	return true
}
