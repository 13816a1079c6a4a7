package replay

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logfmt/logfmt"
)

// A parser reads one line of a log into r.
type parser func(line string, r *record, c *clockText) error

// detect chooses the parser for a log from its first line.
func detect(line string) (parser, error) {
	switch {
	case strings.HasPrefix(line, "{"):
		return parseJSON, nil
	case strings.HasPrefix(line, "time=") && strings.Contains(line, " level="):
		return parseOwn, nil
	}
	if p, err := newCSV(line); err == nil {
		return p, nil
	}
	for _, text := range []string{combined, common} {
		f, err := newFormat(text)
		if err != nil {
			return nil, err
		}
		if err := f.parse(line, &record{service: -1}, new(clockText)); !errors.Is(err, errLine) {
			return f.parse, nil
		}
	}
	return nil, errors.New("the first line is in no known format; say what the server writes with --log-format, as NGINX's log_format or Apache's LogFormat has it")
}

// A jsonLine is a line of Caddy's access log or of our own.
type jsonLine struct {
	Message string `json:"msg"`

	// Caddy's
	TS      json.RawMessage `json:"ts"`
	Request *struct {
		RemoteIP   string      `json:"remote_ip"`
		RemotePort string      `json:"remote_port"`
		Method     string      `json:"method"`
		Host       string      `json:"host"`
		URI        string      `json:"uri"`
		Headers    http.Header `json:"headers"`
	} `json:"request"`
	Duration json.RawMessage `json:"duration"`

	// our own
	Time   string  `json:"time"`
	Client string  `json:"client"`
	Method string  `json:"method"`
	Host   string  `json:"host"`
	Path   string  `json:"path"`
	Waited float64 `json:"waited"`
	Needed float64 `json:"upstream_duration"`
}

// errOther says of a line that it is not about a request, as a log that tells
// of other things too has them.
var errOther = errors.New("is about something else")

func parseJSON(line string, r *record, c *clockText) error {
	var l jsonLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return errLine
	}
	took, _ := durationOf(strings.TrimSpace(string(l.Duration)), time.Second)
	if l.Request == nil {
		return own(r, l.Message, l.Time, l.Client, l.Method, l.Host, l.Path, took.Seconds(), l.Waited, l.Needed)
	}
	q := l.Request
	r.ended, r.took, r.service = true, took, took
	r.method, r.target, r.host, r.header = q.Method, q.URI, q.Host, q.Headers
	if r.client = q.RemoteIP; r.client == "" {
		return errRequest
	}
	ts := strings.Trim(string(l.TS), `"`)
	if !readUnix(r, ts, c) && !readISO(r, ts, c) {
		if at, err := time.Parse("2006/01/02 15:04:05.999999999", ts); err == nil { // Caddy's time_format wall_nano
			r.at, r.whole = at, !strings.Contains(ts, ".")
		} else if f, ok := durationOf(ts, time.Second); ok && f > 0 { // 1.7e9
			r.at = time.Unix(0, 0).Add(f)
		} else {
			return errLine
		}
	}
	if r.method == "" || !strings.HasPrefix(r.target, "/") {
		return errRequest
	}
	return nil
}

// own is a line of this proxy's own access log, which tells when a request
// ended, how long that took in all, and how much of it was waiting. What it asks
// of the upstream is the rest: from its release to its end.
func own(r *record, message, at, client, method, host, path string, took, waited, needed float64) error {
	if message != "request" {
		return errOther
	}
	when, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return errLine
	}
	if method == "" || path == "" {
		return errRequest
	}
	r.at, r.ended = when, true
	r.client, r.method, r.host, r.target = client, method, host, path
	r.took, r.service = seconds(took), -1
	if needed > 0 {
		r.service = seconds(max(0, took-waited))
	}
	return nil
}

func seconds(f float64) time.Duration {
	return time.Duration(min(max(f, 0), longest.Seconds()) * float64(time.Second))
}

// parseOwn reads the text form of our own access log.
func parseOwn(line string, r *record, _ *clockText) error {
	d := logfmt.NewDecoder(strings.NewReader(line))
	if !d.ScanRecord() {
		return errLine
	}
	var at, message, client, method, host, path string
	var took, waited, needed time.Duration
	for d.ScanKeyval() {
		value := string(d.Value())
		switch string(d.Key()) {
		case "time":
			at = value
		case "msg":
			message = value
		case "client":
			client = value
		case "method":
			method = value
		case "host":
			host = value
		case "path":
			path = value
		case "duration":
			took, _ = durationOf(value, time.Second)
		case "waited":
			waited, _ = durationOf(value, time.Second)
		case "upstream_duration":
			needed, _ = durationOf(value, time.Second)
		}
	}
	if d.Err() != nil {
		return errLine
	}
	return own(r, message, at, client, method, host, path, took.Seconds(), waited.Seconds(), needed.Seconds())
}

// columns are what a CSV file may have; the first four it must.
var columns = []string{"time", "client", "method", "path", "host", "duration"}

// newCSV reads the head of a CSV file and returns the parser for what follows.
// The head itself reads as errOther.
func newCSV(head string) (parser, error) {
	names, err := csvFields(head)
	if err != nil || !slices.Contains(names, "time") {
		return nil, errLine
	}
	at := make(map[string]int)
	for i, name := range names {
		at[strings.ToLower(strings.TrimSpace(name))] = i
	}
	for _, name := range columns[:4] {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("the CSV file has no column %q; it needs time, client, method and path, and may have host and duration (seconds)", name)
		}
	}
	return func(line string, r *record, c *clockText) error {
		if line == head {
			return errOther
		}
		values, err := csvFields(line)
		if err != nil {
			return errLine
		}
		get := func(name string) string {
			if i, ok := at[name]; ok && i < len(values) {
				return values[i]
			}
			return ""
		}
		if t := get("time"); !readUnix(r, t, c) && !readISO(r, t, c) {
			return errLine
		}
		r.client, r.method, r.target, r.host = get("client"), get("method"), get("path"), get("host")
		if d, ok := durationOf(get("duration"), time.Second); ok {
			r.took, r.service = d, d
		}
		if r.client == "" || r.method == "" || r.target == "" {
			return errRequest
		}
		return nil
	}, nil
}

func csvFields(line string) ([]string, error) {
	fields, err := csv.NewReader(strings.NewReader(line)).Read()
	if errors.Is(err, io.EOF) {
		err = errLine
	}
	return fields, err
}
