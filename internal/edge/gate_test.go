package edge

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A hall is a listener behind a gate, and what it accepted.
type hall struct {
	*Gate
	addr     string
	accepted chan net.Conn
	log      bytes.Buffer
}

func newHall(t *testing.T, limits Limits) *hall {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hall{addr: l.Addr().String(), accepted: make(chan net.Conn, 100)}
	h.Gate = NewGate(slog.New(slog.NewTextHandler(&h.log, nil)))
	h.Limit(limits)
	gated := h.Listener(l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := gated.Accept()
			if err != nil {
				return
			}
			h.accepted <- c
		}
	}()
	t.Cleanup(func() {
		gated.Close()
		<-done
	})
	return h
}

// dial connects and sends.
func (h *hall) dial(t *testing.T, send string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	return c
}

// refuses connects and is not served; the reset may come at any time.
func (h *hall) refuses(t *testing.T) {
	t.Helper()
	if c, err := net.Dial("tcp", h.addr); err == nil {
		defer c.Close()
		refused(t, c)
	}
}

// refused waits until the connection is ended without a byte.
func refused(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the connection is served: %d bytes, %v", n, err)
	}
}

func TestConnectionsInAll(t *testing.T) {
	h := newHall(t, Limits{Connections: 2})
	h.dial(t, "")
	a := <-h.accepted
	h.dial(t, "")
	b := <-h.accepted
	for range 5 {
		h.refuses(t)
	}
	if got := h.Counts(); got != (Counts{Open: 2, RefusedInAll: 5}) {
		t.Errorf("counted %+v", got)
	}
	a.Close()
	a.Close() // net/http may close a connection twice
	h.dial(t, "")
	c := <-h.accepted
	h.Limit(Limits{Connections: 3}) // a reload
	h.dial(t, "")
	d := <-h.accepted
	for _, c := range []net.Conn{b, c, d} {
		c.Close()
	}
	if got := h.Counts().Open; got != 0 {
		t.Errorf("%d are open", got)
	}
	if n := strings.Count(h.log.String(), "level=WARN"); n != 1 || !strings.Contains(h.log.String(), "max_connections=2") {
		t.Errorf("logged %q", &h.log)
	}
}

func TestConnectionsOfOneClient(t *testing.T) {
	h := newHall(t, Limits{PerClient: 1})
	h.dial(t, "")
	a := <-h.accepted
	h.refuses(t)
	if got := h.Counts(); got != (Counts{Open: 1, RefusedByClient: 1}) {
		t.Errorf("counted %+v", got)
	}
	// A proxy in front is many clients.
	h.Limit(Limits{PerClient: 1, Exempt: func(a netip.Addr) bool { return a.IsLoopback() }})
	h.dial(t, "")
	b := <-h.accepted
	a.Close()
	b.Close()
	if len(h.clients) != 0 {
		t.Errorf("still counted: %v", h.clients)
	}
}

// An address alone tells IPv6 clients apart no better than it does for limits.
func TestClientsByPrefix(t *testing.T) {
	g := NewGate(slog.New(slog.DiscardHandler))
	limits := &Limits{PerClient: 2, IPv6Prefix: 64}
	count := func(addr string) bool {
		return (&Conn{gate: g}).count(limits, netip.MustParseAddr(addr))
	}
	for _, c := range []struct {
		addr string
		want bool
	}{
		{"2001:db8:0:1::1", true}, {"2001:db8:0:1::2", true}, {"2001:db8:0:1:ffff::3", false}, {"2001:db8:0:2::1", true},
		{"192.0.2.1", true}, {"192.0.2.1", true}, {"192.0.2.1", false}, {"192.0.2.2", true},
	} {
		if got := count(c.addr); got != c.want {
			t.Errorf("%s: let in %t", c.addr, got)
		}
	}
}

// A connection that was closed while its header was awaited counts for nobody.
func TestClosedBeforeItIsCounted(t *testing.T) {
	g := NewGate(slog.New(slog.DiscardHandler))
	near, far := net.Pipe()
	defer near.Close()
	c := g.admit(far)
	c.Close()
	if c.count(&Limits{}, netip.MustParseAddr("192.0.2.1")) || len(g.clients) != 0 || g.Counts().Open != 0 {
		t.Errorf("counted: %v, %+v", g.clients, g.Counts())
	}
}

// What package proxy asks of a connection, and net/http.
func TestConnIsASocket(t *testing.T) {
	h := newHall(t, Limits{})
	client := h.dial(t, "")
	c := (<-h.accepted).(*Conn)
	defer c.Close()
	if raw, err := c.SyscallConn(); err != nil || raw == nil {
		t.Error(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("half-closed: %v", err)
	}
	pipe := &Conn{Conn: struct{ net.Conn }{}}
	if _, err := pipe.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := pipe.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
