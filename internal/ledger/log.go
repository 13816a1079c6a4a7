package ledger

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A Line is one access line of the proxy's own log, in JSON.
type Line struct {
	Time                       time.Time // when it was written, its answer being over
	Host, Client, Method, Path string
	Status                     int
	Reason, Policy             string
	Sent                       int64
	Departed                   time.Time // zero: never
	Waited                     float64   // seconds
	Duration                   float64   // seconds
	UpstreamStatus             Code      `json:"upstream_status"`
}

// A Code is the upstream's status; -1 if it gave none, 0 if it was not asked.
type Code int

// UnmarshalJSON implements json.Unmarshaler.
func (c *Code) UnmarshalJSON(b []byte) error {
	if string(b) == `"error"` {
		*c = -1
		return nil
	}
	return json.Unmarshal(b, (*int)(c))
}

// Host is the Host that names a request, so that every side knows it: it goes
// through the proxy with host = "client" and stands in its access log.
func Host(id int) string { return fmt.Sprintf("r%d.example.com", id) }

func idOf(host string) (int, error) {
	var id int
	if _, err := fmt.Sscanf(host, "r%d.example.com", &id); err != nil || host != Host(id) {
		return 0, fmt.Errorf("%q is no request of this run", host)
	}
	return id, nil
}

// ReadLog returns the access lines by request. Two lines for one request are an
// error, as is a line that is not JSON.
func ReadLog(text string) (map[int]Line, error) {
	byID := make(map[int]Line)
	for line := range strings.Lines(text) {
		var d Line
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			return nil, fmt.Errorf("the proxy's log: %w: %s", err, line)
		}
		if d.Host == "" {
			continue // start, reload, stop
		}
		id, err := idOf(d.Host)
		if err != nil {
			return nil, fmt.Errorf("the proxy's log: %w: %s", err, line)
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("the proxy's log has request %d twice: %s", id, line)
		}
		byID[id] = d
	}
	return byID, nil
}
