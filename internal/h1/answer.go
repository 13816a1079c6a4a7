package h1

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"strconv"
	"strings"
)

// maxInterim bounds the interim answers to one request: they are passed on at
// once, so nothing else would.
const maxInterim = 10

var (
	errInterim     = errors.New("the server gives interim answers without end")
	errUnasked     = errors.New("the server switched protocols unasked")
	errTwoLengths  = errors.New("the answer has both a Content-Length and a Transfer-Encoding")
	errLengths     = errors.New("the answer has more than one Content-Length")
	errLength      = errors.New("the answer's Content-Length is no number")
	errEncoding    = errors.New("the answer has another Transfer-Encoding than chunked")
	errOldEncoding = errors.New("the answer has a Transfer-Encoding in HTTP/1.0")
)

// answer reads the head of the final answer, and passes interim ones on.
func (x *exchange) answer() (*http.Response, error) {
	for interim := 0; ; interim++ {
		if err := x.readHead(); err != nil {
			return nil, err
		}
		switch code := x.res.StatusCode; {
		case code == http.StatusSwitchingProtocols:
			return x.switched()
		case code >= 200:
			return x.final()
		case interim == maxInterim:
			return nil, errInterim
		}
		dropHopByHop(x.res.Header)
		if trace := httptrace.ContextClientTrace(x.ctx); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(x.res.StatusCode, textproto.MIMEHeader(x.res.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// readHead reads one head into x.res.
func (x *exchange) readHead() error {
	text, err := readHead(x.br, x.t.MaxHeaderBytes, beginsAnswer)
	if err != nil {
		return err
	}
	line, fields := cutLine(text)
	minor, code, status, err := parseStatus(line)
	if err != nil {
		return err
	}
	x.res = http.Response{
		Status: status, StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: minor,
		Header: make(http.Header, 8), Request: x.req,
	}
	if minor == 0 {
		x.res.Proto = "HTTP/1.0"
	}
	return parseFields(x.res.Header, fields, x.t.MaxHeaderBytes)
}

// final makes out where the answer ends, and whether the connection may go on
// afterwards (RFC 9112, section 6.3).
func (x *exchange) final() (*http.Response, error) {
	res, h := &x.res, x.res.Header
	chunked, err := isChunked(h["Transfer-Encoding"], res.ProtoMinor)
	if err != nil {
		return nil, err
	}
	length, err := contentLength(h["Content-Length"])
	if err != nil {
		return nil, err
	}
	if chunked && length >= 0 {
		return nil, errTwoLengths
	}
	if length >= 0 {
		h["Content-Length"][0] = strconv.FormatInt(length, 10)
	}
	keep := x.headCame() && !x.req.Close && !hasToken(h["Connection"], "close") &&
		(res.ProtoMinor > 0 || hasToken(h["Connection"], "keep-alive"))
	if hasBody(x.req) && !expectsBody(x.req.Method) {
		// A server that takes the request to end with its head would take its
		// body for the next one.
		keep = false
	}

	empty := false
	switch {
	case x.req.Method == http.MethodHead, res.StatusCode == http.StatusNotModified:
		empty = true // the framing is that of another answer
	case res.StatusCode == http.StatusNoContent:
		empty, keep = true, keep && !chunked && length <= 0 // section 6.1 and RFC 9110, section 8.6
		length = 0
	case chunked:
		res.TransferEncoding = isChunks
		if announced := h["Trailer"]; announced != nil {
			res.Trailer = announcedTrailers(announced)
		}
		x.chunks = httputil.NewChunkedReader(x.br)
	case length < 0:
		keep = false // it ends with the connection
	}
	res.ContentLength, res.Close = length, !keep
	x.left, x.keep = length, keep
	dropHopByHop(h)
	if empty || length == 0 {
		x.end = errEnded
		x.finish(keep)
		res.Body = http.NoBody
	} else {
		res.Body = x
	}
	return res, nil
}

var isChunks = []string{"chunked"}

// isChunked reads Transfer-Encoding.
func isChunked(lines []string, minor int) (bool, error) {
	switch {
	case len(lines) == 0:
		return false, nil
	case minor == 0:
		return false, errOldEncoding // section 6.1: the framing is faulty
	case len(lines) > 1 || !strings.EqualFold(lines[0], "chunked"):
		return false, errEncoding
	}
	return true, nil
}

// contentLength reads Content-Length; -1: there is none. Not even the same
// number twice is taken, which the RFC leaves open: whoever wrote it did not
// know what it sent.
func contentLength(lines []string) (int64, error) {
	if len(lines) == 0 {
		return -1, nil
	}
	if len(lines) > 1 || strings.Contains(lines[0], ",") {
		return 0, errLengths
	}
	n, err := strconv.ParseUint(lines[0], 10, 63)
	if err != nil {
		return 0, errLength
	}
	return int64(n), nil
}

// expectsBody reports whether a body has a meaning with a method. RFC 9110,
// sections 9.3.1, 9.3.2 and 9.3.5, warns of the others.
func expectsBody(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodDelete:
		return false
	}
	return true
}

// switched makes the connection the body of a 101.
func (x *exchange) switched() (*http.Response, error) {
	asked := x.req.Header["Upgrade"]
	if len(asked) == 0 {
		return nil, errUnasked
	}
	if !x.headCame() {
		return nil, fmt.Errorf("%w: before the request had ended", errUnasked)
	}
	h := x.res.Header
	to := h["Upgrade"]
	dropHopByHop(h)
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, to
	rest, _ := x.br.Peek(x.br.Buffered())
	tunnel := &tunnel{Conn: x.c.Conn, early: append([]byte(nil), rest...), stop: x.stop}
	x.br.Reset(nil)
	readers.Put(x.br)
	x.br = nil
	x.res.Body = tunnel
	return &x.res, nil
}

// hopByHop are the fields of one connection (RFC 9110, section 7.6.1). Trailer
// goes with the chunks.
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropHopByHop takes the fields of the connection off an answer, and those that
// its Connection field names.
func dropHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			delete(h, http.CanonicalHeaderKey(strings.Trim(name, " \t")))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.Trim(t, " \t"), token) {
				return true
			}
		}
	}
	return false
}
