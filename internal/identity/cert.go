package identity

import (
	"crypto/tls"
	"crypto/x509"
)

// certValue names whom the client's certificate is for; "" if it showed none,
// or none that was verified.
//
// The name and not the key or the certificate is what counts, as it stays when
// a certificate is renewed: a client would else get a new budget with each.
// It is the SPIFFE ID where there is one, since such certificates may all have
// one subject; else the subject; else, as RFC 5280, section 4.1.2.6, lets the
// subject be empty, the first of the alternative names.
func certValue(conn *tls.ConnectionState) string {
	if conn == nil || len(conn.VerifiedChains) == 0 {
		return ""
	}
	leaf := conn.VerifiedChains[0][0]
	if len(leaf.URIs) == 1 && leaf.URIs[0].Scheme == "spiffe" {
		return leaf.URIs[0].String()
	}
	if subject := leaf.Subject.String(); subject != "" {
		return subject
	}
	return firstName(leaf)
}

func firstName(leaf *x509.Certificate) string {
	switch {
	case len(leaf.URIs) > 0:
		return leaf.URIs[0].String()
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	case len(leaf.EmailAddresses) > 0:
		return leaf.EmailAddresses[0]
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return ""
}
