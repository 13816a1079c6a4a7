package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be shapeproxy itself, so that tests can send
// signals to a process of their own.
func TestMain(m *testing.M) {
	if os.Getenv("SHAPEPROXY_TEST_MAIN") == "1" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

var listening = regexp.MustCompile(`msg=listening for=(\w+) address=(\S+)`)

// Who waits when SIGTERM comes is served, at the rate of the last reload.
func TestStopServesWhoWaits(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	slow := strings.NewReplacer("20/s", "1/h", "queue = 100", "queue = 100\nmax_wait = \"100d\"").Replace(configOf(up, ""))
	p := start(t, slow)
	until(t, "readyz 200", func() bool { return get(t, p.admin+"/readyz").status == 200 })
	replies := p.fill(t, 10)
	p.write(t, configOf(up, ""))
	p.signal(t, syscall.SIGHUP)
	p.waitLog(t, "configuration reloaded")
	p.signal(t, syscall.SIGTERM)
	for range 10 {
		if r := <-replies; r.err != nil || r.status != 200 || r.body != "hello" {
			t.Errorf("%+v", r)
		}
	}
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.logged())
	}
}

func TestStopTurnsReadyzFirst(t *testing.T) {
	release := make(chan struct{})
	p := start(t, configOf(serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { <-release }), ""))
	done := make(chan reply, 1)
	go func() { done <- fetch(http.DefaultClient, "http://"+p.addr+"/") }()
	p.metric(t, `shapeproxy_upstream_in_flight{upstream="u"} 1`)
	p.signal(t, syscall.SIGINT)
	until(t, "readyz 503", func() bool { return get(t, p.admin+"/readyz").status == 503 })
	if r := get(t, p.admin+"/healthz"); r.status != 200 {
		t.Errorf("healthz: %+v", r)
	}
	until(t, "no new connections", func() bool { return fetch(http.DefaultClient, "http://"+p.addr+"/").err != nil })
	close(release)
	if r := <-done; r.status != 200 {
		t.Errorf("the running request: %+v", r)
	}
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

// Who is still here when shutdown_timeout is over is told so.
func TestStopTellsTheRest(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { <-hang })
	text := strings.NewReplacer("30s", "200ms", "20/s", "1/h", "queue = 100", "queue = 100\nmax_wait = \"100d\"").Replace(configOf(up, ""))
	p := start(t, text)
	replies := p.fill(t, 6) // one at the upstream, five in the queue
	p.signal(t, syscall.SIGTERM)
	for range 6 {
		r := <-replies
		if r.status != 503 || r.header.Get("Retry-After") != "1" || !strings.Contains(r.body, `"reason":"shutdown"`) {
			t.Errorf("%+v", r)
		}
	}
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.logged())
	}
}

// N38: clients that take nothing of their answers, or send nothing more of their
// bodies, are cut when shutdown_timeout is over, and the process ends.
func TestStopCutsStalledClients(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	p := start(t, strings.NewReplacer("30s", "200ms", "20/s", "1000/s").Replace(configOf(up, "")))
	for _, send := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"} {
		dialled(t, p.addr, send)
	}
	p.metric(t, `shapeproxy_upstream_in_flight{upstream="u"} 2`)
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d\n%s", code, p.logged())
	}
	p.logs(t, "reason=shutdown")
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	p := start(t, configOf(serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { <-hang }), ""))
	go fetch(http.DefaultClient, "http://"+p.addr+"/")
	p.metric(t, `shapeproxy_upstream_in_flight{upstream="u"} 1`)
	p.signal(t, syscall.SIGTERM)
	p.waitLog(t, "msg=stopping")
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != exitError || !strings.Contains(p.logged(), "second signal") {
		t.Errorf("exit status %d\n%s", code, p.logged())
	}
}

