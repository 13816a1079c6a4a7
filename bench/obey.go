//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/proxy"
)

const (
	truly    = 50 // requests a second that the upstream takes; twice as many between doubled and halved
	doubled  = 60 * time.Second
	halved   = 90 * time.Second
	ends     = 120 * time.Second
	counts   = 30 * time.Second // from when on what is used counts
	wanting  = 150              // clients, each of whom wants an answer a second
	patience = 30 * time.Second
)

// A throttler is an upstream whose limit nobody is told, unless by fields.
type throttler struct {
	start  time.Time
	fields bool // it counts in windows of 5 s, and says what is left

	mu    sync.Mutex
	level float64
	seen  time.Duration
	each  [ends/time.Second + 60]struct{ served, throttled int } // by second
}

const windows = 5 * time.Second

func trueRate(at time.Duration) float64 {
	if at >= doubled && at < halved {
		return 2 * truly
	}
	return truly
}

func (u *throttler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	at := time.Since(u.start)
	if u.fields {
		if at.Truncate(windows) != u.seen.Truncate(windows) || u.seen == 0 {
			u.level = windows.Seconds() * trueRate(at)
		}
	} else {
		u.level = min(5, u.level+(at-u.seen).Seconds()*trueRate(at))
	}
	u.seen = at
	second := &u.each[min(int(at/time.Second), len(u.each)-1)]
	status := http.StatusTooManyRequests
	if u.level >= 1 {
		u.level--
		status = http.StatusOK
		second.served++
	} else {
		second.throttled++
	}
	left := int(u.level)
	u.mu.Unlock()
	if u.fields {
		w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(left))
		w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(proxy.Seconds(at.Truncate(windows)+windows-at), 10))
	}
	time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
	w.WriteHeader(status)
}

// A fleet is clients who want what they ask for within their patience.
type fleet struct {
	addr    string
	retries bool // they come again by themselves, after exponential back-off with full jitter from 0.1 s to 10 s

	mu            sync.Mutex
	asked, failed int
	waits         []time.Duration // of those who got it
}

func (f *fleet) run(ctx context.Context) {
	transport := &http.Transport{MaxIdleConnsPerHost: wanting}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var all sync.WaitGroup
	for i := range wanting {
		all.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / wanting)
			for ctx.Err() == nil {
				began := time.Now()
				ok := f.get(client, began)
				if ctx.Err() != nil {
					return
				}
				f.mu.Lock()
				f.asked++
				if ok {
					f.waits = append(f.waits, time.Since(began))
				} else {
					f.failed++
				}
				f.mu.Unlock()
				time.Sleep(time.Second - time.Since(began))
			}
		})
	}
	all.Wait()
}

func (f *fleet) get(client *http.Client, began time.Time) bool {
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(patience))
	defer cancel()
	for off := 100 * time.Millisecond; ; off = min(2*off, 10*time.Second) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.addr+"/", nil)
		if err != nil {
			return false
		}
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK || !f.retries {
			return res.StatusCode == http.StatusOK
		}
		select {
		case <-time.After(rand.N(off)):
		case <-ctx.Done():
			return false
		}
	}
}

// obey compares what clients get of an upstream whose limit nobody knows: who
// retry by themselves, behind NGINX set 20 % too high, and behind the proxy.
func obey(b *bench, _ int) error {
	queue := func(rate string) string {
		return fmt.Sprintf(`
[limit.q]
algorithm = "leaky-bucket"
%s
queue = %d
max_wait = "1m"
[[route]]
match = "/"
upstream = "up"
limits = ["q"]
`, rate, 2*wanting)
	}
	sides := []*struct {
		name   string
		fields bool
		before func(upstream string) (string, error)
		up     *throttler
		fleet  *fleet
	}{
		{name: "nothing; clients retry", before: nil},
		{name: "NGINX limit_req, 20 % too high", before: func(up string) (string, error) {
			addr, _, err := b.nginx(func(listen string) string {
				return fmt.Sprintf(`
	limit_req_zone $server_addr zone=q:1m rate=%dr/s;
	upstream up { server %s; keepalive 64; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	server { listen %s backlog=1024; location / { limit_req zone=q burst=%d; proxy_pass http://up; } }`, truly*12/10, up, listen, 2*wanting)
			})
			return addr, err
		}},
		{name: "shapeproxy, rate = \"auto\"", before: func(up string) (string, error) {
			addr, _, err := b.shapeproxy(up, queue("rate = \"auto\"\nmin_rate = \"5/s\"\nmax_rate = \"1000/s\""))
			return addr, err
		}},
		{name: "shapeproxy, fields, rate 20 % too high", fields: true, before: func(up string) (string, error) {
			addr, _, err := b.shapeproxy(up, queue(fmt.Sprintf("rate = \"%d/s\"", 2*truly*12/10)))
			return addr, err
		}},
	}
	for _, s := range sides {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.up = &throttler{fields: s.fields}
		server := &http.Server{Handler: s.up}
		go server.Serve(l)
		defer server.Close()
		s.fleet = &fleet{addr: l.Addr().String(), retries: s.before == nil}
		if s.before != nil {
			if s.fleet.addr, err = s.before(l.Addr().String()); err != nil {
				return err
			}
		}
	}
	start := time.Now()
	ctx, end := context.WithDeadline(context.Background(), start.Add(ends))
	defer end()
	var all sync.WaitGroup
	for _, s := range sides {
		s.up.start = start
		all.Go(func() { s.fleet.run(ctx) })
	}
	all.Wait()
	rows := [][]string{{"in front of the upstream", "capacity used", "answers that are 429", "asked", "failed", "wait, median", "p99", "doubled used after", "halved kept after"}}
	for _, s := range sides {
		rows = append(rows, append([]string{s.name}, s.up.figures(s.fleet)...))
	}
	table(rows...)
	return nil
}

// figures are a row of the table.
func (u *throttler) figures(f *fleet) []string {
	var served, throttled, used int
	capacity := 0.
	rises, falls := "never", "never"
	for second := range int(ends / time.Second) {
		at, n := time.Duration(second)*time.Second, u.each[second]
		served, throttled = served+n.served, throttled+n.throttled
		if at >= counts {
			used += n.served
			capacity += trueRate(at)
		}
		if at >= doubled && at < halved && rises == "never" && float64(n.served) >= 0.9*2*truly {
			rises = fmt.Sprint(at - doubled)
		}
		if at >= halved && falls == "never" && float64(n.throttled) <= 0.05*float64(n.served) {
			falls = fmt.Sprint(at - halved)
		}
	}
	wait := func(q float64) string { return fmt.Sprintf("%.1f s", quantile(f.waits, q).Seconds()) }
	return []string{
		fmt.Sprintf("%.1f %%", 100*float64(used)/capacity), fmt.Sprintf("%.2f %%", 100*float64(throttled)/float64(served+throttled)),
		strconv.Itoa(f.asked), fmt.Sprintf("%d (%.1f %%)", f.failed, 100*float64(f.failed)/float64(f.asked)), wait(0.5), wait(0.99), rises, falls,
	}
}
