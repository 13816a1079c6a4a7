package ledger

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Sample is one series of a metric with its value.
type Sample struct {
	Labels map[string]string
	Value  float64
}

var label = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// Metrics are series by metric.
type Metrics map[string][]Sample

// Scrape reads the metrics from the admin address. It keeps no connection, which
// would count among what the proxy has open.
func Scrape(admin string) (Metrics, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	resp, err := client.Get("http://" + admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s, %v", resp.Status, err)
	}
	all := make(Metrics)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("#")) {
			continue
		}
		series, value, _ := strings.Cut(string(bytes.TrimSpace(line)), "} ")
		name, labels, labelled := strings.Cut(series, "{")
		if !labelled {
			name, value, _ = strings.Cut(name, " ")
		}
		s := Sample{Labels: make(map[string]string)}
		if s.Value, err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("GET /metrics: %w: %s", err, line)
		}
		for _, m := range label.FindAllStringSubmatch(labels, -1) {
			s.Labels[m[1]] = m[2]
		}
		all[name] = append(all[name], s)
	}
	return all, nil
}

// Sum adds up the metric's series that have all of the labels, given as name,
// value.
func (m Metrics) Sum(metric string, labels ...string) int {
	total := 0.0
next:
	for _, s := range m[metric] {
		for i := 0; i < len(labels); i += 2 {
			if s.Labels[labels[i]] != labels[i+1] {
				continue next
			}
		}
		total += s.Value
	}
	return int(total)
}
