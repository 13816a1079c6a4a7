package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

const edgeConfig = `
[server]
listen = "127.0.0.1:0"
read_header_timeout = "300ms"
%s
[admin]
listen = "127.0.0.1:0"
[upstream.up]
url = "http://%s"
max_idle_conns = 1
[[route]]
match = "/"
upstream = "up"
`

// echoUpstream answers with the client's address as the proxy tells it.
func echoUpstream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func dialled(t *testing.T, addr, send string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(c, send)
	return c
}

// logs waits until the log has s.
func (p *process) logs(t *testing.T, s string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(p.logged(), s); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q is not in the log:\n%s", s, p.logged())
		}
	}
}

// descriptors are those that the process has open.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestS31EveryListener: a head that does not come, or comes byte by byte, ends
// on every listener, and nothing of it stays. Nor does a body that does not come,
// whoever refuses it; an operator's events go on.
func TestS31EveryListener(t *testing.T) {
	p := start(t, fmt.Sprintf(edgeConfig, "", echoUpstream(t)))
	before := p.descriptors(t)
	var open []net.Conn
	admin := strings.TrimPrefix(p.admin, "http://")
	events := bufio.NewScanner(dialled(t, admin, "GET /api/events HTTP/1.1\r\nHost: "+admin+"\r\n\r\n"))
	post := "POST /api/reload HTTP/1.1\r\nHost: " + admin + "\r\nContent-Length: 3\r\n"
	for range 20 {
		open = append(open, dialled(t, admin, post+"\r\n"), dialled(t, admin, post+"Origin: http://nobody.test\r\n\r\n"))
	}
	for _, addr := range []string{p.addr, admin} {
		for _, send := range []string{"", "G", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", "PRI * HTTP/2.0\r\n", strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 2) + "GET /", post + "Expect: zzz\r\n\r\n"} {
			for range 20 {
				open = append(open, dialled(t, addr, send))
			}
		}
	}
	for _, c := range open {
		if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatalf("a connection to %s stays open", c.RemoteAddr())
		}
	}
	// The last of them may still be on its way out.
	for deadline := time.Now().Add(20 * time.Second); p.descriptors(t) > before+3; time.Sleep(20 * time.Millisecond) { // one to the upstream, kept, the one with the events, and one spare
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d before", p.descriptors(t), before)
		}
	}
	// One comes at once, and the next after a second.
	for n := 0; n < 2; {
		if !events.Scan() {
			t.Fatalf("%d events came: %v", n, events.Err())
		}
		if strings.HasPrefix(events.Text(), "data:") {
			n++
		}
	}
}

// TestProxyProtocol: the address of a trusted peer's header is the client's, and
// a reload changes who is trusted.
func TestProxyProtocol(t *testing.T) {
	up := echoUpstream(t)
	p := start(t, fmt.Sprintf(edgeConfig, "trusted_proxies = [\"127.0.0.1\"]\nproxy_protocol = true", up))
	const request = "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: close\r\n\r\n"
	ask := func(send string) (int, string) {
		res, err := http.ReadResponse(bufio.NewReader(dialled(t, p.addr, send)), nil)
		if err != nil {
			return 0, ""
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	const header = "PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n"
	if code, client := ask(header + request); code != 200 || client != "192.0.2.7" {
		t.Errorf("answered %d for %q", code, client)
	}
	if code, _ := ask(request); code != 0 {
		t.Errorf("without a header: answered %d", code)
	}
	p.logs(t, "client=192.0.2.7 ")
	p.logs(t, "connections are refused: they do not begin with a header of the PROXY protocol")
	p.write(t, fmt.Sprintf(edgeConfig, "", up))
	p.signal(t, syscall.SIGHUP)
	p.logs(t, "configuration reloaded")
	if code, _ := ask(header + request); code != 400 {
		t.Errorf("spoofed: answered %d", code)
	}
	if code, client := ask(request); code != 200 || client != "127.0.0.1" {
		t.Errorf("answered %d for %q", code, client)
	}
}
