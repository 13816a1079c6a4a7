package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// A socketWorld is a WebSocket through a proxy in virtual time, with both of
// its ends in hand.
type socketWorld struct {
	*world
	client   io.ReadWriteCloser
	fromUp   *bufio.Reader // what the client reads
	upstream io.ReadWriteCloser
	ended    chan struct{}
}

func newSocketWorld(t *testing.T, b Bounds) *socketWorld {
	s := &socketWorld{ended: make(chan struct{})}
	got := make(chan io.ReadWriteCloser, 1)
	s.world = newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		got <- conn
	}, "http", func(*Route) {})
	s.bounded(t, b)
	c, err := s.net.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, asksWebSocket)
	s.client, s.fromUp = c, bufio.NewReader(c)
	if res, err := http.ReadResponse(s.fromUp, nil); err != nil || res.StatusCode != 101 {
		t.Fatal(res, err)
	}
	s.upstream = <-got
	t.Cleanup(func() { c.Close(); s.upstream.Close() })
	synctest.Wait()
	return s
}

// reads expects exactly want, all of it at once.
func reads(t *testing.T, who string, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Errorf("%s reads %q, %v; want %q", who, got[:n], err, want)
	}
}

const (
	farewell    = "\x88\x02\x03\xe9" // Close, 1001
	maskedHello = "\x81\x85\x01\x02\x03\x04iggh\x6e"
)

// readsFarewell expects a masked Close frame with status 1001.
func readsFarewell(t *testing.T, r io.Reader) {
	t.Helper()
	b := make([]byte, 8)
	if _, err := io.ReadFull(r, b); err != nil || b[0] != 0x88 || b[1] != 0x82 {
		t.Fatalf("the upstream reads %q, %v", b, err)
	}
	if status := binary.BigEndian.Uint16([]byte{b[6] ^ b[2], b[7] ^ b[3]}); status != 1001 {
		t.Errorf("the upstream is told %d", status)
	}
}

// TestS17GoingAway: when the proxy stops, both sides are told between two
// frames, what follows is dropped, and the WebSocket ends when both agreed.
func TestS17GoingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSocketWorld(t, Bounds{})
		// Both are in the middle of a frame, one of them in its head.
		go io.WriteString(s.upstream, "\x82\x7e\x01\x00"+strings.Repeat("u", 200))
		reads(t, "the client", s.fromUp, "\x82\x7e\x01\x00"+strings.Repeat("u", 200))
		go io.WriteString(s.client, maskedHello+"\x81")
		reads(t, "the upstream", s.upstream, maskedHello+"\x81")

		down := make(chan error, 1)
		go func() { down <- s.server.Shutdown(t.Context()) }()
		time.Sleep(time.Second)
		go io.WriteString(s.upstream, strings.Repeat("u", 56)+"\x81\x01z"+"\x88\x02\x03\xe9")
		reads(t, "the client", s.fromUp, strings.Repeat("u", 56)+farewell)
		go io.WriteString(s.client, "\x80\x00\x00\x00\x00"+maskedHello+"\x88\x80\x00\x00\x00\x00")
		reads(t, "the upstream", s.upstream, "\x80\x00\x00\x00\x00")
		readsFarewell(t, s.upstream)
		for who, r := range map[string]io.Reader{"client": s.fromUp, "upstream": s.upstream} {
			if rest, _ := io.ReadAll(r); len(rest) != 0 {
				t.Errorf("then the %s reads %q", who, rest)
			}
		}
		if err := <-down; err != nil || time.Since(s.start) != time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(s.start))
		}
		if e := s.next(t); e.Status != 101 || e.Sent < 260 || e.Received < 10 {
			t.Errorf("told %+v", e)
		}
	})
}

// Sides that do not answer do not hold the end up for long, and one that reads
// no more keeps nothing from the other.
func TestGoingAwayUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSocketWorld(t, Bounds{})
		go io.WriteString(s.upstream, "\x81\x05hello") // the client does not read it
		synctest.Wait()
		down := make(chan error, 1)
		go func() { down <- s.server.Shutdown(t.Context()) }()
		readsFarewell(t, s.upstream)
		if err := <-down; err != nil || time.Since(s.start) != closing {
			t.Errorf("Shutdown: %v after %v", err, time.Since(s.start))
		}
	})
}

