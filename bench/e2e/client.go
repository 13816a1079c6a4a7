package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// answerTime bounds how long an answer may take, waiting included.
const answerTime = time.Minute

// An answer is what came back for one request.
type answer struct {
	status int
	body   int64  // bytes of it
	reason string // of a refusal
	policy string // the limit that refused
	left   bool   // the client's patience ended first
	err    error
}

// A clientSide speaks HTTP/1 on its own connections, each used again when it
// is free. Package http's client would not do: it cleans request targets, and
// it sends a request again by itself when a connection breaks.
type clientSide struct {
	proxy string // address

	mu     sync.Mutex
	idle   []*clientConn
	opened int
}

type clientConn struct {
	net.Conn
	buf *bufio.Reader
}

func (c *clientSide) connect() (*clientConn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		defer c.mu.Unlock()
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return conn, nil
	}
	c.opened++
	c.mu.Unlock()
	conn, err := net.Dial("tcp", c.proxy)
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: conn, buf: bufio.NewReader(conn)}, nil
}

// send makes one request and reads its whole answer.
func (c *clientSide) send(r request) answer {
	conn, err := c.connect()
	if err != nil {
		return answer{err: err}
	}
	ans, keep := conn.exchange(r)
	if !keep {
		return ans
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, conn)
	return ans
}

// exchange leaves the connection closed unless keep.
func (c *clientConn) exchange(r request) (ans answer, keep bool) {
	defer func() {
		if !keep {
			c.Close()
		}
	}()
	end := time.Now().Add(answerTime)
	if r.patience > 0 {
		end = time.Now().Add(r.patience)
	}
	c.SetDeadline(end)

	if _, err := io.WriteString(c, r.head()); err != nil {
		return answer{err: fmt.Errorf("writing: %w", err)}, false
	}
	resp, err := http.ReadResponse(c.buf, &http.Request{Method: r.method})
	if err != nil {
		return c.failed(r, err), false
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return c.failed(r, err), false
	}
	ans = answer{status: resp.StatusCode, body: int64(len(body))}
	ans.reason, ans.policy = refusal(resp, body)

	if resp.Close || r.proto == "HTTP/1.0" {
		// Nothing may follow the one answer but the connection's end.
		c.SetDeadline(time.Now().Add(answerTime))
		rest, err := io.Copy(io.Discard, c.buf)
		if rest > 0 || err != nil {
			ans.err = fmt.Errorf("%d bytes behind the answer, %v", rest, err)
		}
		return ans, false
	}
	if n := c.buf.Buffered(); n > 0 {
		ans.err = fmt.Errorf("%d bytes behind the answer", n)
		return ans, false
	}
	return ans, true
}

func (c *clientConn) failed(r request, err error) answer {
	if r.patience > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return answer{left: true}
	}
	return answer{err: fmt.Errorf("reading: %w", err)}
}

// head is the request as it goes over the wire. The Host names the request for
// the proxy's log, X-Request-Id for nginx's.
func (r request) head() string {
	body := ""
	if r.method == http.MethodPost {
		body = "name=value"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", r.method, r.target, r.proto, ledger.Host(r.id))
	fmt.Fprintf(&b, "X-Forwarded-For: %s\r\nX-Request-Id: %d\r\n", r.client, r.id)
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

// refusal reads the problem that a refusal carries. HEAD has no body, so its
// reason stays unknown ("?").
func refusal(resp *http.Response, body []byte) (reason, policy string) {
	if resp.Header.Get("Content-Type") != "application/problem+json" {
		return "", ""
	}
	var problem struct {
		Reason   string   `json:"reason"`
		Policies []string `json:"violated-policies"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || len(problem.Policies) != 1 {
		return "?", ""
	}
	return problem.Reason, problem.Policies[0]
}

// close ends the idle connections and says how many bytes had arrived on them
// that nobody had asked for.
func (c *clientSide) close() (unasked int64) {
	for _, conn := range c.idle {
		conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, _ := io.Copy(io.Discard, conn.buf)
		unasked += n
		conn.Close()
	}
	return unasked
}
