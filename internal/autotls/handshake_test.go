package autotls

import (
	"crypto/tls"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

var quiet = slog.New(slog.DiscardHandler)

// listen shakes hands with everybody, as http.Server does, and says one byte.
// What it knows of each connection is sent to seen.
func listen(t *testing.T, s *Source) (addr string, seen <-chan tls.ConnectionState) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.Config())
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan tls.ConnectionState, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if conn := c.(*tls.Conn); conn.Handshake() == nil {
				states <- conn.ConnectionState()
				conn.Write([]byte("."))
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), states
}

// dial shakes hands and reads the byte, which under TLS 1.3 says that the client
// was let in, and brings its session.
func dial(addr string, c *tls.Config) (tls.ConnectionState, error) {
	conn, err := tls.Dial("tcp", addr, c)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 1))
	return conn.ConnectionState(), err
}

// The certificate is chosen by SNI: exact or wildcard, whatever the case; the
// first for all others.
func TestServerName(t *testing.T) {
	a, dir := newAuthority(t, "ca"), t.TempDir()
	s := newSource(t, config.TLS{Certificates: []config.Certificate{
		a.stored(dir, "first", "a.test"), a.stored(dir, "wild", "*.b.test"), a.stored(dir, "exact", "X.B.test"),
	}}, quiet)
	defer s.Close()
	addr, _ := listen(t, s)
	for name, want := range map[string]string{
		"a.test": "first", "A.TEST": "first", "c.b.test": "wild", "C.B.Test": "wild", "x.b.test": "wild",
		"b.test": "first", "d.c.b.test": "first", "other.test": "first", "": "first",
	} {
		state, err := dial(addr, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := state.PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestVersionsAndSuites(t *testing.T) {
	a, dir := newAuthority(t, "ca"), t.TempDir()
	s := newSource(t, config.TLS{Certificates: []config.Certificate{a.stored(dir, "one", "a.test")}}, quiet)
	defer s.Close()
	addr, _ := listen(t, s)
	for _, tt := range []struct {
		version uint16
		suite   uint16
		ok      bool
	}{
		{tls.VersionTLS10, 0, false},
		{tls.VersionTLS11, 0, false},
		{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, false},
		{tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, true},
		{tls.VersionTLS13, 0, true},
	} {
		c := &tls.Config{ServerName: "a.test", RootCAs: a.pool(), MinVersion: tt.version, MaxVersion: tt.version}
		if tt.suite != 0 {
			c.CipherSuites = []uint16{tt.suite}
		}
		if _, err := dial(addr, c); (err == nil) != tt.ok {
			t.Errorf("%s %s: %v", tls.VersionName(tt.version), tls.CipherSuiteName(tt.suite), err)
		}
	}
}

// A session of before a change does not let anybody in whom the rules of now
// would keep out, nor as somebody whom they do not know.
func TestSessionsAcrossRules(t *testing.T) {
	one, two, dir := newAuthority(t, "one"), newAuthority(t, "two"), t.TempDir()
	for name, a := range map[string]*authority{"one": one, "two": two} {
		write(t, filepath.Join(dir, name+"-ca.pem"), a.pem())
	}
	pair := one.stored(dir, "server", "a.test")
	rules := func(words string) config.TLS {
		c := config.TLS{Certificates: []config.Certificate{pair}}
		if mode, name, ok := strings.Cut(words, " "); ok {
			c.ClientAuth, c.ClientCA = mode, filepath.Join(dir, name+"-ca.pem")
		}
		return c
	}
	for _, tt := range []struct {
		client        *authority // of its certificate; nil: none
		before, after string
		in, known     bool // after the change
	}{
		{nil, "", "", true, false},
		{nil, "", "require one", false, false},
		{nil, "", "optional one", true, false},
		{nil, "optional one", "require one", false, false},
		{one, "require one", "require one", true, true},
		{one, "require one", "require two", false, false},
		{one, "optional one", "require two", false, false},
		{one, "require one", "", true, false},
		{two, "require two", "require one", false, false},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			s := newSource(t, rules(tt.before), quiet)
			addr, seen := listen(t, s)
			c := &tls.Config{ServerName: "a.test", RootCAs: one.pool(), MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
			if tt.client != nil {
				c.Certificates = tt.client.client("client")
			}
			first, err := dial(addr, c)
			if err != nil {
				t.Fatalf("%q %s: %v", tt.before, tls.VersionName(version), err)
			}
			before := <-seen
			files, err := s.Load(rules(tt.after))
			if err != nil {
				t.Fatal(err)
			}
			s.Use(files)
			if got := s.Misdirected(&before); got == (tt.in && (tt.known || tt.client == nil || tt.after == "")) {
				t.Errorf("%q then %q, %s: the connection of before is misdirected: %v", tt.before, tt.after, tls.VersionName(version), got)
			}
			state, err := dial(addr, c)
			if (err == nil) != tt.in || first.DidResume {
				t.Errorf("%q then %q, %s: %v", tt.before, tt.after, tls.VersionName(version), err)
			}
			if err == nil {
				if now := <-seen; (len(now.VerifiedChains) > 0) != tt.known {
					t.Errorf("%q then %q, %s: known: %v", tt.before, tt.after, tls.VersionName(version), !tt.known)
				}
				if tt.before == tt.after && !state.DidResume {
					t.Errorf("%q, %s: nothing is resumed, so this test shows nothing", tt.after, tls.VersionName(version))
				}
			}
			s.Close()
		}
	}
}

// A certificate that nobody here vouches for is no better than none.
func TestStrangersCertificate(t *testing.T) {
	one, two, dir := newAuthority(t, "one"), newAuthority(t, "two"), t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	write(t, ca, one.pem())
	for mode, ok := range map[string]bool{"require": false, "optional": false} {
		s := newSource(t, config.TLS{Certificates: []config.Certificate{one.stored(dir, "server", "a.test")}, ClientCA: ca, ClientAuth: mode}, quiet)
		addr, _ := listen(t, s)
		c := &tls.Config{ServerName: "a.test", RootCAs: one.pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &two.client("stranger")[0], nil
		}}
		if _, err := dial(addr, c); (err == nil) != ok {
			t.Errorf("%s: %v", mode, err)
		}
		s.Close()
	}
}
