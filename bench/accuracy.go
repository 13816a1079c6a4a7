//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// crowds are the rates at which departures are measured, and how many requests
// come at once.
var crowds = []struct{ rate, crowd int }{{20, 60}, {200, 500}, {1000, 500}}

// aftermath is how long after a stall its consequences are seen.
const aftermath = 5 * time.Millisecond

// accuracy sends a crowd of requests at once into a queue and looks at the gaps
// between their arrivals at the upstream.
func accuracy(b *bench, rounds int) error { return b.departures(rounds, false) }

// busy does so while another route of the same proxy forwards all that wrk asks
// for, which keeps every processor busy.
func busy(b *bench, rounds int) error { return b.departures(rounds, true) }

func (b *bench) departures(rounds int, loaded bool) error {
	for _, c := range crowds {
		if err := b.departuresAt(c.rate, c.crowd, rounds, loaded); err != nil {
			return err
		}
	}
	return nil
}

// A letter is one program that lets a crowd go.
type letter struct {
	name, addr string
	logs       *rig.Process // tells in its log when each request departed; or nil
	off        [][]float64  // |gap − 1/rate| in ms, by round
	calm       []float64    // of those, what no stall of the machine is part of, of all rounds
	departed   [][]float64  // the same of the departures by its log
	onTheWay   []float64    // from departure to arrival, ms
	read       []float64    // from arrival until the recorder had it, ms
	forwarded  []float64    // of the load, by the second
}

