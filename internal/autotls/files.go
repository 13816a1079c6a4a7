package autotls

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// Files are certificates and their keys, and who may sign those of clients.
type Files struct {
	pairs []*watched[tls.Certificate]
	ca    *watched[authorities] // nil: clients are not asked for certificates
	auth  tls.ClientAuthType
}

// authorities are who may sign certificates.
type authorities struct {
	pool  *x509.CertPool
	certs map[string]bool // by their DER
}

// Load reads the files that c names.
func (s *Source) Load(c config.TLS) (*Files, error) {
	f := new(Files)
	for _, pair := range c.Certificates {
		w := &watched[tls.Certificate]{paths: []string{pair.Cert, pair.Key}, parse: parsePair}
		if err := w.load(); err != nil {
			return nil, fmt.Errorf("certificate %s: %w", pair.Cert, err)
		}
		f.pairs = append(f.pairs, w)
	}
	if c.ClientCA == "" {
		return f, nil
	}
	f.ca = &watched[authorities]{paths: []string{c.ClientCA}, parse: parseAuthorities}
	if err := f.ca.load(); err != nil {
		return nil, fmt.Errorf("client_ca %s: %w", c.ClientCA, err)
	}
	f.auth = tls.RequireAndVerifyClientCert
	if c.ClientAuth == "optional" {
		f.auth = tls.VerifyClientCertIfGiven
	}
	return f, nil
}

func parsePair(contents [][]byte) (tls.Certificate, error) {
	return tls.X509KeyPair(contents[0], contents[1])
}

func parseAuthorities(contents [][]byte) (authorities, error) {
	certs, err := config.ParseRoots(contents[0])
	if err != nil {
		return authorities{}, err
	}
	a := authorities{x509.NewCertPool(), make(map[string]bool, len(certs))}
	for _, c := range certs {
		a.pool.AddCert(c)
		a.certs[string(c.Raw)] = true
	}
	return a, nil
}

// watch looks at the files until ctx ends.
func (s *Source) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.look()
		}
	}
}

func (s *Source) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, p := range s.files.pairs {
		if p.look(s.log) {
			s.log.Info("certificate read again", "file", p.paths[0], "not_after", p.value.Leaf.NotAfter)
			changed = true
		}
	}
	if ca := s.files.ca; ca != nil && ca.look(s.log) {
		s.log.Info("client_ca read again", "file", ca.paths[0], "certificates", len(ca.value.certs))
		changed = true
	}
	if changed {
		s.now.Store(s.rules())
	}
}

// A watched is what was made last of the contents of some files. What they hold
// is compared, not their times: a file may be replaced, written in place, or
// reached through links that are swapped, as Kubernetes does, all within the
// resolution of a clock.
type watched[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	value T

	seen, tried [sha256.Size]byte // contents at the last look, and those parsed last
}

func (w *watched[T]) load() error {
	contents, sum, err := w.read()
	if err != nil {
		return err
	}
	w.seen, w.tried = sum, sum
	w.value, err = w.parse(contents)
	return err
}

// look reports whether there is a new value. Contents that cannot be used are
// told of once and leave the value as it was. Those that no look has seen before
// are left for the next: of a certificate and its key, one is written first.
func (w *watched[T]) look(log *slog.Logger) bool {
	contents, sum, err := w.read()
	if sum != w.seen {
		w.seen = sum
		return false
	}
	if sum == w.tried {
		return false
	}
	w.tried = sum
	var value T
	if err == nil {
		value, err = w.parse(contents)
	}
	if err != nil {
		log.Warn("the file has changed and cannot be used; what it held before stays in force", "file", w.paths[0], "error", err)
		return false
	}
	w.value = value
	return true
}

// maxFile bounds a file that is read again and again.
const maxFile = 1 << 20

func (w *watched[T]) read() (contents [][]byte, sum [sha256.Size]byte, err error) {
	hash := sha256.New()
	for _, path := range w.paths {
		b, fault := readFile(path)
		if fault != nil && err == nil {
			err = fault
		}
		contents = append(contents, b)
		fmt.Fprintf(hash, "%d %v\n", len(b), fault) // so that no two lists of files give one sum
		hash.Write(b)
	}
	hash.Sum(sum[:0])
	return contents, sum, err
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than 1 MiB", path)
	}
	return b, err
}