func TestReload(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Set")) })
	text := configOf(up, "")
	p := start(t, text)
	p.write(t, strings.Replace(text, "url =", "set_headers = { X-Set = \"new\" }\nurl =", 1))
	p.signal(t, syscall.SIGHUP)
	p.waitLog(t, `msg="configuration reloaded"`)
	if r := get(t, "http://"+p.addr+"/"); r.status != 200 || r.body != "new" {
		t.Errorf("status %d, header %q", r.status, r.body)
	}

	// TestCase03: a bad file changes nothing, every problem is logged, and the
	// gauge tells (traefik/traefik #8724).
	p.write(t, strings.Replace(text, `rate = "20/s"`, "rate = 20\nmax_wiat = \"1s\"", 1))
	p.signal(t, syscall.SIGHUP)
	p.metric(t, "shapeproxy_config_last_reload_successful 0")
	for _, want := range []string{"c.toml:11", "c.toml:12", "max_wiat", "max_wait"} {
		p.waitLog(t, want)
	}
	if r := get(t, "http://"+p.addr+"/"); r.status != 200 || r.body != "new" {
		t.Errorf("after a failed reload: status %d, header %q", r.status, r.body)
	}
	res, err := http.Post(p.admin+"/api/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 422 || !strings.Contains(string(body), "c.toml:11") {
		t.Errorf("POST /api/reload: %d %s", res.StatusCode, body)
	}

	// What needs a restart is said, and the rest applied.
	p.write(t, strings.Replace(text, `listen = "127.0.0.1:0"`, `listen = "127.0.0.1:1"`, 1))
	p.signal(t, syscall.SIGHUP)
	p.metric(t, "shapeproxy_config_last_reload_successful 1")
	p.waitLog(t, "server.listen has changed")
	if r := get(t, "http://"+p.addr+"/"); r.status != 200 || r.body != "" {
		t.Errorf("status %d, header %q", r.status, r.body)
	}
}

// H6: no connection fails, neither while the configuration is loaded again and
// again nor right behind.
func TestConnectionsAcrossReloads(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	p := start(t, strings.Replace(configOf(up, ""), "20/s", "10000/s", 1))
	for i := range 200 {
		if i < 150 && i%10 == 0 {
			p.signal(t, syscall.SIGHUP)
		}
		if i == 150 {
			p.waitLog(t, "configuration reloaded")
		}
		res, err := http.ReadResponse(bufio.NewReader(dialled(t, p.addr, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), nil)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if body, err := io.ReadAll(res.Body); res.StatusCode != 200 || string(body) != "hello" || err != nil {
			t.Fatalf("connection %d: %d %q, %v", i, res.StatusCode, body, err)
		}
	}
}

// Host names and token of [admin] need no restart. But while the listener is
// still where others can reach it, it keeps its token.
func TestReloadOfAdmin(t *testing.T) {
	text := configOf("http://127.0.0.1:9", "")
	p := start(t, text)
	token := filepath.Join(filepath.Dir(p.file), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reload := func(admin string) {
		t.Helper()
		before := strings.Count(p.logged(), "configuration reloaded")
		p.write(t, strings.Replace(text, "[admin]\nlisten = \"127.0.0.1:0\"", "[admin]\n"+admin, 1))
		p.signal(t, syscall.SIGHUP)
		until(t, "a reload", func() bool { return strings.Count(p.logged(), "configuration reloaded") > before })
	}
	status := func() int { return get(t, p.admin+"/api/limits").status }

	reload(`listen = "127.0.0.1:0"` + "\n" + `token_file = "{{dir}}/token"`)
	if got := status(); got != 401 {
		t.Errorf("with a token: %d", got)
	}
	if strings.Contains(p.logged(), "admin has changed") {
		t.Error("a token needs no restart")
	}
	reload(`listen = "127.0.0.1:1"`)
	if got := status(); got != 401 {
		t.Errorf("to be moved, without a token: %d", got)
	}
	p.waitLog(t, "admin has changed and takes effect after a restart")
	reload(`listen = "127.0.0.1:0"`)
	if got := status(); got != 200 {
		t.Errorf("without a token: %d", got)
	}
}

func TestListenerInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "c.toml")
	text := strings.Replace(configOf("http://127.0.0.1:1", ""), "127.0.0.1:0", l.Addr().String(), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"run", "--config", file}, &out, &errs); code != exitError || !strings.Contains(errs.String(), "[server] listen") {
		t.Errorf("exit status %d: %s", code, errs.String())
	}
}

