package h1

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

var (
	errConnect = errors.New("CONNECT is not sent: its answer would be no answer but a tunnel")
	errTarget  = errors.New("the request's target has a blank or a control character")
	errNoBody  = errors.New("the request has a Content-Length and no body")
	errHost    = errors.New("the request's Host is empty, or not visible ASCII")
)

// appendHead writes the head of a request. Fields come in the order of their
// names, so that a request always looks the same.
func appendHead(b []byte, req *http.Request) ([]byte, error) {
	method, host := req.Method, req.Host
	if method == "" {
		method = http.MethodGet
	}
	if host == "" {
		host = req.URL.Host
	}
	host = withoutZone(host)
	target := req.URL.RequestURI()
	if strings.HasPrefix(req.URL.Opaque, "//") { // a path, of which RequestURI makes an absolute form
		target = strings.TrimPrefix(target, req.URL.Scheme+":")
	}
	switch {
	case method == http.MethodConnect:
		return b, errConnect
	case !isToken(method):
		return b, fmt.Errorf("%q is no method", method)
	case !isTarget(target):
		return b, errTarget
	case !isHost(host):
		return b, errHost
	case req.ContentLength > 0 && !hasBody(req):
		return b, errNoBody
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\n"...)
	b = appendField(b, "Host", host)
	b = appendFraming(b, method, req)
	if req.Close {
		b = appendField(b, "Connection", "close")
	}

	var room [40]string
	names := room[:0]
	for name := range req.Header {
		if !isFraming(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if !isToken(name) {
			return b, fmt.Errorf("%q is no name of a field", name)
		}
		for _, v := range req.Header[name] {
			if !isFieldValue(v) {
				return b, fmt.Errorf("the field %s has a control character", name)
			}
			if v == "" && name == "User-Agent" {
				continue // how net/http's users say that there is none
			}
			b = appendField(b, name, v)
		}
	}
	return append(b, '\r', '\n'), nil
}

// appendFraming says how long the body is. One that is empty has its length told
// where servers expect one (RFC 9110, section 8.6) or the header has it.
func appendFraming(b []byte, method string, req *http.Request) []byte {
	switch {
	case !hasBody(req):
		_, told := req.Header["Content-Length"]
		if told || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
			b = appendField(b, "Content-Length", "0")
		}
	case req.ContentLength > 0:
		b = append(b, "Content-Length: "...)
		b = append(strconv.AppendInt(b, req.ContentLength, 10), '\r', '\n')
	default:
		b = appendField(b, "Transfer-Encoding", "chunked")
		if names := trailerNames(req.Trailer); len(names) > 0 {
			b = appendField(b, "Trailer", strings.Join(names, ", "))
		}
	}
	return b
}

func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, '\r', '\n')
}

// isFraming reports whether a field of the request's header is for appendHead
// to write, in whatever case the header has it.
func isFraming(name string) bool {
	switch len(name) {
	case len("Host"):
		return strings.EqualFold(name, "Host")
	case len("Trailer"):
		return strings.EqualFold(name, "Trailer")
	case len("Content-Length"):
		return strings.EqualFold(name, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(name, "Transfer-Encoding")
	}
	return false
}

// trailerNames are the names of the trailers that may be sent, in order.
func trailerNames(trailer http.Header) []string {
	var names []string
	for name := range trailer {
		if isToken(name) && !isFraming(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// withoutZone takes the zone off an IPv6 address: it means something on this
// machine only (RFC 6874, section 1).
func withoutZone(host string) string {
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if zone := strings.IndexByte(host, '%'); zone >= 0 && zone < end {
			return host[:zone] + host[end:]
		}
	}
	return host
}
