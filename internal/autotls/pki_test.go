package autotls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// An authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, key)
	return a
}

func (a *authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	parent := a.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// pair returns PEM of a certificate and its key: of a server with names, or of a
// client without.
func (a *authority) pair(subject string, names ...string) (cert, key []byte) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	usage := x509.ExtKeyUsageServerAuth
	if len(names) == 0 {
		usage = x509.ExtKeyUsageClientAuth
	}
	c := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: subject}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, k)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return encode("CERTIFICATE", c.Raw), encode("PRIVATE KEY", der)
}

func (a *authority) pem() []byte { return encode("CERTIFICATE", a.cert.Raw) }

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// client is a client's certificate.
func (a *authority) client(subject string) []tls.Certificate {
	a.t.Helper()
	c, err := tls.X509KeyPair(a.pair(subject))
	if err != nil {
		a.t.Fatal(err)
	}
	return []tls.Certificate{c}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// stored writes a server's certificate and key to files NAME.pem and NAME.key.
func (a *authority) stored(dir, name string, names ...string) config.Certificate {
	a.t.Helper()
	c := config.Certificate{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}
	cert, key := a.pair(name, names...)
	write(a.t, c.Cert, cert)
	write(a.t, c.Key, key)
	return c
}

// A journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: level}))
}

func newSource(t *testing.T, c config.TLS, log *slog.Logger) *Source {
	t.Helper()
	s, err := New(c, log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
