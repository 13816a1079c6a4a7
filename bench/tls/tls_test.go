package tls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

const domain = "api.example.com" // the README's

// longest bounds what the machine's pace decides.
const longest = time.Minute

// A front is the proxy by the README's example, with what a test must choose:
// ports, the CA and the folder.
type front struct {
	dir, program, admin, config string
	addr                        string // of TLS
	plain                       string // of plain HTTP; empty: off
	process                     *rig.Process
}

func newFront(t *testing.T, c *ca, plain bool) *front {
	t.Helper()
	f := &front{dir: t.TempDir(), admin: freeAddrs(t, 1)[0], addr: "127.0.0.1:" + c.tlsPort}
	var err error
	if f.program, err = rig.Build(f.dir, "github.com/shapeproxy/shapeproxy/cmd/shapeproxy"); err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "from the upstream") }))
	t.Cleanup(upstream.Close)
	httpPort := "0"
	if plain {
		httpPort, f.plain = c.httpPort, "127.0.0.1:"+c.httpPort
	}
	f.config = fmt.Sprintf("%s\nca = %q\nca_root = %q\nstorage = %q\nhttp_port = %s\n\n[log]\naccess = false\n\n[admin]\nlisten = %q\n\n[upstream.api]\nurl = %q\n\n[[route]]\nmatch = \"/\"\nupstream = \"api\"\n",
		strings.Replace(example(t), `":443"`, `"`+f.addr+`"`, 1),
		"https://"+c.listen+"/dir", c.root, filepath.Join(f.dir, "storage"), httpPort, f.admin, upstream.URL)
	return f
}

// example is what the README has people write.
func example(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		if strings.Contains(block[1], "domains = ") {
			return block[1]
		}
	}
	t.Fatal("the README has no example with domains")
	return ""
}

// start runs the proxy until it listens, whether it has certificates or not.
func (f *front) start(t *testing.T) {
	t.Helper()
	file := filepath.Join(f.dir, "shapeproxy.toml")
	if err := os.WriteFile(file, []byte(f.config), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.process, err = rig.Start(f.dir, f.admin, f.program, "run", "--config", file); err != nil {
		t.Fatal(err)
	}
	process := f.process
	t.Cleanup(func() { process.Kill() })
}

func (f *front) stop(t *testing.T) {
	t.Helper()
	if err := f.process.Stop(); err != nil {
		t.Errorf("%v\n%s", err, f.process.Output())
	}
}

// until waits for what must come to pass.
func (f *front) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(longest); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come to pass\n%s", what, f.process.Output())
		}
	}
}

func (f *front) readiness() (int, string) {
	resp, err := http.Get("http://" + f.admin + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func (f *front) ready() bool { code, _ := f.readiness(); return code == http.StatusOK }

// get asks the proxy by name, and returns the certificate too that it showed.
func (f *front) get(t *testing.T, roots *x509.CertPool) (*x509.Certificate, *tls.ConnectionState) {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: domain, InsecureSkipVerify: roots == nil}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: longest}).Get("https://" + f.addr + "/")
	if err != nil {
		t.Fatalf("%v\n%s", err, f.process.Output())
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "from the upstream" {
		t.Fatalf("%q, %v", b, err)
	}
	return resp.TLS.PeerCertificates[0], resp.TLS
}

// Each challenge by itself obtains a certificate, though half of what is sent to
// the CA is turned away for its nonce. What is there is not ordered again, and
// the OCSP responder not asked again.
func TestChallenges(t *testing.T) {
	for _, challenge := range []string{"http-01", "tls-alpn-01"} {
		t.Run(challenge, func(t *testing.T) {
			t.Parallel()
			c := newCA(t)
			f := newFront(t, c, challenge == "http-01")
			if challenge == "http-01" {
				c.tlsPort = port(freeAddrs(t, 1)[0]) // where nobody answers
			}
			ocsp := newResponder(t)
			c.ocsp = ocsp.url()
			c.start(t)
			ocsp.start(t, c)
			f.start(t)
			f.until(t, "a certificate", f.ready)
			cert, state := f.get(t, c.issuer(t))
			ocsp.checkStaple(t, cert, state.OCSPResponse)
			f.checkExpiry(t, cert)
			if challenge == "http-01" {
				checkPlain(t, f)
			}
			checkUnknownName(t, f)
			ordered := c.ordered()

			f.stop(t)
			f.start(t)
			f.until(t, "the stored certificate", f.ready)
			again, state := f.get(t, c.issuer(t))
			if !again.Equal(cert) {
				t.Error("another certificate after the restart")
			}
			ocsp.checkStaple(t, cert, state.OCSPResponse)
			if n := ocsp.asked.Load(); n != 1 {
				t.Errorf("the OCSP responder was asked %d times, though its answer is kept", n)
			}
			if now := c.ordered(); now != ordered {
				t.Errorf("%d orders, %d after the restart", ordered, now)
			}
			if out := f.process.Output(); strings.Contains(out, "level=ERROR") || strings.Contains(out, "level=WARN") {
				t.Errorf("it complains:\n%s", out)
			}
		})
	}
}

