package assemble

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// certify writes a self-signed certificate of that name and its key, and
// returns their paths.
func certify(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestUpstreamTLS: the upstream sees the name and the certificate that the file
// says, over HTTP/2, and its own is believed for the authority in the file
// only. A reload takes in what changed in the files.
func TestUpstreamTLS(t *testing.T) {
	dir := t.TempDir()
	serverCert, serverKey := certify(t, dir, "api.internal")
	clientCert, clientKey := certify(t, dir, "first.client")
	pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.TLS.ServerName, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	up.EnableHTTP2 = true
	up.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	up.StartTLS()
	t.Cleanup(up.Close)

	s := newSystem(t)
	front := httptest.NewServer(s.Proxy)
	t.Cleanup(front.Close)
	apply := func(fields string) (int, string) {
		t.Helper()
		s.mustApply(t, fmt.Sprintf("[upstream.app]\nurl = %q\ntls = { %s }\n[[route]]\nmatch = \"/\"\nupstream = \"app\"\n", up.URL, fields))
		res, err := http.Get(front.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	whole := fmt.Sprintf("ca = %q, client_cert = %q, client_key = %q, server_name = \"api.internal\"", serverCert, clientCert, clientKey)
	if code, text := apply(whole); code != 200 || text != "HTTP/2.0 api.internal first.client" {
		t.Errorf("%d %s", code, text)
	}
	before := s.now.Load().upstreams[0].Upstream
	if apply(whole); s.now.Load().upstreams[0].Upstream != before {
		t.Error("an upstream whose files did not change lost its connections")
	}
	otherCert, otherKey := certify(t, dir, "second.client")
	for from, to := range map[string]string{otherCert: clientCert, otherKey: clientKey} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if code, text := apply(whole); code != 200 || text != "HTTP/2.0 api.internal second.client" {
		t.Errorf("after the files changed: %d %s", code, text)
	}
	for name, fields := range map[string]string{
		"another name":      fmt.Sprintf("ca = %q, client_cert = %q, client_key = %q, server_name = \"other.internal\"", serverCert, clientCert, clientKey),
		"another authority": fmt.Sprintf("ca = %q, client_cert = %q, client_key = %q, server_name = \"api.internal\"", clientCert, clientCert, clientKey),
	} {
		if code, text := apply(fields); code != 502 {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
}

// TestBreakerWaits: with when_open = "wait" who waits in a queue keeps the place
// through an outage, and through a reload in the midst of it.
func TestBreakerWaits(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	var came atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		if broken.Load() {
			w.WriteHeader(500)
		}
	}))
	t.Cleanup(up.Close)
	s := newSystem(t)
	front := httptest.NewServer(s.Proxy)
	t.Cleanup(front.Close)
	conf := fmt.Sprintf("[upstream.app]\nurl = %q\nbreaker = { min_requests = 2, open_for = \"1h\", when_open = \"wait\" }\n", up.URL) +
		"[limit.q]\nalgorithm = \"leaky-bucket\"\nrate = \"1000/s\"\nqueue = 10\nmax_wait = \"2h\"\n" +
		"[[route]]\nmatch = \"/\"\nupstream = \"app\"\nlimits = [\"q\"]\n"
	s.mustApply(t, conf)
	get := func() int {
		res, err := http.Get(front.URL)
		if err != nil {
			t.Error(err)
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	for range 2 {
		if code := get(); code != 500 {
			t.Fatalf("status %d", code)
		}
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if code := get(); code != 200 {
				t.Errorf("a waiter is answered %d", code)
			}
		})
	}
	for deadline := time.Now().Add(3 * time.Second); s.Limits()[0].Depth != 5 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if n := came.Load(); n != 2 {
		t.Errorf("%d requests came while the breaker was open", n-2)
	}
	broken.Store(false)
	// Another upstream by the same name, whose breaker is closed.
	s.mustApply(t, strings.Replace(conf, "1h", "2h", 1))
	all.Wait()
	if n := came.Load(); n != 7 {
		t.Errorf("%d requests came in all, want 7", n)
	}
}