func TestUnixSocketsBothSides(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "up.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	})}
	go s.Serve(l)
	defer s.Close()
	// A file that a process left which was killed.
	stale, err := net.Listen("unix", filepath.Join(dir, "front.sock"))
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()

	text := configOf("unix:"+filepath.Join(dir, "up.sock"), "")
	p := start(t, strings.Replace(text, "127.0.0.1:0", "unix:"+filepath.Join(dir, "front.sock"), 1))
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "front.sock"))
	}}}
	defer c.CloseIdleConnections()
	if r := fetch(c, "http://front/"); r.status != 200 || r.body != "unix:" {
		t.Errorf("%+v", r)
	}
	c.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func TestTLSWithHTTP2(t *testing.T) {
	dir := t.TempDir()
	pool := writeCertificate(t, dir, "front.test")
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Forwarded-Proto")) })
	text := configOf(up, fmt.Sprintf("[tls]\ncertificates = [{ cert = %q, key = %q }]\n", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")))
	p := start(t, text)
	for _, h2 := range []bool{true, false} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "front.test"}, ForceAttemptHTTP2: h2}
		c := &http.Client{Transport: tr}
		res, err := c.Get("https://" + p.addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || string(body) != "https" || res.ProtoMajor == 2 != h2 {
			t.Errorf("%s %d %q", res.Proto, res.StatusCode, body)
		}
		tr.CloseIdleConnections()
	}
	// A new certificate is taken by a reload.
	pool = writeCertificate(t, dir, "other.test")
	p.signal(t, syscall.SIGHUP)
	p.waitLog(t, "configuration reloaded")
	c, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: pool, ServerName: "other.test"})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestH2CByPriorKnowledge(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	p := start(t, configOf(up, ""))
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get("http://" + p.addr + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.ProtoMajor != 2 || res.StatusCode != 200 {
		t.Errorf("%s %d", res.Proto, res.StatusCode)
	}
}

// writeCertificate makes a certificate for name in dir and returns the pool
// that trusts it.
func writeCertificate(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	cert, _ := x509.ParseCertificate(der)
	pool.AddCert(cert)
	return pool
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.toml"), filepath.Join(dir, "bad.toml")
	text := configOf("http://127.0.0.1:1", "")
	if err := os.WriteFile(good, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte(strings.Replace(text, "queue = 100", "queue = 2.0\nrat = 1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"check", "--config", good}, &out, &errs); code != 0 || !strings.Contains(out.String(), "20 requests a second") {
		t.Errorf("exit status %d: %s%s", code, out.String(), errs.String())
	}
	if errs.Len() > 0 || strings.Contains(out.String(), "warning") {
		t.Errorf("warned of what is in order: %s%s", errs.String(), out.String())
	}
	if err := os.WriteFile(good, []byte(text+"\n[upstream.spare]\nurl = \"http://127.0.0.1:2\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if code := run([]string{"check", "--config", good}, &out, &errs); code != 0 || strings.Contains(out.String(), "spare") ||
		strings.Count(errs.String(), "upstream.spare: no route names") != 1 || !strings.HasPrefix(errs.String(), "warning: "+good+":") {
		t.Errorf("exit status %d: %s%s", code, out.String(), errs.String())
	}
	out.Reset()
	errs.Reset()
	code := run([]string{"check", "--config", bad}, &out, &errs)
	lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
	if code != exitError || len(lines) != 2 || !strings.HasPrefix(lines[0], bad+":12: ") || !strings.HasPrefix(lines[1], bad+":13: ") {
		t.Errorf("exit status %d: %q", code, lines)
	}
}
