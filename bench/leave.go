//go:build linux

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

const (
	places  = 500
	leavers = places / 2
)

// leave fills a queue, has every second of those who wait leave, and looks how
// many newcomers are taken in their places.
func leave(b *bench, _ int) error {
	up, err := rig.Record()
	if err != nil {
		return err
	}
	defer up.Close()
	// A request each ten seconds, so that next to nobody makes room by his turn.
	nginx, _, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	limit_req_zone $server_addr zone=q:1m rate=6r/m;
	server { listen %s backlog=1024; location / { limit_req zone=q burst=%d; proxy_pass http://%s; } }`, listen, places, up.Addr())
	})
	if err != nil {
		return err
	}
	ours, _, err := b.shapeproxy(up.Addr().String(), fmt.Sprintf(`
[limit.q]
algorithm = "leaky-bucket"
rate = "6/m"
queue = %d
max_wait = "2h"
[[route]]
match = "/"
upstream = "up"
limits = ["q"]
`, places))
	if err != nil {
		return err
	}
	rows := [][]string{{"", "left", "newcomers", "taken", "answered 503"}}
	for _, s := range []struct{ name, addr string }{{"shapeproxy", ours}, {"NGINX limit_req", nginx}} {
		full, err := connect(s.addr, places+1) // one of them does not wait
		if err != nil {
			return err
		}
		defer full.leave()
		if err := full.ask("q", 0, ""); err != nil {
			return err
		}
		time.Sleep(time.Second)
		wait := full.waiting()
		if len(wait) != places {
			return fmt.Errorf("%s: %d of %d wait", s.name, len(wait), places)
		}
		var gone crowd
		for i := 0; i < places; i += 2 {
			gone = append(gone, wait[i])
		}
		gone.leave()
		time.Sleep(100 * time.Millisecond)
		come, err := connect(s.addr, leavers)
		if err != nil {
			return err
		}
		defer come.leave()
		if err := come.ask("q", places+1, ""); err != nil {
			return err
		}
		time.Sleep(time.Second)
		refused := 0
		for _, conn := range come {
			conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil && resp.StatusCode >= 400 {
				refused++
			}
		}
		rows = append(rows, []string{s.name, strconv.Itoa(leavers), strconv.Itoa(leavers), strconv.Itoa(leavers - refused), strconv.Itoa(refused)})
	}
	table(rows...)
	return nil
}
