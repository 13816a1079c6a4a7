package autotls

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// Two of CertMagic's goroutines outlive a Source: its bound on orders, of which
// there is one for each CA and address, and what keeps a lock's file fresh, which
// ends within five seconds of the lock.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*RingBufferRateLimiter).loop"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

func acmeConfig(t *testing.T) config.TLS {
	return config.TLS{ACME: config.ACME{
		Domains: []string{"api.test", "www.test"}, CA: "https://127.0.0.1:1/directory", // where nobody listens
		Storage: filepath.Join(t.TempDir(), "storage"),
	}}
}

// Names of others cost nothing: no certificate, no order, no look at the disk.
func TestUnknownNames(t *testing.T) {
	c := acmeConfig(t)
	s := newSource(t, c, quiet)
	defer s.Close()
	addr, _ := listen(t, s)
	for _, name := range []string{"other.test", "x.api.test", "api.test.evil.test", ""} {
		for _, protos := range [][]string{nil, {"h2"}, {challengeProtocol}} {
			_, err := dial(addr, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: protos})
			if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
				t.Errorf("%q with %v: %v, want unrecognized_name", name, protos, err)
			}
		}
	}
	for host, query := range map[string]string{"other.test": "", "..": "", "../../x": "", "": "", "api.test": "?q"} {
		r := httptest.NewRequest("GET", "/.well-known/acme-challenge/x"+query, nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.Plain().ServeHTTP(w, r)
		if w.Code == http.StatusOK {
			t.Errorf("%q%s: answered", host, query)
		}
	}
	if _, err := os.Stat(c.ACME.Storage); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the storage folder was touched:", err)
	}
	// Known names have none yet either.
	if _, err := dial(addr, &tls.Config{ServerName: "API.test", InsecureSkipVerify: true}); err == nil {
		t.Error("a certificate out of nowhere")
	}
	if got := s.Waiting(); len(got) != 2 || got[0] != "api.test" {
		t.Errorf("waiting for %v", got)
	}
}

// A certificate in a file serves while none has been obtained, as it serves names
// of others.
func TestFilesBesideACME(t *testing.T) {
	a := newAuthority(t, "ca")
	c := acmeConfig(t)
	c.Certificates = []config.Certificate{a.stored(t.TempDir(), "file", "api.test", "file.test")}
	s := newSource(t, c, quiet)
	defer s.Close()
	// Of what has not been obtained, nothing is said.
	if got := s.Expiries(); len(got) != 1 || time.Until(got[c.Certificates[0].Cert]).Round(time.Hour) != 24*time.Hour {
		t.Errorf("they end at %v", got)
	}
	addr, _ := listen(t, s)
	for _, name := range []string{"api.test", "file.test", "other.test", ""} {
		if _, err := dial(addr, &tls.Config{ServerName: name, InsecureSkipVerify: true}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// While the CA is away, one line for each failure, and an end at once when told.
func TestTheCAIsAway(t *testing.T) {
	log := new(journal)
	c := acmeConfig(t)
	s := newSource(t, c, log.logger(slog.LevelInfo))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.Start([]net.Listener{l}, nil)
	for deadline := time.Now().Add(time.Minute); strings.Count(log.String(), "no certificate could be obtained") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(log)
		}
	}
	s.Close()
	for line := range strings.Lines(log.String()) {
		if !strings.Contains(line, `msg="no certificate could be obtained; `) || !strings.Contains(line, "again_in=2s") {
			t.Error(line)
		}
	}
}

// What CertMagic says is for debugging, and its own debugging is dropped.
func TestCertMagicsLog(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelInfo:  "",
		slog.LevelDebug: `level=DEBUG msg=certmagic said="it failed" part=obtain domain=api.test` + "\n",
	} {
		log := new(journal)
		z := zap.New(debugCore{log: log.logger(level)}).Named("obtain").With(zap.String("domain", "api.test"))
		z.Error("it failed")
		z.Debug("the token is hunter2")
		_, got, _ := strings.Cut(log.String(), " ")
		if got != want {
			t.Errorf("%s: %q, want %q", level, got, want)
		}
	}
}