// TestWebSocketIdle: silence of both sides ends it, and nothing else does.
func TestWebSocketIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSocketWorld(t, Bounds{TunnelIdle: time.Minute})
		for range 3 {
			time.Sleep(59 * time.Second)
			go io.WriteString(s.client, maskedHello)
			reads(t, "the upstream", s.upstream, maskedHello)
			time.Sleep(59 * time.Second)
			go io.WriteString(s.upstream, "\x81\x01u")
			reads(t, "the client", s.fromUp, "\x81\x01u")
		}
		readsFarewell(t, s.upstream)
		reads(t, "the client", s.fromUp, farewell)
		if at := time.Since(s.start); at != (6*59+60)*time.Second {
			t.Errorf("ended after %v", at)
		}
		s.next(t)
	})
}

// TestGoingAwayIsUnderstood: by a library's client and server.
func TestGoingAwayIsUnderstood(t *testing.T) {
	upstream := make(chan error, 1)
	addr := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			upstream <- err
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for err == nil {
			var msg []byte
			var kind websocket.MessageType
			if kind, msg, err = c.Read(r.Context()); err == nil {
				err = c.Write(r.Context(), kind, msg)
			}
		}
		upstream <- err
	}))
	turns := &turnstile{}
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", addr), turns)}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+f.addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for _, size := range []int{0, 1, 125, 126, 48 << 10, 65535, 65536, 300 << 10} {
		msg := bytes.Repeat([]byte("m"), size)
		if err := c.Write(ctx, websocket.MessageBinary, msg); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, msg) {
			t.Fatalf("%d bytes: %d came back, %v", size, len(got), err)
		}
	}
	down := make(chan error, 1)
	go func() { down <- f.server.Shutdown(ctx) }()
	if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the client is told %v", err)
	}
	if err := <-upstream; websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the upstream is told %v", err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
	if n := turns.turns.Load(); n != 1 {
		t.Errorf("%d turns", n)
	}
}

// FuzzFrames: however a stream is cut into writes, it passes unchanged until a
// Close frame is put in, and that stands where a frame ends.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x81\x05hello\x82\x7e\x00\x03abc\x88\x02\x03\xe8"), uint8(3), uint16(9))
	f.Add([]byte(maskedHello+maskedHello), uint8(1), uint16(0))
	f.Add([]byte("\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x02ab\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffrest"), uint8(7), uint16(2))
	f.Add([]byte("\x81\xfe\x00\x01keyskx"), uint8(255), uint16(65535))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint8, leaveAt uint16) {
		var got bytes.Buffer
		fr := &frames{w: &got}
		for at := 0; at < len(stream); {
			if at >= int(leaveAt) && !fr.leaving.Load() {
				fr.leave()
			}
			n := min(int(piece)+1, len(stream)-at)
			if m, err := fr.Write(stream[at : at+n]); m != n || err != nil {
				t.Fatalf("wrote %d of %d, %v", m, n, err)
			}
			at += n
		}
		if !fr.over {
			if !bytes.Equal(got.Bytes(), stream) {
				t.Fatalf("%q became %q", stream, got.Bytes())
			}
			return
		}
		passed := bytes.TrimSuffix(got.Bytes(), []byte(farewell))
		if !bytes.HasPrefix(stream, passed) {
			t.Fatalf("%q became %q", stream, got.Bytes())
		}
		if end, closed := endsFrame(passed); !end || closed != (len(passed) == got.Len()) {
			t.Fatalf("a Close frame follows %q: %t; it has one: %t", passed, len(passed) != got.Len(), closed)
		}
	})
}

// endsFrame reports whether b is whole frames, and whether one is a Close.
func endsFrame(b []byte) (whole, closed bool) {
	for len(b) >= 2 {
		head, size := uint64(2), uint64(b[1]&0x7f)
		if size == 126 && len(b) >= 4 {
			head, size = 4, uint64(binary.BigEndian.Uint16(b[2:]))
		} else if size == 127 && len(b) >= 10 {
			head, size = 10, binary.BigEndian.Uint64(b[2:])
		}
		if b[1]&0x80 != 0 {
			head += 4
		}
		closed = closed || b[0]&0xf == 8
		if have := uint64(len(b)); have < head || have-head < size {
			return false, closed
		}
		b = b[head+size:]
	}
	return len(b) == 0, closed
}

// TestEndedBeforeItBegan: the goroutine that reads from the upstream may first
// run when the client has gone already. Nothing stays behind.
func TestEndedBeforeItBegan(t *testing.T) {
	client, upstream := net.Pipe()
	defer client.Close()
	defer upstream.Close()
	x := &exchange{proxy: &Proxy{}, site: &Site{Bounds: Bounds{TunnelIdle: time.Minute}}}
	x.becomeSocket(&http.Response{Body: upstream})
	x.endSocket()
	x.socket.begin()
	if n := len(x.proxy.tunnels.open); n != 0 || x.socket.timer != nil {
		t.Errorf("%d are open, and the timer is %v", n, x.socket.timer)
	}
}
