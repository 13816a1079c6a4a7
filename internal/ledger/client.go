package ledger

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"time"
)

// answerTime bounds how long a client that stays waits for its answer.
const answerTime = 20 * time.Second

// frameTime is how long the reset of an HTTP/2 stream may take to be sent, read
// and understood on a machine that is not stalled.
const frameTime = 250 * time.Millisecond

// A Client sends requests to a proxy, over HTTP/1.1 each on a connection of its
// own, or over HTTP/2 as streams of few. It is safe for concurrent use, and
// never sends a request twice by itself.
type Client struct {
	ledger *Ledger
	addr   string
	tls    *tls.Config // nil: plain
	h2     *http.Client
}

// NewClient returns a client of the proxy at addr; secure speaks TLS and takes
// every certificate, h2 speaks HTTP/2.
func (l *Ledger) NewClient(addr string, secure, h2 bool) *Client {
	c := &Client{ledger: l, addr: addr}
	if secure {
		c.tls = &tls.Config{InsecureSkipVerify: true}
	}
	if h2 {
		tr := &http.Transport{TLSClientConfig: c.tls, Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(!secure)
		tr.Protocols.SetHTTP2(secure)
		c.h2 = &http.Client{Transport: tr}
	}
	return c
}

// Close closes the connections that HTTP/2 keeps.
func (c *Client) Close() {
	if c.h2 != nil {
		c.h2.CloseIdleConnections()
	}
}

// An Ask is what to send, and how long to wait for the answer.
type Ask struct {
	Path        string // "" is /
	Class, Flow string
	Header      []string // as in "Name: value"
	Body        int      // bytes of a POST's body; 0: a GET without
	// Patience is after how long the client leaves; 0: it stays.
	Patience time.Duration
	// HalfClose: it leaves by closing its sending side only, and reads on.
	HalfClose bool
	// Cut: the upstream breaks off its answer, so that the client has to get a
	// broken one.
	Cut bool
}

func (a Ask) patience() time.Duration {
	if a.Patience > 0 {
		return a.Patience
	}
	return answerTime
}

func (a Ask) method() string {
	if a.Body > 0 {
		return http.MethodPost
	}
	return http.MethodGet
}

// Do sends a request and waits for its end, by an answer or by leaving.
func (c *Client) Do(a Ask) *Request {
	if a.Path == "" {
		a.Path = "/"
	}
	r := c.ledger.Open(a.Class, a.Flow)
	if c.h2 != nil {
		c.stream(r, a)
	} else {
		c.exchange(r, a)
	}
	return r
}

func (c *Client) exchange(r *Request, a Ask) {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		r.Break(err)
		return
	}
	defer conn.Close()
	var rw interface {
		net.Conn
		CloseWrite() error
	} = conn.(*net.TCPConn)
	if c.tls != nil {
		rw = tls.Client(conn, c.tls)
	}
	var head strings.Builder
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", a.method(), a.Path, r.Host())
	for _, field := range a.Header {
		head.WriteString(field + "\r\n")
	}
	if a.Body > 0 {
		fmt.Fprintf(&head, "Content-Length: %d\r\n", a.Body)
	}
	head.WriteString("\r\n")
	if _, err := io.WriteString(rw, head.String()); err != nil {
		r.Break(fmt.Errorf("writing: %w", err))
		return
	}
	r.sent()
	rw.SetReadDeadline(time.Now().Add(a.patience()))
	if a.Body > 0 {
		// On its own, as a proxy that lets the request wait does not read it.
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			rw.Write(make([]byte, a.Body))
		}()
		defer func() {
			conn.Close() // ends the writing
			<-wrote
		}()
	}
	answer, err := http.ReadResponse(bufio.NewReader(rw), &http.Request{Method: a.method()})
	if err == nil {
		err = r.read(answer)
	}
	switch {
	case err == nil && a.Cut:
		r.Break(errors.New("the upstream broke its answer off, and it came as if it were whole"))
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF) && a.Cut:
		r.cut()
	case a.Patience == 0 || !errors.Is(err, os.ErrDeadlineExceeded):
		r.Break(fmt.Errorf("reading: %w", err))
	case a.HalfClose:
		rw.CloseWrite()
		if c.tls != nil {
			r.Leave(frameTime) // an alert, of which the kernel knows nothing
		} else {
			r.Leave(0)
		}
		// What comes now, if anything, is for nobody. That the connection ends
		// is part of the account.
		rw.SetReadDeadline(time.Now().Add(answerTime))
		if _, err := io.Copy(io.Discard, rw); errors.Is(err, os.ErrDeadlineExceeded) {
			r.Break(errors.New("half-closed, and the proxy did not close the rest"))
		}
	default:
		conn.Close()
		r.Leave(0)
	}
}

func (c *Client) stream(r *Request, a Ask) {
	scheme := "http"
	if c.tls != nil {
		scheme = "https"
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The connection and its handshake are no part of anybody's patience.
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() {
		r.sent()
		time.AfterFunc(a.patience(), cancel)
	}})
	var body io.Reader
	if a.Body > 0 {
		body = bytes.NewReader(make([]byte, a.Body))
	}
	req, err := http.NewRequestWithContext(ctx, a.method(), scheme+"://"+c.addr+a.Path, body)
	if err != nil {
		r.Break(err)
		return
	}
	req.GetBody = nil // nothing to send it again with
	req.Host = r.Host()
	for _, field := range a.Header {
		name, value, _ := strings.Cut(field, ": ")
		req.Header.Set(name, value)
	}
	answer, err := c.h2.Do(req)
	if err == nil {
		err = r.read(answer)
	}
	switch {
	case err == nil:
	case a.Patience > 0 && ctx.Err() != nil:
		r.Leave(frameTime)
	default:
		r.Break(err)
	}
}

// read reads an answer to its end.
func (r *Request) read(answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil {
		return err
	}
	var problem struct {
		Reason string `json:"reason"`
	}
	if answer.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(body, &problem); err != nil {
			return err
		}
	}
	r.Answer(answer.StatusCode, problem.Reason, answer.Header.Get("Retry-After"))
	return nil
}