func (f *front) checkExpiry(t *testing.T, cert *x509.Certificate) {
	t.Helper()
	resp, err := http.Get("http://" + f.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	const metric = `shapeproxy_certificate_expiry_timestamp_seconds{certificate="` + domain + `"} `
	_, after, _ := strings.Cut(string(b), metric)
	value, _, _ := strings.Cut(after, "\n")
	if at, err := strconv.ParseFloat(value, 64); err != nil || int64(at) != cert.NotAfter.Unix() {
		t.Errorf("%s%s, want %d", metric, value, cert.NotAfter.Unix())
	}
}

// Plain HTTP is redirected, and nowhere but to names with a certificate.
func checkPlain(t *testing.T, f *front) {
	t.Helper()
	for _, row := range []struct {
		method, host, path string
		status             int
		location           string
	}{
		{"GET", domain, "/a%2Fb?q=1", 308, "https://" + domain + "/a%2Fb?q=1"},
		{"HEAD", domain + ":" + port(f.plain), "/", 308, "https://" + domain + ":" + port(f.addr) + "/"},
		{"GET", strings.ToUpper(domain) + ".", "//evil.test/", 308, "https://" + domain + "//evil.test/"},
		{"GET", "evil.test", "/", 421, ""},
		{"GET", "127.0.0.1", "/", 421, ""},
		{"POST", domain, "/", 403, ""},
		{"GET", domain, "/.well-known/acme-challenge/nobody-asked", 308, "https://" + domain + "/.well-known/acme-challenge/nobody-asked"},
		{"GET", "evil.test", "/.well-known/acme-challenge/x", 421, ""},
	} {
		req, err := http.NewRequest(row.method, "http://"+f.plain+row.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = row.host
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Location"); resp.StatusCode != row.status || got != row.location {
			t.Errorf("%s %s%s: %d to %q, want %d to %q", row.method, row.host, row.path, resp.StatusCode, got, row.status, row.location)
		}
	}
}

// A name that is not ours gets the alert unrecognized_name.
func checkUnknownName(t *testing.T, f *front) {
	t.Helper()
	for _, protos := range [][]string{nil, {"acme-tls/1"}} {
		conn, err := tls.Dial("tcp", f.addr, &tls.Config{ServerName: "other.example.com", InsecureSkipVerify: true, NextProtos: protos})
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("an unknown name with ALPN %v: %v, want the alert unrecognized_name", protos, err)
		}
	}
}

// While the CA is down, a certificate that is to be renewed is shown all the
// same, after a restart too; once it is back, one is ordered.
func TestCAIsDown(t *testing.T) {
	t.Parallel()
	c := newCA(t)
	c.valid = 12 * time.Second // it is renewed in the last third
	f := newFront(t, c, true)
	c.start(t)
	f.start(t)
	f.until(t, "a certificate", f.ready)
	first, _ := f.get(t, nil)
	f.stop(t)
	c.kill(t)

	valid := first.NotAfter.Sub(first.NotBefore)
	time.Sleep(time.Until(first.NotAfter.Add(-valid/3 + time.Second)))
	f.start(t)
	f.until(t, "the stored certificate", f.ready)
	if shown, _ := f.get(t, nil); !shown.Equal(first) {
		t.Error("another certificate while the CA is down")
	}
	f.until(t, "the failure is told", func() bool { return strings.Contains(f.process.Output(), "the certificate could not be renewed") })
	f.stop(t)

	c.valid = 90 * 24 * time.Hour
	c.start(t)
	f.start(t)
	f.until(t, "the renewed certificate", func() bool { shown, _ := f.get(t, nil); return !shown.Equal(first) })
	f.get(t, c.issuer(t))
}

// The CA dies in mid-order and comes back without knowing anybody; the proxy is
// not ready meanwhile, and says why.
func TestCAIsKilledInMidOrder(t *testing.T) {
	t.Parallel()
	c := newCA(t)
	f := newFront(t, c, true)
	c.delay = "60"
	c.start(t)
	f.start(t)
	f.until(t, "an order", func() bool { return c.ordered() > 0 })
	if code, why := f.readiness(); code != http.StatusServiceUnavailable || why != "no certificate yet for "+domain+"\n" {
		t.Errorf("readiness: %d %q", code, why)
	}
	c.kill(t)
	f.until(t, "the failure is told", func() bool {
		return strings.Contains(f.process.Output(), "no certificate could be obtained")
	})
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Error("it does not listen:", err)
	} else {
		conn.Close()
	}
	c.delay = ""
	c.start(t)
	f.until(t, "a certificate", f.ready)
	f.get(t, c.issuer(t))
}
