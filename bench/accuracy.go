package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

const (
	// crowd is how many requests come at once.
	crowd = 500
	// settled is how many are left out of the long-run rate: they arrive while
	// the rest of the crowd is still connecting, and the first ones late.
	settled = 50
)

// accuracy sends a crowd of requests at once into a queue and looks at the gaps
// between their arrivals at the upstream.
func accuracy(b *bench, rounds int) error {
	for _, rate := range []int{200, 1000} {
		if err := b.accuracyAt(rate, rounds); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) accuracyAt(rate, rounds int) error {
	var mu sync.Mutex
	var arrivals []time.Time
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		arrivals = append(arrivals, now)
	}))
	defer upstream.Close()
	up := upstream.Listener.Addr().String()

	nginx, _, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	limit_req_zone $server_addr zone=crowd:1m rate=%dr/s;
	upstream up { server %s; keepalive 64; }
	server {
		listen %s backlog=1024;
		location / {
			limit_req zone=crowd burst=%d;
			proxy_pass http://up;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}`, rate, up, listen, crowd)
	})
	if err != nil {
		return err
	}
	ours, _, err := b.shapeproxy(up, fmt.Sprintf(`
[limit.crowd]
algorithm = "leaky-bucket"
rate = "%d/s"
queue = %d
[[route]]
match = "/"
upstream = "up"
limits = ["crowd"]
`, rate, crowd))
	if err != nil {
		return err
	}

	sides := []struct {
		name, addr             string
		median, p99, max, rate []float64
	}{{name: "shapeproxy", addr: ours}, {name: "NGINX limit_req", addr: nginx}}
	for range rounds {
		for i := range sides {
			side := &sides[i]
			arrivals = nil
			if err := sendCrowd(side.addr); err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			if len(arrivals) != crowd {
				return fmt.Errorf("%s: %d of %d requests arrived", side.name, len(arrivals), crowd)
			}
			slices.SortFunc(arrivals, time.Time.Compare)
			off := make([]float64, 0, crowd)
			interval := time.Second / time.Duration(rate)
			for k := 1; k < crowd; k++ {
				off = append(off, milliseconds((arrivals[k].Sub(arrivals[k-1]) - interval).Abs()))
			}
			side.median = append(side.median, median(off))
			side.p99 = append(side.p99, quantile(off, 0.99))
			side.max = append(side.max, slices.Max(off))
			side.rate = append(side.rate, 100*(slope(arrivals[settled:])/float64(rate)-1))
		}
	}

	fmt.Printf("%d requests at once, %d/s: |gap − %g ms| at the upstream in ms, medians of %d rounds\n\n",
		crowd, rate, 1000/float64(rate), rounds)
	rows := [][]string{{"", "median", "p99", "max", "max of all rounds", "rate error"}}
	for _, s := range sides {
		rows = append(rows, []string{s.name, fmt.Sprintf("%.2f", median(s.median)), fmt.Sprintf("%.2f", median(s.p99)),
			fmt.Sprintf("%.2f", median(s.max)), fmt.Sprintf("%.2f", slices.Max(s.max)), fmt.Sprintf("%+.3f %%", median(s.rate))})
	}
	table(rows...)
	fmt.Println()
	return nil
}

// slope is the rate of the arrivals, in requests a second, by the line of least
// squares through their instants: one late arrival at an end barely turns it.
func slope(arrivals []time.Time) float64 {
	n := float64(len(arrivals))
	var sumT, sumTT, sumTK, sumK float64
	for k, at := range arrivals {
		t, k := at.Sub(arrivals[0]).Seconds(), float64(k)
		sumT, sumTT, sumTK, sumK = sumT+t, sumTT+t*t, sumTK+t*k, sumK+k
	}
	return (n*sumTK - sumT*sumK) / (n*sumTT - sumT*sumT)
}

// sendCrowd opens all connections, writes one request on each, and only then
// reads the answers.
func sendCrowd(addr string) error {
	conns := make([]net.Conn, 0, crowd)
	for range crowd {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: bench.example\r\n\r\n"); err != nil {
			return err
		}
	}
	for _, conn := range conns {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("answered %s", resp.Status)
		}
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
