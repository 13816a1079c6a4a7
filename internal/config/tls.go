package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
)

// httpPort is where a CA asks for HTTP-01 (RFC 8555, section 8.3), and where
// clients come that know nothing of TLS.
const httpPort = 80

const pairForm = `certificates = [ { cert = "a.pem", key = "a.key" } ]`

func (d *decoder) tls(t *table, set bool, public []string, admin string) TLS {
	var c TLS
	before := len(d.problems)
	for _, ct := range t.subs("certificates", "a certificate", pairForm) {
		var one Certificate
		ct.keep("cert", "the path of a PEM file", &one.Cert)
		ct.keep("key", "the path of a PEM file", &one.Key)
		ct.require("cert", `"FILE.pem"`)
		ct.require("key", `"FILE.key"`)
		ct.finish()
		if one.Cert != "" && one.Key != "" {
			d.certificate(ct, one)
		}
		c.Certificates = append(c.Certificates, one)
	}
	t.clientAuth(&c)
	t.acme(&c.ACME)
	t.httpPort(&c, public, admin)
	t.finish()
	if set && !c.On() && len(d.problems) == before {
		t.bad("certificates", "there is none, so TLS cannot be spoken; write %s, or domains = [\"api.example.com\"] to obtain them by ACME, or remove [tls]", pairForm)
	}
	return c
}

func (t *table) keep(key, form string, dst *string) {
	t.text(key, form, func(s string) error { *dst = s; return nil })
}

func (d *decoder) certificate(t *table, c Certificate) {
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		key := "cert"
		if unread := (*os.PathError)(nil); errors.As(err, &unread) && unread.Path == c.Key {
			key = "key"
		}
		t.bad(key, "cannot be used: %s; name PEM files of a certificate chain and its private key", oneLine(cause(err)))
		return
	}
	switch now := time.Now(); {
	case pair.Leaf == nil:
	case now.After(pair.Leaf.NotAfter):
		d.warn(t.at("cert"), "the certificate expired on %s, so clients will refuse it; renew it", pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	case now.Before(pair.Leaf.NotBefore):
		d.warn(t.at("cert"), "the certificate is not valid before %s, so clients will refuse it until then", pair.Leaf.NotBefore.UTC().Format(time.DateOnly))
	}
	if f, err := os.Open(c.Key); err == nil {
		d.warnReadable(t.at("key"), f)
		f.Close()
	}
}

func (t *table) clientAuth(c *TLS) {
	t.text("client_ca", "the path of a PEM file", func(file string) error {
		c.ClientCA = file
		return roots(file)
	})
	if c.ClientCA != "" {
		c.ClientAuth = "require"
	}
	t.word("client_auth", &c.ClientAuth, "require", "optional")
	if t.has("client_auth") && !t.has("client_ca") {
		t.bad("client_auth", "has no effect without client_ca; name a PEM file of those who sign clients' certificates, or remove it")
	}
}

// roots checks a file of trusted certificates.
func roots(file string) error {
	data, err := readPEM(file)
	if err != nil {
		return err
	}
	if _, err := ParseRoots([]byte(data)); err != nil {
		return discreet("the file cannot be used: " + oneLine(err.Error()) + "; name a PEM file of certificates")
	}
	return nil
}

// ParseRoots reads certificates in PEM, of which there must be one at least.
func ParseRoots(data []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("it holds no certificate")
	}
	return certs, nil
}

// acmeFields have no effect without domains.
var acmeFields = []string{"email", "ca", "ca_root", "storage", "agree_tos"}

