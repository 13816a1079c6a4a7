package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A strictUpstream reads HTTP/1.1 by the letter of RFC 9112, with a reader of
// its own, and keeps which requests it saw. What it would have to guess is a
// fault of the proxy.
type strictUpstream struct {
	addr string

	open   atomic.Int64 // connections
	mu     sync.Mutex
	seen   []string
	faults []string
}

func newStrictUpstream(t testing.TB) *strictUpstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &strictUpstream{addr: l.Addr().String()}
	var serving sync.WaitGroup
	var conns sync.Map
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			u.open.Add(1)
			serving.Go(func() {
				defer u.open.Add(-1)
				defer c.Close()
				for br := bufio.NewReader(c); u.one(c, br); {
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		serving.Wait()
	})
	return u
}

func (u *strictUpstream) fault(format string, args ...any) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.faults = append(u.faults, fmt.Sprintf(format, args...))
	return false
}

// take returns what was seen since the last call.
func (u *strictUpstream) take() (seen, faults []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen, faults = u.seen, u.faults
	u.seen, u.faults = nil, nil
	return seen, faults
}

// accepted waits until every connection is that was made before.
func (u *strictUpstream) accepted(t testing.TB) {
	c, err := net.Dial("tcp", u.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, c)
}

// one serves a request. It is false when the connection is over.
func (u *strictUpstream) one(c net.Conn, br *bufio.Reader) bool {
	line, err := br.ReadString('\n')
	if err != nil {
		if line != "" {
			u.fault("half a request line: %q", line)
		}
		return false
	}
	words := strings.Split(strings.TrimSuffix(line, "\r\n"), " ")
	if len(words) != 3 || words[2] != "HTTP/1.1" || words[1] == "" || !strings.HasSuffix(line, "\r\n") {
		return u.fault("request line %q", line)
	}
	var host, length []string
	chunked := false
	for {
		field, err := br.ReadString('\n')
		if err != nil {
			return u.fault("the head of %q ends with %q", line, field)
		}
		if field == "\r\n" {
			break
		}
		name, value, ok := strings.Cut(strings.TrimSuffix(field, "\r\n"), ": ")
		if !ok || !strings.HasSuffix(field, "\r\n") || strings.ContainsAny(name, " \t_") || strings.ContainsAny(value, "\r\n\x00\t\x0b") {
			return u.fault("field %q of %q", field, line)
		}
		switch strings.ToLower(name) {
		case "host":
			host = append(host, value)
		case "content-length":
			length = append(length, value)
		case "transfer-encoding":
			if value != "chunked" || chunked {
				return u.fault("%q in %q", field, line)
			}
			chunked = true
		case "connection", "keep-alive", "te", "upgrade", "trailer", "expect", "http2-settings", "proxy-connection":
			if value != "trailers" && !strings.EqualFold(name+value, "connectionupgrade") && !strings.EqualFold(name+value, "upgradewebsocket") {
				return u.fault("hop-by-hop %q in %q", field, line)
			}
		}
	}
	if len(host) != 1 || len(length) > 1 || chunked && len(length) > 0 {
		return u.fault("%d hosts, %d lengths, chunked: %v in %q", len(host), len(length), chunked, line)
	}
	u.mu.Lock()
	u.seen = append(u.seen, words[0]+" "+words[1]+" "+host[0])
	u.mu.Unlock()

	switch {
	case chunked:
		if whole, wrong := readChunks(br); wrong != "" {
			return u.fault("%s in the body of %q", wrong, line)
		} else if !whole {
			return false
		}
	case len(length) == 1:
		n, err := strconv.ParseUint(length[0], 10, 32)
		if err != nil {
			return u.fault("length %q in %q", length[0], line)
		}
		if _, err := io.CopyN(io.Discard, br, int64(n)); err != nil {
			return false
		}
	}
	answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
	if words[0] != "HEAD" {
		answer += "ok"
	}
	_, err = io.WriteString(c, answer)
	return err == nil
}

