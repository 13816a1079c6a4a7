// Package conformance runs suites that others wrote against the program: each
// plays its own client, some their own server, and the proxy stands between. It
// is a module of its own, so that what the suites need is not the proxy's.
//
// What a suite finds is compared with what it finds without the proxy, or with
// a bare net/http server in its place: the proxy must add no finding.
package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

// program is the proxy as built from this tree.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "shapeproxy")
	// In the product's own module, with the versions that it is released with.
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", program, "./cmd/shapeproxy").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// result prints the one line that says what a suite showed.
func result(t *testing.T, format string, args ...any) {
	t.Helper()
	verdict := "ok"
	if t.Failed() {
		verdict = "DIFFERS"
	}
	fmt.Printf("conformance: %s: %s: %s\n", t.Name(), verdict, fmt.Sprintf(format, args...))
}

// A front is the program under test, listening at Addr.
type front struct {
	*rig.Process
	Addr string
	dir  string // of its configuration and certificate
}

// A setup says how the program is started.
type setup struct {
	upstream string // URL
	tls      bool
	server   string // more lines of [server]
	rest     string // lines from [[route]]'s fields on: limits of it, and tables
}

// start runs the program until the test ends.
func start(t *testing.T, s setup) front {
	t.Helper()
	dir := t.TempDir()
	addr, admin := freeAddr(t), freeAddr(t)
	config := fmt.Sprintf("[server]\nlisten = %q\n%s\n[admin]\nlisten = %q\n[log]\naccess = false\n[upstream.up]\nurl = %q\n",
		addr, s.server, admin, s.upstream)
	if s.tls {
		certificate(t, dir)
		config += fmt.Sprintf("[tls]\ncertificates = [{ cert = %q, key = %q }]\n",
			filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	}
	config += "[[route]]\nmatch = \"/\"\nupstream = \"up\"\n" + s.rest
	p, err := rig.Shapeproxy(dir, program, admin, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("shapeproxy: %v", err)
		}
		if out := p.Output(); strings.Contains(out, "panic") || strings.Contains(out, "goroutine ") {
			t.Errorf("shapeproxy panicked:\n%s", out)
		}
	})
	return front{p, addr, dir}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	addr, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// certificate writes cert.pem and key.pem for localhost into dir.
func certificate(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 6, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	for name, content := range map[string][]byte{"cert.pem": cert, "key.pem": private} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// split returns host and port of an address.
func split(t *testing.T, addr string) (string, string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}
