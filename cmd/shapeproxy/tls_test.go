package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// secureConfig is configOf with a certificate for front.test in dir, and more of
// [tls].
func secureConfig(dir, upstream, more string) string {
	return configOf(upstream, fmt.Sprintf("[tls]\ncertificates = [{ cert = %q, key = %q }]\n%s\n", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), more))
}

// Each client counts by its certificate, and one without by missing_key. Once
// certificates are required, connections of before are answered with 421.
func TestClientCertificates(t *testing.T) {
	dir, alice, bob := t.TempDir(), t.TempDir(), t.TempDir()
	roots := writeCertificate(t, dir, "front.test")
	var authorities []byte
	for _, client := range []string{alice, bob} {
		writeCertificate(t, client, filepath.Base(client)+".test")
		b, err := os.ReadFile(filepath.Join(client, "cert.pem"))
		if err != nil {
			t.Fatal(err)
		}
		authorities = append(authorities, b...)
	}
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, authorities, 0o600); err != nil {
		t.Fatal(err)
	}
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	text := secureConfig(dir, up, fmt.Sprintf("client_ca = %q\nclient_auth = \"optional\"\n", ca)) + `
[limit.one]
algorithm = "token-bucket"
rate = "1/h"
key = "client-cert"
missing_key = "skip"
[[route]]
match = "/once"
upstream = "u"
limits = ["one"]
`
	p := start(t, text)
	client := func(certs string, h2 bool) *http.Client {
		c := &tls.Config{RootCAs: roots, ServerName: "front.test"}
		if certs != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem"))
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: h2}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: 20 * time.Second}
	}
	kept := map[string]*http.Client{"HTTP/1": client("", false), "HTTP/2": client("", true), "alice": client(alice, true)}
	for who, want := range map[string][]int{"HTTP/1": {200, 200}, "HTTP/2": {200, 200}, "alice": {200, 429}} {
		for _, status := range want {
			if r := fetch(kept[who], "https://"+p.addr+"/once"); r.status != status {
				t.Errorf("%s: %+v, want %d", who, r, status)
			}
		}
	}
	// Over another connection and protocol, alice is alice.
	for c, status := range map[*http.Client]int{client(alice, false): 429, client(bob, false): 200} {
		if r := fetch(c, "https://"+p.addr+"/once"); r.status != status {
			t.Errorf("%+v, want %d", r, status)
		}
	}

	p.write(t, strings.Replace(text, `client_auth = "optional"`, "", 1))
	p.signal(t, syscall.SIGHUP)
	p.waitLog(t, "configuration reloaded")
	for _, who := range []string{"HTTP/1", "HTTP/2"} {
		r := fetch(kept[who], "https://"+p.addr+"/")
		if r.status != http.StatusMisdirectedRequest || !strings.HasPrefix(r.header.Get("Proxy-Status"), "shapeproxy; error=http_request_denied") {
			t.Errorf("%s without a certificate, on a connection of before: %+v", who, r)
		}
		// It was told to come anew, and does not get in.
		if r := fetch(kept[who], "https://"+p.addr+"/"); r.err == nil {
			t.Errorf("%s without a certificate: %+v", who, r)
		}
	}
	if r := fetch(kept["alice"], "https://"+p.addr+"/"); r.status != 200 {
		t.Errorf("alice: %+v", r)
	}
	if c := get(t, p.admin+"/readyz"); c.status != 200 {
		t.Errorf("%+v", c)
	}
}

// Whoever says nothing, or half of it, is cut on every port, also where the CA
// comes: with half of a handshake, and with half of a request on plain HTTP.
func TestSlowClientsOfTLS(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir, "front.test")
	plain := freePort(t)
	text := secureConfig(dir, "http://127.0.0.1:1", fmt.Sprintf("http_port = %d\n", plain))
	p := start(t, strings.Replace(text, "[server]", "[server]\nread_header_timeout = \"300ms\"", 1))
	p.waitLog(t, `for="plain HTTP"`)
	hello := recordHello(t, "acme-tls/1")
	conns := map[string]net.Conn{}
	for what, say := range map[string]struct{ addr, text string }{
		"TLS, silent":         {p.addr, ""},
		"TLS, half a hello":   {p.addr, hello[:len(hello)/2]},
		"plain HTTP, silent":  {fmt.Sprintf("127.0.0.1:%d", plain), ""},
		"plain HTTP, half":    {fmt.Sprintf("127.0.0.1:%d", plain), "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: fr"},
		"plain HTTP, no body": {fmt.Sprintf("127.0.0.1:%d", plain), "POST / HTTP/1.1\r\nHost: front.test\r\nContent-Length: 9\r\n\r\n"},
	} {
		c, err := net.Dial("tcp", say.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, say.text); err != nil {
			t.Fatal(err)
		}
		conns[what] = c
	}
	for what, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Errorf("%s: still open", what)
		}
	}
}

// recordHello is the first flight of a client that offers only that protocol.
func recordHello(t *testing.T, protocol string) string {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tls.Client(theirs, &tls.Config{ServerName: "front.test", NextProtos: []string{protocol}}).Handshake()
	}()
	buf := make([]byte, 4096)
	n, err := ours.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	ours.Close()
	<-done
	return string(buf[:n])
}

// freePort is one that nothing listens on, below those that the kernel gives to
// connections: one of these could take it before shapeproxy does.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000)))
		if err == nil {
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func TestPlainHosts(t *testing.T) {
	for listen, want := range map[string][]string{
		":443":                                 {""},
		"0.0.0.0:443":                          {"0.0.0.0"},
		"[::]:443":                             {""},
		"unix:/run/a.sock":                     {""},
		"127.0.0.1:443 unix:/run/a.sock":       {"127.0.0.1"},
		"127.0.0.1:443 127.0.0.1:8443 [::1]:1": {"127.0.0.1", "::1"},
		"127.0.0.1:443 :8443":                  {""},
	} {
		if got := plainHosts(strings.Fields(listen)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", listen, got, want)
		}
	}
}

// What of [tls] a reload cannot change is named.
func TestTLSThatNeedsARestart(t *testing.T) {
	began := config.Config{TLS: config.TLS{HTTPPort: 80, ACME: config.ACME{Domains: []string{"a.test"}, Email: "a@a.test"}}}
	now := began
	if got := needRestart(&began, &now); got != nil {
		t.Errorf("%v", got)
	}
	now.TLS = config.TLS{HTTPPort: 8080, ACME: config.ACME{Domains: []string{"a.test", "b.test"}}, Certificates: []config.Certificate{{}}, ClientCA: "ca.pem"}
	if got, want := needRestart(&began, &now), []string{"tls (domains, email, ca, ca_root or storage)", "tls.http_port"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	now.TLS = config.TLS{}
	if got := needRestart(&began, &now); !slices.Contains(got, "tls (on or off)") {
		t.Errorf("%v", got)
	}
}

// A socket is named as the configuration writes it.
func TestAddressOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := listen("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := addressOf(l); got != "unix:"+path {
		t.Error(got)
	}
}
