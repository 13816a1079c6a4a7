//go:build linux

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// many is how many requests wait.
const many = 10000

// blockingHandler is the subcommand that serves a handler of net/http that
// never answers, in a process of its own.
const blockingHandler = "blocking-handler"

func serveBlocking(listen string) error {
	return http.ListenAndServe(listen, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
}

// A holder is a program in which requests wait.
type holder struct {
	name   string
	waits  int // of many+1 requests
	start  func(up string, perMinute int) (addr string, p *rig.Process, err error)
	memory map[string][]float64 // bytes a request, by head
	cpu    []float64
}

func (b *bench) queueOfOurs(up string, perMinute int) (string, *rig.Process, error) {
	return b.shapeproxy(up, fmt.Sprintf(`
[limit.q]
algorithm = "leaky-bucket"
rate = "%d/m"
queue = %d
max_wait = "200h"
[[route]]
match = "/"
upstream = "up"
limits = ["q"]
`, perMinute, many))
}

func (b *bench) queueOfNGINX(up string, perMinute int) (string, *rig.Process, error) {
	return b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	limit_req_zone $server_addr zone=q:1m rate=%dr/m;
	server { listen %s backlog=4096; location / { limit_req zone=q burst=%d; proxy_pass http://%s; } }`, perMinute, listen, many, up)
	})
}

// queueOfHAProxy has one request at the upstream, which does not answer, and
// the others in line for that one connection.
func (b *bench) queueOfHAProxy(string, int) (addr string, p *rig.Process, err error) {
	program, err := testdeps.Look("haproxy")
	if err != nil {
		return "", nil, err
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	b.stops = append(b.stops, silent.Close)
	if addr, err = rig.FreeAddr(); err != nil {
		return "", nil, err
	}
	dir, err := b.folder("haproxy")
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
global
	maxconn %d
	no strict-limits
defaults
	mode http
	timeout client 1h
	timeout server 1h
	timeout queue 1h
	timeout connect 10s
frontend front
	bind %s backlog 4096
	maxconn %[1]d
	default_backend back
backend back
	server up %[3]s maxconn 1
`, many+100, addr, silent.Addr()), 0o600); err != nil {
		return "", nil, err
	}
	if p, err = rig.Start(dir, addr, program, "-db", "-q", "-f", file); err != nil {
		return "", nil, err
	}
	b.stops = append(b.stops, p.Stop)
	return addr, p, nil
}

func (b *bench) blocking(string, int) (string, *rig.Process, error) {
	return b.again(blockingHandler)
}

// memory compares how much a waiting request takes.
func memory(b *bench, rounds int) error {
	up, err := rig.Record()
	if err != nil {
		return err
	}
	defer up.Close()
	sides := []*holder{
		{name: "shapeproxy", start: b.queueOfOurs, waits: many},
		{name: "NGINX limit_req", start: b.queueOfNGINX, waits: many},
		{name: "HAProxy maxconn queue", start: b.queueOfHAProxy, waits: many + 1},
		{name: "net/http handler that blocks", start: b.blocking, waits: many + 1},
	}
	if _, err := testdeps.Look("haproxy"); err != nil {
		fmt.Printf("Without HAProxy: %v\n\n", err)
		sides = slices.Delete(sides, 2, 3)
	}
	heads := []struct{ name, fields string }{{"minimal", ""}, {"a browser's", browser}}
	for range rounds {
		for _, h := range heads {
			for _, s := range sides {
				if err := s.fill(b, up.Addr().String(), h.name, h.fields); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
		}
	}
	fmt.Printf("Resident memory of the process by %d waiting requests, bytes each, medians of %d rounds\n\n", many, rounds)
	header := []string{""}
	for _, h := range heads {
		header = append(header, fmt.Sprintf("%s head (%d bytes)", h.name, len(head(target("q", many), h.fields))), "least – most")
	}
	rows := [][]string{header}
	for _, s := range sides {
		row := []string{s.name}
		for _, h := range heads {
			v := s.memory[h.name]
			row = append(row, fmt.Sprintf("%.0f", median(v)), fmt.Sprintf("%.0f – %.0f", slices.Min(v), slices.Max(v)))
		}
		rows = append(rows, row)
	}
	table(rows...)
	return nil
}

// fill has many requests wait in a process that has just begun.
func (s *holder) fill(b *bench, up, name, fields string) error {
	addr, p, err := s.start(up, 1)
	if err != nil {
		return err
	}
	defer p.Stop()
	time.Sleep(300 * time.Millisecond)
	empty, err := p.Memory()
	if err != nil {
		return err
	}
	c, err := s.crowd(addr, fields)
	if err != nil {
		return err
	}
	defer c.leave()
	full, err := steady(p)
	if err != nil {
		return err
	}
	if n := len(c.waiting()); n < s.waits-5 || n > s.waits { // some may have had their turn
		return fmt.Errorf("%d of %d wait", n, s.waits)
	}
	if s.memory == nil {
		s.memory = make(map[string][]float64)
	}
	s.memory[name] = append(s.memory[name], float64(full-empty)/float64(s.waits))
	return nil
}

// crowd connects all, each of which asks at once.
func (s *holder) crowd(addr, fields string) (crowd, error) {
	all := make(crowd, 0, many+1)
	for i := range many + 1 {
		one, err := connect(addr, 1)
		if err == nil {
			all = append(all, one...)
			err = one.ask("q", i, fields)
		}
		if err != nil {
			all.leave()
			return nil, err
		}
	}
	return all, nil
}

// steady waits until the process's memory is the same, within one percent, for
// three seconds, but no longer than half a minute.
func steady(p *rig.Process) (int64, error) {
	var last int64
	since := time.Now()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		now, err := p.Memory()
		if err != nil {
			return 0, err
		}
		if diff := now - last; diff > last/100 || -diff > last/100 {
			last, since = now, time.Now()
		}
		if time.Since(since) > 3*time.Second {
			return now, nil
		}
	}
	return last, nil
}

// watched is for how long the processor time of those who hold is taken.
const watched = 20 * time.Second

// idle compares what it costs to have many wait while ten leave each second.
func idle(b *bench, rounds int) error {
	up, err := rig.Record()
	if err != nil {
		return err
	}
	defer up.Close()
	sides := []*holder{{name: "shapeproxy", start: b.queueOfOurs}, {name: "NGINX limit_req", start: b.queueOfNGINX}}
	for range rounds {
		for _, s := range sides {
			if err := s.hold(up); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	fmt.Printf("Processor time while %d wait at 10/s, %% of one core, %v each, %d rounds\n\n", many, watched, rounds)
	rows := [][]string{{"", "median", "by round"}}
	for _, s := range sides {
		rows = append(rows, []string{s.name, fmt.Sprintf("%.2f", median(s.cpu)),
			strings.Trim(fmt.Sprintf("%.2f", s.cpu), "[]")})
	}
	table(rows...)
	return nil
}

func (s *holder) hold(up *rig.Recorder) error {
	addr, p, err := s.start(up.Addr().String(), 600)
	if err != nil {
		return err
	}
	defer p.Stop()
	c, err := s.crowd(addr, browser)
	if err != nil {
		return err
	}
	defer c.leave()
	time.Sleep(3 * time.Second)
	up.Take("q")
	before, err := p.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(watched)
	after, err := p.CPU()
	if err != nil {
		return err
	}
	s.cpu = append(s.cpu, 100*float64(after-before)/float64(time.Since(began)))
	if n, due := len(up.Take("q")), 10*int(watched/time.Second); n < due*9/10 {
		return fmt.Errorf("%d of %d left meanwhile", n, due)
	}
	return nil
}