func (t *table) acme(a *ACME) {
	t.each("domains", `a host name such as "api.example.com"`, false, func(name string) error {
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		switch {
		case strings.HasPrefix(name, "*."):
			return fmt.Errorf("%q is a wildcard, which a CA gives only for a change of DNS; list the names, or use certificates", name)
		case literal(name) || checkHost(name) != nil || !strings.Contains(name, ".") && !t.has("ca"):
			return fmt.Errorf("%q is no host name that a CA could give a certificate for; write one such as \"api.example.com\"", name)
		case slices.Contains(a.Domains, name):
			return fmt.Errorf("%q stands twice; remove one", name)
		}
		a.Domains = append(a.Domains, name)
		return nil
	})
	t.text("email", `an address such as "ops@example.com"`, func(s string) error {
		if at, err := mail.ParseAddress(s); s != "" && (err != nil || at.Address != s) {
			return fmt.Errorf("%q is not an address; write one such as \"ops@example.com\"", s)
		}
		a.Email = s
		return nil
	})
	t.text("ca", directoryForm, func(s string) error {
		u, err := url.Parse(s)
		if s != "" && (err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "") {
			return discreet("is not " + directoryForm + "; write one, or remove it for Let's Encrypt")
		}
		a.CA = s
		return nil
	})
	t.text("ca_root", "the path of a PEM file", func(file string) error {
		if a.CARoot = file; file == "" {
			return nil
		}
		return roots(file)
	})
	t.keep("storage", "the path of a folder", &a.Storage)
	agreed := false
	t.flag("agree_tos", &agreed)
	if !t.has("domains") {
		for _, key := range acmeFields {
			if t.has(key) {
				t.bad(key, "has no effect without domains; write domains = [\"api.example.com\"] to obtain certificates, or remove it")
			}
		}
		return
	}
	if len(a.Domains) == 0 && !slices.ContainsFunc(t.d.problems, func(p Problem) bool { return strings.HasPrefix(p.Key, "tls.domains") }) {
		t.bad("domains", "is empty; write domains = [\"api.example.com\"], or remove it")
	}
	if v, ok := t.values["agree_tos"].(bool); !t.has("agree_tos") || ok && !v {
		t.bad("agree_tos", "certificates are only given to who accepts the CA's terms of service; read them, and write agree_tos = true")
	}
	if a.Storage == "" {
		t.dataFolder(&a.Storage)
	}
}

const directoryForm = `the URL of a directory such as "https://acme.example.com/directory"`

// dataFolder is the user's own, by the XDG Base Directory Specification.
func (t *table) dataFolder(dst *string) {
	base, _ := t.d.getenv("XDG_DATA_HOME")
	if home, _ := t.d.getenv("HOME"); !filepath.IsAbs(base) && filepath.IsAbs(home) {
		base = filepath.Join(home, ".local", "share")
	}
	if !filepath.IsAbs(base) {
		t.bad("storage", "the user who runs this has no home folder; write where certificates are kept, such as storage = \"/var/lib/shapeproxy\"")
		return
	}
	*dst = filepath.Join(base, "shapeproxy")
}

// httpPort is 80 where certificates are obtained and, since not everybody may
// open it, off where they are files.
func (t *table) httpPort(c *TLS, public []string, admin string) {
	if len(c.ACME.Domains) > 0 {
		c.HTTPPort = httpPort
	}
	t.int("http_port", &c.HTTPPort, 0, 65535)
	tcp := false
	for _, l := range append(public[:len(public):len(public)], admin) {
		_, port, err := net.SplitHostPort(l)
		if err != nil || strings.HasPrefix(l, identity.UnixWord) {
			continue
		}
		if tcp = tcp || l != admin; port == strconv.Itoa(c.HTTPPort) && c.HTTPPort != 0 {
			t.bad("http_port", "is the port of the listener %q too; write another, or 0 for none", l)
			return
		}
	}
	if !tcp && len(c.ACME.Domains) > 0 && c.HTTPPort == 0 {
		t.bad("http_port", "the CA could reach nothing here, as every listener is a Unix socket; write http_port = 80, or listen on a port too")
	}
}

// askedFor notes a limit that tells clients apart by certificates that no
// client is asked for.
func (t *table) askedFor(l *Limit, c TLS) {
	for field, key := range map[string]identity.Key{"key": l.Key, "fair_by": l.FairBy} {
		if c.ClientCA == "" && slices.ContainsFunc(key.Parts(), func(p identity.Part) bool { return p.Kind == identity.ClientCert }) {
			t.bad(field, "no client is asked for a certificate; write client_ca = \"FILE.pem\" in [tls], or another key")
		}
	}
}

func (t TLS) words() string {
	switch n := len(t.Certificates); {
	case !t.On():
		return "plain HTTP"
	case n == 0:
		return "TLS"
	case n == 1:
		return "TLS and 1 certificate"
	default:
		return fmt.Sprintf("TLS and %d certificates", n)
	}
}

// explain says what TLS asks of clients and of a CA.
func (t TLS) explain() (lines []string) {
	if a := t.ACME; len(a.Domains) > 0 {
		ca := "Let's Encrypt"
		if a.CA != "" {
			ca = a.CA
		}
		lines = append(lines, fmt.Sprintf("certificates for %s are obtained from %s and kept in %s", allOf(a.Domains), ca, a.Storage))
	}
	switch t.ClientAuth {
	case "require":
		lines = append(lines, "clients must show a certificate that client_ca vouches for")
	case "optional":
		lines = append(lines, "clients may show a certificate that client_ca vouches for")
	}
	if t.On() && t.HTTPPort > 0 {
		lines = append(lines, fmt.Sprintf("plain HTTP on port %d is redirected to https", t.HTTPPort))
	}
	return lines
}
