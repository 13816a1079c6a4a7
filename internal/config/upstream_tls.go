package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"time"
)

// maxPEM bounds the files that hold certificates and keys: the bundle of a
// whole system is a quarter of it.
const maxPEM = 1 << 20

// upstreamTLS reads the table tls of an upstream, and the files that it names.
func (d *decoder) upstreamTLS(t *table, u *Upstream) {
	c := &u.TLS
	set := t.has("tls")
	tt := t.sub("tls", "tls of an upstream")
	if set && u.Scheme != "" && u.Scheme != "https" {
		t.bad("tls", "is for URLs that begin with https://; change the URL, or remove it")
	}
	tt.text("ca", "the path of a PEM file", func(file string) (err error) {
		if c.CA, err = readPEM(file); err != nil {
			return err
		}
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CA)) {
			return fmt.Errorf("%q holds no certificate; name a PEM file of the authorities that sign the upstream's", file)
		}
		return nil
	})
	before := len(d.problems)
	var keyFile string
	tt.text("client_cert", "the path of a PEM file", func(file string) (err error) {
		c.ClientCert, err = readPEM(file)
		return err
	})
	tt.text("client_key", "the path of a PEM file", func(file string) (err error) {
		keyFile = file
		c.ClientKey, err = readPEM(file)
		return err
	})
	switch hasCert, hasKey := tt.has("client_cert"), tt.has("client_key"); {
	case hasCert && !hasKey:
		tt.require("client_key", `"FILE.key"`)
	case hasKey && !hasCert:
		tt.require("client_cert", `"FILE.pem"`)
	case hasCert && len(d.problems) == before:
		d.clientCertificate(tt, c, keyFile)
	}
	tt.text("server_name", "a host name", func(s string) error {
		c.ServerName = s
		return checkHost(s)
	})
	tt.finish()
}

func (d *decoder) clientCertificate(t *table, c *UpstreamTLS, keyFile string) {
	pair, err := tls.X509KeyPair([]byte(c.ClientCert), []byte(c.ClientKey))
	if err != nil {
		t.bad("client_cert", "cannot be used: %s; name PEM files of a certificate chain and its private key", oneLine(err.Error()))
		return
	}
	if pair.Leaf != nil && time.Now().After(pair.Leaf.NotAfter) {
		d.warn(t.at("client_cert"), "the certificate expired on %s, so the upstream will refuse it; renew it", pair.Leaf.NotAfter.UTC().Format(time.DateOnly))
	}
	if f, err := os.Open(keyFile); err == nil {
		d.warnReadable(t.at("client_key"), f)
		f.Close()
	}
}

func readPEM(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("%q cannot be read: %s; name a PEM file", file, cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%q cannot be read: %s; name a PEM file", file, cause(err))
	case len(data) > maxPEM:
		return "", fmt.Errorf("%q is larger than 1 MiB, so it is hardly a PEM file; name another", file)
	}
	return string(data), nil
}
