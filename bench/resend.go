//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// gets is how many requests the client makes, one after the other.
const gets = 6

// resend counts how many requests reach an upstream that reads the second
// request on a kept connection and closes without an answer. The upstream may
// have acted on it, so a proxy that sends it again by itself has doubled it.
func resend(b *bench, _ int) error {
	up, err := listenFickle()
	if err != nil {
		return err
	}
	defer up.Close()
	addr := up.Addr().String()

	nginx, _, err := b.nginx(func(listen string) string {
		return fmt.Sprintf(`
	upstream up { server %s; keepalive 64; }
	server {
		listen %s;
		location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }
	}`, addr, listen)
	})
	if err != nil {
		return err
	}
	ours, _, err := b.shapeproxy(addr, "[[route]]\nmatch = \"/\"\nupstream = \"up\"\n")
	if err != nil {
		return err
	}
	plain, _, err := b.plain(addr)
	if err != nil {
		return err
	}

	rows := [][]string{{"", "sent by the client", "arrived at the upstream", "answered 200", "answered 502"}}
	for _, s := range []struct{ name, addr string }{
		{"shapeproxy", ours}, {"NGINX", nginx}, {"plain httputil.ReverseProxy", plain},
	} {
		up.arrived.Store(0)
		statuses := make(map[int]int)
		for range gets {
			resp, err := http.Get("http://" + s.addr + "/")
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			statuses[resp.StatusCode]++
		}
		rows = append(rows, []string{s.name, strconv.Itoa(gets), strconv.FormatInt(up.arrived.Load(), 10),
			strconv.Itoa(statuses[http.StatusOK]), strconv.Itoa(statuses[http.StatusBadGateway])})
	}
	table(rows...)
	return nil
}

// A fickle upstream answers the first request on each connection and hangs up
// on the second.
type fickle struct {
	net.Listener
	arrived atomic.Int64
}

func listenFickle() (*fickle, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fickle{Listener: l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(conn)
		}
	}()
	return f, nil
}

func (f *fickle) serve(conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	head := bufio.NewReader(conn)
	for first := true; ; first = false {
		if _, err := http.ReadRequest(head); err != nil {
			return
		}
		f.arrived.Add(1)
		if !first {
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}
