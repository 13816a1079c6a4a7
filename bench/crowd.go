//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A crowd is a number of requests that wait, each on a connection of its own.
type crowd []*net.TCPConn

// browser is what a browser says besides, some 400 bytes of head in all.
var browser = strings.ReplaceAll(`User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8
Accept-Language: en-US,en;q=0.5
Accept-Encoding: gzip, deflate
Connection: keep-alive
Cookie: session=4f1d2c3b5a69788796a5b4c3d2e1f001
Upgrade-Insecure-Requests: 1
`, "\n", "\r\n")

func head(target, fields string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: bench.example\r\n" + fields + "\r\n"
}

// connect opens n connections.
func connect(addr string, n int) (crowd, error) {
	c := make(crowd, 0, n)
	for range n {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			c.leave()
			return nil, err
		}
		c = append(c, conn.(*net.TCPConn))
	}
	return c, nil
}

// ask writes one request on each connection. The ith has the ID from+i.
func (c crowd) ask(queue string, from int, fields string) error {
	for i, conn := range c {
		if _, err := io.WriteString(conn, head(target(queue, from+i), fields)); err != nil {
			return err
		}
	}
	return nil
}

func target(queue string, id int) string { return fmt.Sprintf("/%s/%d", queue, id) }

// answers reads all answers, which have to be 200 and to come within d.
func (c crowd) answers(d time.Duration) error {
	deadline := time.Now().Add(d)
	for _, conn := range c {
		conn.SetReadDeadline(deadline)
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

// waiting are those that have got no byte of an answer, and no end, yet.
func (c crowd) waiting() (still crowd) {
	for _, conn := range c {
		raw, err := conn.SyscallConn()
		if err != nil {
			continue
		}
		var one [1]byte
		raw.Control(func(fd uintptr) {
			if _, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err == unix.EAGAIN {
				still = append(still, conn)
			}
		})
	}
	return still
}

// leave closes all connections. With a reset, so that they do not use up the
// ports of the machine for a minute.
func (c crowd) leave() {
	for _, conn := range c {
		conn.SetLinger(0)
		conn.Close()
	}
}