func (b *bench) departuresAt(rate, n, rounds int, loaded bool) error {
	up, err := rig.Record()
	if err != nil {
		return err
	}
	defer up.Close()
	static, err := b.static()
	if err != nil {
		return err
	}
	nginx, _, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	limit_req_zone $server_addr zone=crowd:1m rate=%dr/s;
	upstream up { server %s; keepalive 64; }
	upstream static { server %s; keepalive 64; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	server {
		listen %s backlog=1024;
		location / { limit_req zone=crowd burst=%d; proxy_pass http://up; }
		location /open { proxy_pass http://static; }
	}`, rate, up.Addr(), static, listen, n)
	})
	if err != nil {
		return err
	}
	config := fmt.Sprintf(`
[upstream.static]
url = "http://%s"
[limit.crowd]
algorithm = "leaky-bucket"
rate = "%d/s"
queue = %d
[[route]]
match = "/"
upstream = "up"
limits = ["crowd"]
[[route]]
match = "/open"
upstream = "static"
`, static, rate, n)
	quiet, _, err := b.shapeproxy(up.Addr().String(), config)
	if err != nil {
		return err
	}
	sides := []*letter{{name: "shapeproxy", addr: quiet}, {name: "NGINX limit_req", addr: nginx}}
	if !loaded { // a line for each request of the load would be measured, too
		telling, process, err := b.shapeproxyLogging(up.Addr().String(), config)
		if err != nil {
			return err
		}
		sides = append(sides, &letter{name: "shapeproxy with its access log", addr: telling, logs: process})
	}

	// The stalls of this very process, so that they are the same for all sides.
	stalls := ledger.New().Watch(os.Getpid())
	defer stalls.Stop()
	id := 0
	for range rounds {
		for _, s := range sides {
			if err := s.letGo(up, rate, n, id, loaded, stalls); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			id += n
		}
	}
	report(sides, rate, n, rounds, loaded)
	return nil
}

// letGo sends one crowd, the first of which has that id.
func (s *letter) letGo(up *rig.Recorder, rate, n, id int, loaded bool, stalls *ledger.Stalls) error {
	c, err := connect(s.addr, n)
	if err != nil {
		return err
	}
	defer c.leave()
	if loaded {
		w, err := startLoad(s.addr + "/open")
		if err != nil {
			return err
		}
		defer func() { s.forwarded = append(s.forwarded, w.end()) }()
		time.Sleep(300 * time.Millisecond)
	}
	if err := c.ask("crowd", id, ""); err != nil {
		return err
	}
	if err := c.answers(time.Minute); err != nil {
		return err
	}
	arrivals := up.Take("crowd")
	if len(arrivals) != n {
		return fmt.Errorf("%d of %d requests arrived", len(arrivals), n)
	}
	at := make([]time.Time, 0, n)
	for _, a := range arrivals {
		at = append(at, a.At)
		s.read = append(s.read, milliseconds(a.Read.Sub(a.At)))
	}
	off := gapErrors(at, rate)
	s.off = append(s.off, off)
	for k, v := range off {
		// What a stall delays is late, and what follows is early.
		if stalls.During(at[k].Add(-aftermath), at[k+1]) == 0 {
			s.calm = append(s.calm, v)
		}
	}
	if s.logs == nil {
		return nil
	}
	departed, err := departures(s.logs, id, n)
	if err != nil {
		return err
	}
	at = at[:0]
	for _, a := range arrivals {
		at = append(at, departed[a.ID])
		s.onTheWay = append(s.onTheWay, milliseconds(a.At.Sub(departed[a.ID])))
	}
	slices.SortFunc(at, time.Time.Compare)
	s.departed = append(s.departed, gapErrors(at, rate))
	return nil
}

// gapErrors are |gap − 1/rate| in ms.
func gapErrors(at []time.Time, rate int) []float64 {
	off, interval := make([]float64, 0, len(at)), time.Second/time.Duration(rate)
	for k := 1; k < len(at); k++ {
		off = append(off, milliseconds((at[k].Sub(at[k-1]) - interval).Abs()))
	}
	return off
}

// departures are when the n requests from id on departed, by the proxy's log.
func departures(p *rig.Process, id, n int) (map[string]time.Time, error) {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		found := make(map[string]time.Time, n)
		for text := range strings.Lines(p.Output()) {
			var line struct {
				Path     string
				Departed time.Time
			}
			if json.Unmarshal([]byte(text), &line) != nil {
				continue // the last, half written
			}
			name, ok := strings.CutPrefix(line.Path, "/crowd/")
			if k, err := strconv.Atoi(name); ok && err == nil && k >= id && k < id+n {
				found[name] = line.Departed
			}
		}
		if len(found) == n {
			return found, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d requests are in the access log", len(found), n)
		}
	}
}

func report(sides []*letter, rate, n, rounds int, loaded bool) {
	fmt.Printf("%d requests at once, %d/s: |gap − %g ms| at the upstream in ms, medians of %d rounds\n\n",
		n, rate, 1000/float64(rate), rounds)
	rows := [][]string{{"", "median", "p99", "max", "max of all rounds"}}
	if !loaded { // then the load would count as stalls
		rows[0] = append(rows[0], "without stalls: p99", "gaps left out")
	}
	row := func(name string, off [][]float64, more ...string) {
		of := func(q float64) []float64 {
			var each []float64
			for _, round := range off {
				each = append(each, quantile(round, q))
			}
			return each
		}
		cells := []string{name}
		for _, v := range []float64{median(of(0.5)), median(of(0.99)), median(of(1)), slices.Max(of(1))} {
			cells = append(cells, fmt.Sprintf("%.3f", v))
		}
		rows = append(rows, append(cells, more...))
	}
	for _, s := range sides {
		if loaded {
			row(s.name, s.off)
		} else {
			row(s.name, s.off, fmt.Sprintf("%.3f", quantile(s.calm, 0.99)),
				fmt.Sprintf("%.0f %%", 100-100*float64(len(s.calm))/float64(rounds*(n-1))))
		}
		if s.logs != nil {
			row("its departures, by that log", s.departed, "", "")
		}
	}
	table(rows...)
	fmt.Println()
	distribution := func(what string, values []float64) {
		if len(values) > 0 {
			fmt.Printf("%s: median %.3f, p90 %.3f, p99 %.3f, max %.3f ms\n", what,
				median(values), quantile(values, 0.9), quantile(values, 0.99), slices.Max(values))
		}
	}
	for _, s := range sides {
		distribution(s.name+", from departure to arrival", s.onTheWay)
		distribution(s.name+", from arrival until the recorder had read it (not in the figures)", s.read)
		if len(s.forwarded) > 0 {
			fmt.Printf("%s forwarded %.0f a second beside it\n", s.name, median(s.forwarded))
		}
	}
	fmt.Println()
}

var wrkRequests = regexp.MustCompile(`(\d+) requests in `)

// A wrk is the load generator at work.
type wrk struct {
	cmd    *exec.Cmd
	began  time.Time
	output strings.Builder
}

func startLoad(url string) (*wrk, error) {
	w := &wrk{cmd: exec.Command("wrk", "-t2", "-c64", "-d60s", "http://"+url), began: time.Now()}
	w.cmd.Stdout, w.cmd.Stderr = &w.output, &w.output
	return w, w.cmd.Start()
}

// end stops it and returns how many requests a second were answered.
func (w *wrk) end() float64 {
	_ = w.cmd.Process.Signal(syscall.SIGINT) // it reports, and ends
	_ = w.cmd.Wait()
	took := time.Since(w.began)
	var requests float64
	if m := wrkRequests.FindStringSubmatch(w.output.String()); m != nil {
		requests, _ = strconv.ParseFloat(m[1], 64)
	}
	return requests / took.Seconds()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
