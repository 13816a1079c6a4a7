// Package autotls holds the certificates that listeners show: those in files,
// which are watched, and those that it obtains by ACME (RFC 8555). It also
// answers plain HTTP, for the CA and for clients that know nothing of TLS.
package autotls

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// watchEvery is how often files are looked at. A change counts once two looks
// in a row have seen it.
const watchEvery = 2 * time.Second

// closeWait is for an OCSP responder that does not answer, the one thing that
// CertMagic cannot be called away from.
const closeWait = 5 * time.Second

// A Source is where the listeners of one process have their certificates from.
// Its methods are safe for concurrent use, but Start and Close, of which each is
// called once and in this order.
type Source struct {
	log  *slog.Logger
	acme *issuance // nil: nothing is obtained
	now  atomic.Pointer[rules]

	tlsPort, plainPort int // 0: there is none; set by Start

	mu    sync.Mutex // held while files are read
	files *Files

	stop    context.CancelFunc
	running sync.WaitGroup
}

// rules are what a handshake goes by.
type rules struct {
	tls   *tls.Config
	roots map[string]bool // of client_ca, by their DER; nil: clients are not asked
}

// suites are those of TLS 1.2 that encrypt and authenticate in one and keep what
// was recorded secret when the key gets out (RFC 9325, section 4.2). TLS 1.3 has
// no others.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// New reads the files that c names. Nothing is watched or obtained before Start.
func New(c config.TLS, log *slog.Logger) (*Source, error) {
	s := &Source{log: log}
	if len(c.ACME.Domains) > 0 {
		var err error
		if s.acme, err = newIssuance(c, log); err != nil {
			return nil, err
		}
	}
	files, err := s.Load(c)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Use(files)
	return s, nil
}

// Start begins to watch the files, and to obtain the certificates that are not in
// the storage folder, without waiting for either. The listeners are those of
// TLS and those of plain HTTP; they must accept connections until Close.
func (s *Source) Start(secure, plain []net.Listener) {
	var host string
	host, s.tlsPort = firstPort(secure)
	_, s.plainPort = firstPort(plain)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.running.Go(func() { s.watch(ctx) })
	if s.acme != nil {
		s.acme.start(ctx, &s.running, host, s.tlsPort, s.plainPort)
	}
}

// firstPort is where the first of the listeners is that has a port.
func firstPort(listeners []net.Listener) (host string, port int) {
	for _, l := range listeners {
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			if !at.IP.IsUnspecified() {
				host = at.IP.String()
			}
			return host, at.Port
		}
	}
	return "", 0
}

// Close ends what Start began and waits for it, but not longer than closeWait.
// Handshakes go on with the certificates that are there.
func (s *Source) Close() {
	if s.stop != nil {
		s.stop()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.running.Wait()
		if s.acme != nil {
			s.acme.close()
		}
	}()
	select {
	case <-ended:
	case <-time.After(closeWait):
	}
}

// Config is for listeners. What it asks of clients follows Use and the files.
func (s *Source) Config() *tls.Config {
	return &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if s.acme != nil && isChallenge(hello) {
			return s.acme.challenge, nil
		}
		return s.now.Load().tls, nil
	}}
}

// Use makes files what handshakes go by from now on. Sessions of before are
// resumed only as far as crypto/tls finds what the client showed then to be good
// enough now; see Misdirected for connections.
func (s *Source) Use(files *Files) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = files
	s.now.Store(s.rules())
}

// rules puts the files' certificates together; mu is held.
func (s *Source) rules() *rules {
	r := &rules{tls: &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: suites,
		NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: s.files.auth,
	}}
	for _, p := range s.files.pairs {
		r.tls.Certificates = append(r.tls.Certificates, p.value)
	}
	if ca := s.files.ca; ca != nil {
		r.tls.ClientCAs, r.roots = ca.value.pool, ca.value.certs
	}
	if s.acme != nil {
		r.tls.GetCertificate = s.acme.certificate
	}
	return r
}

// Misdirected reports whether a connection was made under rules for clients'
// certificates that are no longer those of now, and which it does not meet: its
// requests belong on a new one (RFC 9110, section 15.5.20).
func (s *Source) Misdirected(conn *tls.ConnectionState) bool {
	r := s.now.Load()
	switch {
	case r.tls.ClientAuth == tls.NoClientCert:
		return false
	case len(conn.VerifiedChains) == 0:
		return r.tls.ClientAuth == tls.RequireAndVerifyClientCert
	}
	for _, chain := range conn.VerifiedChains {
		if r.roots[string(chain[len(chain)-1].Raw)] {
			return false
		}
	}
	return true
}

// Waiting names the domains that there is no certificate for yet.
func (s *Source) Waiting() []string {
	if s.acme == nil {
		return nil
	}
	return s.acme.waiting()
}

// Expiries is when each certificate ends, by its domain or the file it is in.
func (s *Source) Expiries() map[string]time.Time {
	ends := map[string]time.Time{}
	s.mu.Lock()
	for _, p := range s.files.pairs {
		ends[p.paths[0]] = p.value.Leaf.NotAfter
	}
	s.mu.Unlock()
	if s.acme != nil {
		s.acme.expiries(ends)
	}
	return ends
}

// knows reports whether there is, or is to be, a certificate for that name.
func (s *Source) knows(name string) bool {
	return s.acme != nil && s.acme.manages(name) ||
		slices.ContainsFunc(s.now.Load().tls.Certificates, func(c tls.Certificate) bool {
			return c.Leaf.VerifyHostname(strings.Trim(name, "[]")) == nil
		})
}
