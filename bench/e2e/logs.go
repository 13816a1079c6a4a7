package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A departure is one access line of the proxy's own log.
type departure struct {
	Host, Client, Method, Path string
	Status                     int
	Reason, Policy             string
	Sent                       int64
	Departed                   time.Time // zero: never
	Waited                     float64   // seconds
	UpstreamStatus             int       `json:"upstream_status"`
}

// readProxyLog returns the access lines by request. Two lines for one request
// are an error, as is a line that is not JSON.
func readProxyLog(text string) (map[int]departure, error) {
	byID := make(map[int]departure)
	for line := range strings.Lines(text) {
		var d departure
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			return nil, fmt.Errorf("the proxy's log: %w: %s", err, line)
		}
		if d.Host == "" {
			continue // start, reload, stop
		}
		var id int
		if _, err := fmt.Sscanf(d.Host, "r%d.example.com", &id); err != nil {
			return nil, fmt.Errorf("the proxy's log has a request that was not sent: %s", line)
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("the proxy's log has request %d twice: %s", id, line)
		}
		byID[id] = d
	}
	return byID, nil
}

// An arrival is one line of nginx's log.
type arrival struct {
	id        int
	at        time.Time // when nginx began to read the request, in whole milliseconds
	target    string
	forwarded string // X-Forwarded-For
	status    int
	sent      int64 // bytes of the body
}

// nginxLog is the form of nginx's access log that readNginxLog reads.
const nginxLog = `log_format e2e escape=json '{"id":"$http_x_request_id","msec":"$msec","took":"$request_time",'
	'"target":"$request_uri","forwarded":"$http_x_forwarded_for","status":$status,"sent":$body_bytes_sent}';
	access_log access.log e2e;`

func readNginxLog(r io.Reader) (map[int]arrival, error) {
	byID := make(map[int]arrival)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var line struct {
			ID, Msec, Took, Target, Forwarded string
			Status                            int
			Sent                              int64
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("nginx's log: %w: %s", err, lines.Text())
		}
		id, err := strconv.Atoi(line.ID)
		if err != nil {
			return nil, fmt.Errorf("nginx's log: a request without its id: %s", lines.Text())
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("nginx's log has request %d twice: %s", id, lines.Text())
		}
		ended, err1 := milliseconds(line.Msec)
		took, err2 := milliseconds(line.Took)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("nginx's log: a time that is none: %s", lines.Text())
		}
		byID[id] = arrival{id, time.UnixMilli(ended - took), line.Target, line.Forwarded, line.Status, line.Sent}
	}
	return byID, lines.Err()
}

// milliseconds reads nginx's seconds with three decimals.
func milliseconds(s string) (int64, error) {
	return strconv.ParseInt(strings.Replace(s, ".", "", 1), 10, 64)
}

// A sample is one series of a metric with its value.
type sample struct {
	labels map[string]string
	value  float64
}

var label = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// metrics reads the series from the admin address, by metric.
func metrics(admin string) (map[string][]sample, error) {
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s, %v", resp.Status, err)
	}
	all := make(map[string][]sample)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		series, value, _ := strings.Cut(string(bytes.TrimSpace(line)), "} ")
		name, labels, labelled := strings.Cut(series, "{")
		if !labelled {
			name, value, _ = strings.Cut(name, " ")
		}
		s := sample{labels: make(map[string]string)}
		if s.value, err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("GET /metrics: %w: %s", err, line)
		}
		for _, m := range label.FindAllStringSubmatch(labels, -1) {
			s.labels[m[1]] = m[2]
		}
		all[name] = append(all[name], s)
	}
	return all, nil
}

// sum adds up the series that have all of the labels, given as name, value.
func sum(series []sample, labels ...string) int {
	total := 0.0
next:
	for _, s := range series {
		for i := 0; i < len(labels); i += 2 {
			if s.labels[labels[i]] != labels[i+1] {
				continue next
			}
		}
		total += s.value
	}
	return int(total)
}
