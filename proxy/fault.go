package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// A fault says why an upstream gave no answer: a status, the error's name in
// the Proxy-Status registry (RFC 9209, section 2.3), and words that do not
// name the upstream's address.
type fault struct {
	status int
	kind   string
	detail string
}

// explain finds the fault behind an error of a transport. 504 means
// too slow, 502 unreachable or broken.
func explain(err error, timedOut bool) fault {
	var (
		dns      *net.DNSError
		op       *net.OpError
		record   tls.RecordHeaderError
		verify   *tls.CertificateVerificationError
		hostname x509.HostnameError
		timeout  interface{ Timeout() bool }
	)
	late := errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
	switch {
	case timedOut:
		return fault{http.StatusGatewayTimeout, "http_response_timeout", "the upstream did not answer in time"}
	case errors.As(err, &dns):
		if dns.IsTimeout {
			return fault{http.StatusGatewayTimeout, "dns_timeout", "the upstream's name was not resolved in time"}
		}
		return fault{http.StatusBadGateway, "dns_error", "the upstream's name cannot be resolved"}
	case errors.As(err, &verify), errors.As(err, &hostname):
		return fault{http.StatusBadGateway, "tls_certificate_error", "the upstream's certificate is not accepted"}
	case errors.As(err, &record), errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // alerts, whose type crypto/tls keeps to itself
		return fault{http.StatusBadGateway, "tls_protocol_error", "the upstream does not speak TLS as expected"}
	case errors.As(err, &op) && op.Op == "dial" && late, errors.Is(err, errHandshakeTimeout):
		return fault{http.StatusGatewayTimeout, "connection_timeout", "the upstream could not be reached in time"}
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &op) && op.Op == "dial" && errors.Is(err, syscall.ENOENT):
		return fault{http.StatusBadGateway, "connection_refused", "the upstream refuses connections"}
	case errors.As(err, &op) && op.Op == "dial":
		return fault{http.StatusBadGateway, "destination_ip_unroutable", "the upstream cannot be reached"}
	case errors.As(err, &op) && op.Op == "write" && late:
		return fault{http.StatusGatewayTimeout, "connection_write_timeout", "the upstream took too long to take the request"}
	case late:
		return fault{http.StatusGatewayTimeout, "http_response_timeout", "the upstream did not answer in time"}
	case ended(err):
		return fault{http.StatusBadGateway, "connection_terminated", "the upstream closed the connection without an answer"}
	}
	return fault{http.StatusBadGateway, "http_protocol_error", "the upstream's answer cannot be understood"}
}

// ended reports whether err is that the upstream ended a connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
