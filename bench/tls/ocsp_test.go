package tls

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"
)

// A responder says of every certificate that it is good.
type responder struct {
	server *httptest.Server
	asked  atomic.Int64
	issuer *x509.Certificate
	key    crypto.Signer
}

// newResponder is to be started before its CA, as certificates have its URL.
func newResponder(t *testing.T) *responder {
	t.Helper()
	r := new(responder)
	r.server = httptest.NewUnstartedServer(r)
	t.Cleanup(r.server.Close)
	return r
}

// start answers with the key of the CA's run.
func (r *responder) start(t *testing.T, c *ca) {
	t.Helper()
	block := func(path string) []byte {
		b, _ := pem.Decode(c.manage(t, path))
		if b == nil {
			t.Fatalf("%s: no PEM", path)
		}
		return b.Bytes
	}
	var err error
	if r.issuer, err = x509.ParseCertificate(block("/intermediates/0")); err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS1PrivateKey(block("/intermediate-keys/0"))
	if err != nil {
		t.Fatal(err)
	}
	r.key = key
	r.server.Start()
}

func (r *responder) url() string { return "http://" + r.server.Listener.Addr().String() }

func (r *responder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.asked.Add(1)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	question, err := ocsp.ParseRequest(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := ocsp.CreateResponse(r.issuer, r.issuer, ocsp.Response{
		Status: ocsp.Good, SerialNumber: question.SerialNumber,
		ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(24 * time.Hour),
	}, r.key)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(answer)
}

// checkStaple holds what came with a handshake against the CA's key.
func (r *responder) checkStaple(t *testing.T, cert *x509.Certificate, staple []byte) {
	t.Helper()
	if answer, err := ocsp.ParseResponseForCert(staple, cert, r.issuer); err != nil || answer.Status != ocsp.Good {
		t.Errorf("the OCSP answer that is stapled, of %d bytes: %v", len(staple), err)
	}
}
