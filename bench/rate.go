//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

const (
	// clients keep each queue filled: each asks again as soon as it is answered.
	clients = 64
	// settled is how many arrivals are left out of the long-run rate: they come
	// while the rest of the clients is still connecting, and the first of all
	// goes at once.
	settled = 50
	// lasting is how long a rate is looked at.
	lasting = 15 * time.Second
)

// A course is one rate that is kept up.
type course struct {
	name      string
	perSecond float64
	ours      string
	nginx     string
}

var courses = []course{
	{"r70", 70, "70/s", "70r/s"},
	{"r200", 200, "200/s", "200r/s"},
	{"r2000", 2000, "2000/s", "2000r/s"},
}

// slow is looked at for as long as all the others take, beside them.
var slow = course{"m7", 7. / 60, "7/m", "7r/m"}

// rate compares the long-run rate of a queue that is never empty with the one
// configured.
func rate(b *bench, rounds int) error {
	up, err := rig.Record()
	if err != nil {
		return err
	}
	defer up.Close()
	var zones, locations, config strings.Builder
	for _, c := range append([]course{slow}, courses...) {
		fmt.Fprintf(&zones, "limit_req_zone $server_addr zone=%s:1m rate=%s;\n", c.name, c.nginx)
		fmt.Fprintf(&locations, "location /%s/ { limit_req zone=%[1]s burst=%d; proxy_pass http://up; }\n", c.name, clients)
		fmt.Fprintf(&config, `
[limit.%s]
algorithm = "leaky-bucket"
rate = %q
queue = %d
max_wait = "1h"
[[route]]
match = "/%[1]s/"
upstream = "up"
limits = ["%[1]s"]
`, c.name, c.ours, clients)
	}
	nginx, _, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`%s
	upstream up { server %s; keepalive 64; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	server { listen %s; %s }`, &zones, up.Addr(), listen, &locations)
	})
	if err != nil {
		return err
	}
	ours, process, err := b.shapeproxy(up.Addr().String(), config.String())
	if err != nil {
		return err
	}
	book := ledger.New()
	stalls := book.Watch(process.Cmd.Process.Pid)
	defer stalls.Stop()

	sides := []struct{ name, addr string }{{"shapeproxy", ours}, {"NGINX limit_req", nginx}}
	type figures struct{ gross, net []float64 }
	all := make(map[string]*figures)
	note := func(side string, c course, at []rig.Arrival) {
		f := all[side+c.name]
		if f == nil {
			f = new(figures)
			all[side+c.name] = f
		}
		gross, net := c.errors(at, stalls)
		f.gross, f.net = append(f.gross, gross), append(f.net, net)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var slowOnes sync.WaitGroup
	for _, s := range sides {
		slowOnes.Go(func() { keepUp(ctx, s.addr, slow.name, s.name, 3) })
	}
	for range rounds {
		for _, c := range courses {
			for _, s := range sides {
				turn, end := context.WithTimeout(ctx, lasting)
				keepUp(turn, s.addr, c.name, s.name, clients)
				end()
				at := up.Take(c.name)
				if len(at) < 2*settled {
					cancel()
					return fmt.Errorf("%s, %s: only %d requests arrived", s.name, c.ours, len(at))
				}
				note(s.name, c, at[settled:])
			}
		}
	}
	cancel()
	slowOnes.Wait()
	bySide := make(map[string][]rig.Arrival)
	for _, a := range up.Take(slow.name) {
		side, _, _ := strings.Cut(a.ID, "-")
		bySide[side] = append(bySide[side], a)
	}
	for _, s := range sides {
		at := bySide[strings.Fields(s.name)[0]]
		if len(at) < 4 {
			return fmt.Errorf("%s, %s: only %d requests arrived", s.name, slow.ours, len(at))
		}
		note(s.name, slow, at[1:])
	}

	fmt.Printf("Long-run rate of a queue that is never empty, against the configured one, %v each (%s: all the time), medians of %d rounds\n\n",
		lasting, slow.ours, rounds)
	rows := [][]string{{"", "shapeproxy", "least – most", "net of stalls", "least – most", "NGINX limit_req", "least – most"}}
	for _, c := range append([]course{slow}, courses...) {
		mine, theirs := all["shapeproxy"+c.name], all["NGINX limit_req"+c.name]
		row := []string{c.ours}
		for _, values := range [][]float64{mine.gross, mine.net, theirs.gross} {
			row = append(row, fmt.Sprintf("%+.4f %%", median(values)), fmt.Sprintf("%+.4f – %+.4f", quantile(values, 0), quantile(values, 1)))
		}
		rows = append(rows, row)
	}
	table(rows...)
	fmt.Printf("\nThe machine: %v\n", stalls)
	return nil
}

// errors is by how many percent the rate of the arrivals differs from the
// course's; net takes out what was lost in gaps in which the machine stalled,
// beyond the slack that a queue makes up for, and no more than it stalled.
func (c course) errors(at []rig.Arrival, stalls *ledger.Stalls) (gross, net float64) {
	took := at[len(at)-1].At.Sub(at[0].At)
	interval := time.Duration(float64(time.Second) / c.perSecond)
	var lost time.Duration
	for k := 1; k < len(at); k++ {
		from, to := at[k-1].At, at[k].At
		if over := to.Sub(from) - interval - ledger.Notable; over > 0 {
			lost += min(over, stalls.During(from, to))
		}
	}
	due := float64(len(at)-1) / c.perSecond
	return 100 * (due/took.Seconds() - 1), 100 * (due/(took-lost).Seconds() - 1)
}

// keepUp has n clients ask again and again until ctx ends. What they ask for
// tells whom they ask.
func keepUp(ctx context.Context, addr, queue, side string, n int) {
	side, _, _ = strings.Cut(side, " ")
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			defer context.AfterFunc(ctx, func() {
				conn.(*net.TCPConn).SetLinger(0)
				conn.Close()
			})()
			answers := bufio.NewReader(conn)
			for k := 0; ; k += n {
				if _, err := io.WriteString(conn, head("/"+queue+"/"+side+"-"+strconv.Itoa(k+i), "")); err != nil {
					return
				}
				resp, err := http.ReadResponse(answers, nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					return
				}
				io.Copy(io.Discard, resp.Body)
			}
		})
	}
	all.Wait()
}