// readChunks reads a chunked body without extensions and trailers. One that the
// proxy breaks off is neither whole nor wrong.
func readChunks(br *bufio.Reader) (whole bool, wrong string) {
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return false, ""
		}
		size, err := strconv.ParseUint(strings.TrimSuffix(line, "\r\n"), 16, 32)
		if err != nil || !strings.HasSuffix(line, "\r\n") {
			return false, fmt.Sprintf("chunk %q", line)
		}
		if _, err := io.CopyN(io.Discard, br, int64(size)); err != nil {
			return false, ""
		}
		if end, err := br.ReadString('\n'); err != nil {
			return false, ""
		} else if end != "\r\n" {
			return false, fmt.Sprintf("chunk of %d bytes with %q behind it", size, end)
		}
		if size == 0 {
			return true, ""
		}
	}
}

// A rack plays connections against a proxy and holds what was limited against
// what the upstream saw.
type rack struct {
	front    *front
	upstream *Upstream
	up       *strictUpstream

	mu    sync.Mutex
	turns []string
	// In all:
	limited, sent int
}

func newRack(t testing.TB) *rack {
	r := &rack{up: newStrictUpstream(t)}
	one := route("/", r.up.addr, func(o *UpstreamOptions) { o.SendHost = "client" })
	one.Limiter = &turnstile{}
	one.Identify = func(id Identity) ([]limiter.Key, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		in := id.Request
		target := in.RequestURI
		if rest, ok := strings.CutPrefix(target, "http://"); ok {
			// Of the absolute form, what is behind the host is sent on.
			_, path, _ := strings.Cut(rest, "/")
			target = "/" + path
		}
		r.turns = append(r.turns, in.Method+" "+target+" "+in.Host)
		return []limiter.Key{{Value: "k"}}, nil
	}
	r.upstream = one.Upstream
	r.front = newFront(t, &Site{Routes: []*Route{one}})
	return r
}

// quiet is how long nothing has to come from the proxy for the client to end
// its side. When that is too early for a slow machine, requests are given up
// that would have been sent: less is tried, and nothing fails.
const quiet = 100 * time.Millisecond

// differences sends bytes on a connection of their own, and says how what was
// limited differs from what the upstream saw.
func (r *rack) differences(t testing.TB, raw string) (problems []string) {
	c, err := net.Dial("tcp", r.front.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, raw) // the proxy may have closed, which is its right
	ended := false
	for buf := make([]byte, 4096); ; {
		c.SetReadDeadline(time.Now().Add(quiet))
		_, err := c.Read(buf)
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if ended {
			c.(*net.TCPConn).SetLinger(0)
			break
		}
		c.(*net.TCPConn).CloseWrite()
		ended = true
	}
	c.Close()
	r.front.proxy.Wait()
	// What was sent may still be on its way: to have it, end the connections, of
	// which one may not even be accepted.
	r.up.accepted(t)
	for until := time.Now().Add(20 * time.Second); r.up.open.Load() > 0; time.Sleep(20 * time.Microsecond) {
		r.upstream.Close()
		if time.Now().After(until) {
			t.Fatalf("%q: a connection upstream does not end", raw)
		}
	}

	r.mu.Lock()
	turns := r.turns
	r.turns = nil
	r.mu.Unlock()
	r.front.recorder.mu.Lock()
	events := r.front.events
	r.front.events = nil
	r.front.recorder.mu.Unlock()
	answered := 0
	for _, e := range events {
		if e.UpstreamStatus >= 100 {
			answered++
		}
	}
	seen, faults := r.up.take()
	r.limited += len(turns)
	r.sent += len(seen)
	for _, f := range faults {
		problems = append(problems, "the upstream got "+f)
	}
	// Each request upstream took a turn, in the order of the connection.
	rest := turns
	for _, s := range seen {
		i := slices.Index(rest, s)
		if i < 0 {
			problems = append(problems, fmt.Sprintf("the upstream saw %q, limited was %q", seen, turns))
			break
		}
		rest = rest[i+1:]
	}
	if answered > len(seen) {
		problems = append(problems, fmt.Sprintf("%d answers from upstream, which saw %q", answered, seen))
	}
	return problems
}

