package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const asksWebSocket = "GET /ws HTTP/1.1\r\nHost: front.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// TestCase48OnlyWebSocket: any other upgrade would be a tunnel past every limit
// (golang/go #80416), so that it is not even asked for.
func TestCase48OnlyWebSocket(t *testing.T) {
	for _, c := range []struct {
		name, send string
	}{
		{"h2c", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"},
		{"settings not named", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"},
		{"one of two", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket, h2c\r\n\r\n"},
		{"two lines", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n"},
		{"TLS", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: TLS/1.0\r\n\r\n"},
		{"not printable", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: w\xe9bsocket\r\n\r\n"},
		{"POST", "POST / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"},
		{"with a body", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx"},
		{"HTTP/1.0", "GET / HTTP/1.0\r\nHost: front.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"},
		{"not connected", "GET / HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, func(_ int, head string) string {
				if strings.Contains(strings.ToLower(head), "upgrade") {
					return "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
				}
				return ok200
			})
			f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
			if got := statuses(t, f.wire(t, c.send)); !slices.Equal(got, []int{200}) {
				t.Errorf("answered %v", got)
			}
			head := strings.ToLower(up.bytes())
			for _, name := range []string{"upgrade", "http2-settings", "connection"} {
				if strings.Contains(head, name) {
					t.Errorf("the upstream got %q", head)
				}
			}
		})
	}
}

// TestS16AnotherProtocol: an upstream that switches to what was not asked for
// is broken.
func TestS16AnotherProtocol(t *testing.T) {
	up := newRawUpstream(t, always("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"))
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
	res := f.get(t, "GET", "/ws", "Connection: Upgrade", "Upgrade: websocket")
	if res.StatusCode != 502 || errorType(t, res.Header) != "http_protocol_error" {
		t.Errorf("status %d, %v", res.StatusCode, res.Header)
	}
}

// echoes is an upstream that becomes an echo when asked for a WebSocket.
func echoes(t *testing.T) string {
	return upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Connection") != "Upgrade" {
			http.Error(w, "no upgrade", 400)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Up: 1\r\n\r\n")
		io.Copy(conn, rw)
	}))
}

// TestS17EarlyBytes: what comes right behind the handshake, or in one packet with
// it (N40), is delivered first and in order; bytes and turns are counted once.
func TestS17EarlyBytes(t *testing.T) {
	turns := &turnstile{}
	r := limited(route("/", echoes(t)), turns)
	f := newFront(t, &Site{Routes: []*Route{r}, RateLimitHeaders: everyDialect})
	for _, early := range []string{"", "early", strings.Repeat("0123456789", 1000)} {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, asksWebSocket+early)
		late := smuggled + "late"
		io.WriteString(c, late)
		br := bufio.NewReader(c)
		var head string
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := br.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			head += line
		}
		echo := make([]byte, len(early+late))
		if _, err := io.ReadFull(br, echo); err != nil || string(echo) != early+late {
			t.Errorf("%d early bytes: the echo is %.60q, %v", len(early), echo, err)
		}
		// A half-closed tunnel passes on, and ends when the other half does.
		c.(*net.TCPConn).CloseWrite()
		if rest, err := io.ReadAll(br); err != nil || len(rest) > 0 {
			t.Errorf("read %.60q, %v", rest, err)
		}
		c.Close()
		for _, want := range []string{"HTTP/1.1 101 ", "\r\nUpgrade: websocket", "\r\nConnection: Upgrade", "\r\nX-Up: 1", "\r\nRatelimit: "} {
			if !strings.Contains(head, want) {
				t.Errorf("the handshake lacks %q: %q", want, head)
			}
		}
		e := f.next(t)
		n := int64(len(early + late))
		if e.Status != 101 || e.UpstreamStatus != 101 || e.Sent != n || e.Received != n || e.Error != "" {
			t.Errorf("told %+v, want %d bytes each way", e, n)
		}
	}
	if turns.turns.Load() != 3 || r.Upstream.Status().InFlight != 0 {
		t.Errorf("three tunnels took %d turns, %d are in flight", turns.turns.Load(), r.Upstream.Status().InFlight)
	}
}

// TestN41NoSwitch: an upstream that does not switch gives an ordinary answer,
// and what the client sent behind its handshake takes a turn of its own.
func TestN41NoSwitch(t *testing.T) {
	for _, status := range []string{"200 OK", "403 Forbidden", "426 Upgrade Required"} {
		up := newRawUpstream(t, always("HTTP/1.1 "+status+"\r\nContent-Length: 2\r\n\r\nno"))
		turns := &turnstile{}
		f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), turns)}})
		got := statuses(t, f.wire(t, asksWebSocket+last))
		if len(got) != 2 || turns.turns.Load() != 2 || up.count() != 2 {
			t.Errorf("%s: answered %v with %d turns, the upstream got %q", status, got, turns.turns.Load(), up.lines())
		}
		if !strings.Contains(up.bytes(), "Connection: Upgrade\r\n") || !strings.Contains(up.bytes(), "Upgrade: websocket\r\n") {
			t.Errorf("the upstream was not asked: %q", up.bytes())
		}
	}
}

// TestCase56WebSocketEcho: a WebSocket works through log, metrics and limit,
// with messages of all sizes (hyperledger-firefly/firefly #370, N39).
func TestCase56WebSocketEcho(t *testing.T) {
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			typ, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), typ, b) != nil {
				return
			}
		}
	}))
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", addr, func(o *UpstreamOptions) { o.SendHost = "client" }), &turnstile{})}})
	var log bytes.Buffer
	f.proxy.observe = Observers{AccessLog{slog.New(slog.NewTextHandler(&log, nil))}, f.recorder}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, res, err := websocket.Dial(ctx, "ws://"+f.addr+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	if res.StatusCode != 101 {
		t.Errorf("status %d", res.StatusCode)
	}
	sizes := []int{48 << 10}
	for range 10 {
		sizes = append(sizes, 200<<10, 7)
	}
	for _, n := range sizes {
		sent := make([]byte, n)
		rand.Read(sent)
		if err := c.Write(ctx, websocket.MessageBinary, sent); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("the echo of %d bytes is %d bytes, %v", n, len(got), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	if e := f.next(t); e.Status != 101 || e.Sent < 10*200<<10 {
		t.Errorf("told %+v", e)
	}
	if !strings.Contains(log.String(), "status=101") {
		t.Errorf("logged %q", log.String())
	}
}

// TestTunnelsEnd: a tunnel ends with either side, and when the proxy is cut.
func TestTunnelsEnd(t *testing.T) {
	for name, end := range map[string]func(f *front, c net.Conn){
		"client": func(_ *front, c net.Conn) { c.Close() },
		"cut":    func(f *front, _ net.Conn) { f.cut(limiter.ErrShutdown) },
		"upstream": func(f *front, c net.Conn) {
			io.WriteString(c, "bye")
			io.ReadAll(c)
			c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
				rw.Read(make([]byte, 1)) // until the client says something or leaves
			}))
			r := route("/", addr)
			f := newFront(t, &Site{Routes: []*Route{r}})
			c, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(c, asksWebSocket)
			if _, err := c.Read(make([]byte, 1024)); err != nil {
				t.Fatal(err)
			}
			end(f, c)
			if e := f.next(t); e.Status != 101 {
				t.Errorf("told %+v", e)
			}
			f.proxy.Wait()
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the client's side stays open")
			}
			if n := r.Upstream.Status().InFlight; n != 0 {
				t.Errorf("%d in flight", n)
			}
		})
	}
}
