package identity

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"testing"
)

func TestClientCert(t *testing.T) {
	uris := func(list ...string) (parsed []*url.URL) {
		for _, s := range list {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, u)
		}
		return parsed
	}
	alice := pkix.Name{CommonName: "alice", Organization: []string{"Acme, Inc."}}
	for _, tt := range []struct {
		leaf x509.Certificate
		want string
	}{
		{x509.Certificate{Subject: alice}, `CN=alice,O=Acme\, Inc.`},
		{x509.Certificate{Subject: alice, DNSNames: []string{"a.test"}}, `CN=alice,O=Acme\, Inc.`},
		// SPIRE gives one subject to all.
		{x509.Certificate{Subject: pkix.Name{Organization: []string{"SPIRE"}}, URIs: uris("spiffe://td/web")}, "spiffe://td/web"},
		{x509.Certificate{Subject: alice, URIs: uris("https://a.test/")}, `CN=alice,O=Acme\, Inc.`},
		{x509.Certificate{URIs: uris("https://a.test/")}, "https://a.test/"},
		{x509.Certificate{DNSNames: []string{"a.test", "b.test"}}, "a.test"},
		{x509.Certificate{EmailAddresses: []string{"a@b.test"}}, "a@b.test"},
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}, "192.0.2.1"},
		{x509.Certificate{}, ""},
	} {
		s := source("https://api.test/")
		s.Request.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{&tt.leaf}}}
		got, present, err := key(t, "client-cert").Of(s)
		if got != tt.want || present != (tt.want != "") || err != nil {
			t.Errorf("got %q, %v, %v, want %q", got, present, err, tt.want)
		}
		// What was shown and not verified is nobody's.
		s.Request.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{&tt.leaf}}
		if got, present, _ := key(t, "client-cert").Of(s); got != "" || present {
			t.Errorf("unverified: %q", got)
		}
		s.Request.TLS = nil
		if got, present, _ := key(t, "client-cert").Of(s); got != "" || present {
			t.Errorf("plain HTTP: %q", got)
		}
	}
}