// What the connections of TestTorture are put together of.
var (
	tortureLines = []string{
		"POST /a HTTP/1.1", "GET /a?q=1;2 HTTP/1.1", "HEAD /a HTTP/1.1", "POST /a HTTP/1.0", "PUT //a/../%2fb HTTP/1.1",
		"DELETE http://front.test/abs HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT front.test:80 HTTP/1.1", "POST  /a HTTP/1.1",
		"POST /a\tHTTP/1.1", "POST /a HTTP/1.1 ", "post /a HTTP/1.1", "POST /%zz HTTP/1.1", "POST /a HTTP/2.0", "PO\x00ST /a HTTP/1.1", "\r\nPOST /a HTTP/1.1",
	}
	tortureFraming = []string{
		"", "Content-Length: 0\r\n", "Content-Length: 5\r\n", "Content-Length: LEN\r\n", "content-length: LEN\r\n", "Content-Length: LEN\r\nContent-Length: LEN\r\n",
		"Content-Length: LEN\r\nContent-Length: 0\r\n", "Content-Length: LEN, LEN\r\n", "Content-Length: +5\r\n", "Content-Length: 5 5\r\n", "Content-Length: 0x5\r\n",
		"Content-Length:5\r\n", "Content-Length : 5\r\n", "Content-Length:\t5\t\r\n", "Content_Length: LEN\r\n", "Content-Length: 5\n", "Content-Length:\r\n 5\r\n",
		"Transfer-Encoding: chunked\r\n", "transfer-encoding: CHUNKED\r\n", "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunked, identity\r\n",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n", "Transfer-Encoding:\x0bchunked\r\n", "Transfer-Encoding:\r\n chunked\r\n",
		"Transfer-Encoding: chunked\r\nContent-Length: LEN\r\n", "Content-Length: LEN\r\nTransfer-Encoding: chunked\r\n", "Content-Length: LEN\r\nTransfer-Encoding: identity\r\n",
		"Transfer_Encoding: chunked\r\n", "Transfer-Encoding: chunked\n", "X: y\rTransfer-Encoding: chunked\r\n", "Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: chunked;q=1\r\n",
	}
	tortureFields = []string{
		"", "Connection: keep-alive\r\n", "Connection: close, Content-Length\r\n", "Connection: Transfer-Encoding, Host\r\n", "Expect: 100-continue\r\n",
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n", "Host: evil.test\r\n", "Trailer: Content-Length\r\nTE: trailers\r\n",
		" folded: x\r\n", "X: a\x00b\r\n", "X: a\nGET /smuggled HTTP/1.1\n", "Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n", ": nameless\r\n",
	}
	tortureBodies = []string{
		"", smuggled, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled), "0\r\n\r\n", "0\r\n\r\n" + smuggled, "5\r\nhello\r\n0\r\nContent-Length: 3\r\n\r\n",
		"5;a=\"\n\"\r\nhello\r\n0\r\n\r\n", "5\nhello\n0\n\n", "0x5\r\nhello\r\n0\r\n\r\n", "6\r\nhello\r\n0\r\n\r\n" + smuggled, "-1\r\n\r\n", "hello",
	}
)

// tortures puts the i-th of all connections together.
func tortures(i int) string {
	pick := func(of []string) string {
		s := of[i%len(of)]
		i /= len(of)
		return s
	}
	body, framing, field, line := pick(tortureBodies), pick(tortureFraming), pick(tortureFields), pick(tortureLines)
	framing = strings.ReplaceAll(framing, "LEN", strconv.Itoa(len(body)))
	return line + "\r\nHost: front.test\r\n" + framing + field + "\r\n" + body + last + "\r\n\r\n"
}

// TestTorture plays connections put together of odd lines, framings, fields and
// bodies: what the upstream sees is what was limited. TORTURE=full plays all.
func TestTorture(t *testing.T) {
	all := len(tortureLines) * len(tortureFraming) * len(tortureFields) * len(tortureBodies)
	step := 31 // divides none of the lengths, so that every word meets every other
	if os.Getenv("TORTURE") == "full" {
		step = 1
	}
	const racks = 4
	var mu sync.Mutex
	played, limited, sent, differ := 0, 0, 0, 0
	t.Run("racks", func(t *testing.T) {
		for n := range racks {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				r, k, d := newRack(t), 0, 0
				for i := n * step; i < all; i += racks * step {
					raw := tortures(i)
					for _, problem := range r.differences(t, raw) {
						d++
						t.Errorf("%q: %s", raw, problem)
					}
					k++
				}
				mu.Lock()
				defer mu.Unlock()
				played, limited, sent, differ = played+k, limited+r.limited, sent+r.sent, differ+d
			})
		}
	})
	if sent < played/10 {
		t.Errorf("of %d connections, only %d requests reached the upstream", played, sent)
	}
	fmt.Printf("conformance: TestTorture: %d connections, %d requests limited, %d upstream, %d differences\n", played, limited, sent, differ)
}
