package tls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// A ca is an ACME server that finds every name at 127.0.0.1.
type ca struct {
	dir, program string
	listen, mgmt string
	httpPort     string // where it asks for HTTP-01
	tlsPort      string // where it asks for TLS-ALPN-01
	ocsp         string // URL that its certificates name
	valid        time.Duration
	delay        string // seconds within which it asks; empty: at once
	root         string // PEM file of the root of its own HTTPS
	dns          string

	process *rig.Process
	runs    int
	orders  int // of runs that have ended
}

// newCA prepares an ACME server and starts its DNS.
func newCA(t *testing.T) *ca {
	t.Helper()
	addrs := freeAddrs(t, 6)
	c := &ca{
		dir: t.TempDir(), program: testdeps.Need(t, "pebble"), valid: 90 * 24 * time.Hour,
		listen: addrs[0], mgmt: addrs[1], dns: addrs[2], httpPort: port(addrs[3]), tlsPort: port(addrs[4]),
	}
	c.root = c.certify(t)
	mgmt := addrs[5]
	dns, err := rig.Start(c.dir, mgmt, testdeps.Need(t, "pebble-challtestsrv"),
		"-dns01", c.dns, "-management", mgmt, "-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Kill() })
	return c
}

// certify makes the certificate of the server's own HTTPS, which is its own root.
func (c *ca) certify(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(c.dir, "root.pem")
	for file, block := range map[string]*pem.Block{
		root:                            {Type: "CERTIFICATE", Bytes: der},
		filepath.Join(c.dir, "key.pem"): {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// start runs the server, which forgets everything when it ends.
func (c *ca) start(t *testing.T) {
	t.Helper()
	conf, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": c.listen, "managementListenAddress": c.mgmt,
		"certificate": c.root, "privateKey": filepath.Join(c.dir, "key.pem"),
		"httpPort": json.Number(c.httpPort), "tlsPort": json.Number(c.tlsPort),
		"ocspResponderURL": c.ocsp, "certificateValidityPeriod": int(c.valid.Seconds()),
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.runs++
	dir := filepath.Join(c.dir, fmt.Sprint(c.runs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pebble.json")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		t.Fatal(err)
	}
	pace := "PEBBLE_VA_NOSLEEP=1"
	if c.delay != "" {
		pace = "PEBBLE_VA_SLEEPTIME=" + c.delay
	}
	c.process, err = rig.Start(dir, c.listen, "env", "PEBBLE_WFE_NONCEREJECT=50", pace, c.program, "-config", file, "-dnsserver", c.dns, "-strict")
	if err != nil {
		t.Fatal(err)
	}
	process := c.process
	t.Cleanup(func() { process.Kill() })
	// The port of its management may open later than the one of ACME.
	for deadline := time.Now().Add(longest); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", c.mgmt); err == nil {
			conn.Close()
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (c *ca) kill(t *testing.T) {
	t.Helper()
	c.orders = c.ordered()
	if err := c.process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.process = nil
}

// ordered is how many orders there were in all runs.
func (c *ca) ordered() int {
	if c.process == nil {
		return c.orders
	}
	return c.orders + strings.Count(c.process.Output(), "Added order")
}

// issuer is the root of the certificates that it gives, which each run makes anew.
func (c *ca) issuer(t *testing.T) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.manage(t, "/roots/0"))
	return pool
}

func (c *ca) manage(t *testing.T, path string) []byte {
	t.Helper()
	pool := x509.NewCertPool()
	b, err := os.ReadFile(c.root)
	if err != nil {
		t.Fatal(err)
	}
	pool.AppendCertsFromPEM(b)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Get("https://" + c.mgmt + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
	return body
}

// freeAddrs returns addresses, all different, that nothing listens on. Their
// ports are below those that the kernel gives to connections, one of which could
// take a port before its listener does.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	var addrs []string
	for tries := 0; len(addrs) < n; tries++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+mathrand.IntN(12000)))
		if err == nil {
			defer l.Close()
			addrs = append(addrs, l.Addr().String())
		} else if tries > 1000 {
			t.Fatal(err)
		}
	}
	return addrs
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}
