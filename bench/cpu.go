//go:build linux

package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

// load is how wrk loads each side in turn. -t1 leaves a core to the measured
// program and the upstream.
var load = []string{"-t1", "-c64", "-d3s"}

// plainProxy is the subcommand that serves a stock httputil.ReverseProxy, in a
// process of its own.
const plainProxy = "plain-proxy"

func servePlain(listen, upstream string) error {
	up, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	return http.ListenAndServe(listen, httputil.NewSingleHostReverseProxy(up))
}

// A side is one program in one way of use.
type side struct {
	name    string
	url     string
	process *rig.Process
	refuses bool
	micros  []float64 // CPU time a request, by round
	perSec  []float64
}

// cpu divides the processor time of each proxy by the requests that it served.
func cpu(b *bench, rounds int) error {
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("%w; install Debian's wrk", err)
	}
	up, err := b.static()
	if err != nil {
		return err
	}
	nginx, nginxProcess, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	limit_req_zone $binary_remote_addr zone=wide:1m rate=1000000r/s;
	limit_req_zone $binary_remote_addr zone=narrow:1m rate=1r/m;
	limit_req_status 429;
	upstream up { server %s; keepalive 64; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	server {
		listen %s;
		location /open { proxy_pass http://up; }
		location /limited { limit_req zone=wide burst=1000000 nodelay; proxy_pass http://up; }
		location /refused { limit_req zone=narrow; proxy_pass http://up; }
	}`, up, listen)
	})
	if err != nil {
		return err
	}
	ours, ourProcess, err := b.shapeproxy(up, `
[limit.wide]
algorithm = "token-bucket"
rate = "1000000/s"
burst = 1000000
key = "client-ip"
[limit.narrow]
algorithm = "token-bucket"
rate = "1/h"
key = "client-ip"
[[route]]
match = "/open"
upstream = "up"
[[route]]
match = "/limited"
upstream = "up"
limits = ["wide"]
[[route]]
match = "/refused"
upstream = "up"
limits = ["narrow"]
`)
	if err != nil {
		return err
	}
	plain, plainProcess, err := b.plain(up)
	if err != nil {
		return err
	}

	sides := []*side{
		{name: "NGINX", url: nginx + "/open", process: nginxProcess},
		{name: "NGINX with limit_req", url: nginx + "/limited", process: nginxProcess},
		{name: "shapeproxy without a limit", url: ours + "/open", process: ourProcess},
		{name: "shapeproxy with a limit", url: ours + "/limited", process: ourProcess},
		{name: "plain httputil.ReverseProxy", url: plain + "/open", process: plainProcess},
		{name: "NGINX refuses", url: nginx + "/refused", process: nginxProcess, refuses: true},
		{name: "shapeproxy refuses", url: ours + "/refused", process: ourProcess, refuses: true},
	}
	for range rounds {
		for _, s := range sides {
			if err := s.measure(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}

	fmt.Printf("CPU time of the proxy a request, wrk %s, 128-byte answers, medians of %d rounds\n\n", strings.Join(load, " "), rounds)
	rows := [][]string{{"", "µs a request", "least – most", "ratio to NGINX", "requests a second"}}
	for _, s := range sides {
		base := sides[0]
		if s.refuses {
			base = sides[len(sides)-2]
		}
		rows = append(rows, []string{s.name, fmt.Sprintf("%.1f", median(s.micros)),
			fmt.Sprintf("%.1f – %.1f", slices.Min(s.micros), slices.Max(s.micros)),
			fmt.Sprintf("%.2f", median(s.micros)/median(base.micros)), fmt.Sprintf("%.0f", median(s.perSec))})
	}
	table(rows...)
	return nil
}

// static runs an nginx that answers 128 bytes to everything.
func (b *bench) static() (addr string, err error) {
	addr, _, err = b.nginx(func(listen string) string {
		return fmt.Sprintf(`server { listen %s; location / { return 200 %q; } }`, listen, strings.Repeat("x", 128))
	})
	return addr, err
}

// plain runs this program again as the stock proxy.
func (b *bench) plain(upstream string) (addr string, p *rig.Process, err error) {
	return b.again(plainProxy, "http://"+upstream)
}

var (
	wrkTotal  = regexp.MustCompile(`(\d+) requests in ([\d.]+)s`)
	wrkOthers = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkErrors = regexp.MustCompile(`Socket errors: .*`)
)

// measure loads the side once and notes what a request cost it.
func (s *side) measure() error {
	before, err := s.process.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	report, err := exec.Command("wrk", append(load, "http://"+s.url)...).CombinedOutput()
	took := time.Since(began)
	if err != nil {
		return fmt.Errorf("wrk: %w\n%s", err, report)
	}
	after, err := s.process.CPU()
	if err != nil {
		return err
	}
	m := wrkTotal.FindSubmatch(report)
	if m == nil {
		return fmt.Errorf("wrk printed no total:\n%s", report)
	}
	requests, _ := strconv.ParseFloat(string(m[1]), 64)
	others := 0.0
	if m := wrkOthers.FindSubmatch(report); m != nil {
		others, _ = strconv.ParseFloat(string(m[1]), 64)
	}
	// The one that a narrow limit lets through may be among the refused.
	if s.refuses && requests-others > 1 || !s.refuses && others > 0 {
		return fmt.Errorf("%.0f of %.0f requests were not forwarded", others, requests)
	}
	if m := wrkErrors.Find(report); m != nil {
		return fmt.Errorf("wrk: %s", m)
	}
	s.micros = append(s.micros, float64((after-before).Microseconds())/requests)
	s.perSec = append(s.perSec, requests/took.Seconds())
	return nil
}
