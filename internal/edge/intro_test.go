package edge

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
)

func everybody(netip.Addr) bool { return true }

// header is one of the PROXY protocol.
func header(t testing.TB, version byte, source string) string {
	t.Helper()
	ap := netip.MustParseAddrPort(source)
	h := proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(ap), net.TCPAddrFromAddrPort(ap))
	b, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const local = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00" // version 2: the proxy itself, to see whether we live

func TestIntroduced(t *testing.T) {
	for name, tt := range map[string]struct{ send, want string }{
		"version 1":         {header(t, 1, "192.0.2.7:1234"), "192.0.2.7:1234"},
		"version 2":         {header(t, 2, "192.0.2.7:1234"), "192.0.2.7:1234"},
		"version 2 of IPv6": {header(t, 2, "[2001:db8::7]:1234"), "[2001:db8::7]:1234"},
		"unknown":           {"PROXY UNKNOWN\r\n", ""},
		"local":             {local, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHall(t, Limits{Introduced: everybody, IntroTimeout: time.Minute})
			client := h.dial(t, tt.send+"GET /")
			c := <-h.accepted
			defer c.Close()
			want := tt.want
			if want == "" {
				want = client.LocalAddr().String()
			}
			if got := c.RemoteAddr().String(); got != want {
				t.Errorf("the client is %s, want %s", got, want)
			}
			got := make([]byte, 10)
			if _, err := io.ReadFull(c, got[:5]); err != nil || string(got[:5]) != "GET /" {
				t.Errorf("then %q, %v", got, err)
			}
			io.WriteString(client, "and more!!")
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "and more!!" {
				t.Errorf("then %q, %v", got, err)
			}
		})
	}
}

// What is no header ends the connection of a peer that must send one.
func TestNotIntroduced(t *testing.T) {
	for name, send := range map[string]string{
		"HTTP":             "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"version 1":        "PROXY TCP4 1.2.3.4\r\nGET / HTTP/1.1\r\n",
		"without an end":   "PROXY TCP4 " + strings.Repeat("1", 200),
		"version 2":        "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x01\x00GET",
		"version 3":        "\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c            GET",
		"an address twice": "PROXY TCP4 1.2.3.4 1.2.3.4 1 x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHall(t, Limits{Introduced: everybody, IntroTimeout: time.Minute})
			client := h.dial(t, send)
			c := <-h.accepted
			defer c.Close()
			if got := c.RemoteAddr().String(); got != client.LocalAddr().String() {
				t.Errorf("the client is %s", got)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("read %d, %v", n, err)
			}
			if got := h.Counts(); got != (Counts{RefusedIntro: 1}) {
				t.Errorf("counted %+v", got)
			}
		})
	}
}

// A header is waited for so long, and the deadline of whoever reads comes back.
func TestIntroTimeout(t *testing.T) {
	h := newHall(t, Limits{Introduced: everybody, IntroTimeout: 10 * time.Millisecond})
	h.dial(t, "PROXY TCP4 ")
	c := <-h.accepted
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v", n, err)
	}

	h.Limit(Limits{Introduced: everybody, IntroTimeout: time.Minute})
	h.dial(t, header(t, 2, "192.0.2.7:1"))
	d := <-h.accepted
	defer d.Close()
	d.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if d.RemoteAddr().String() != "192.0.2.7:1" {
		t.Error(d.RemoteAddr())
	}
	if _, err := d.Read(make([]byte, 1)); err == nil || !err.(net.Error).Timeout() {
		t.Errorf("read: %v", err)
	}
}

// Clients behind a proxy are counted one by one, and only peers that are known
// may introduce them.
func TestIntroducedClientsAreCounted(t *testing.T) {
	h := newHall(t, Limits{Introduced: everybody, PerClient: 1, IntroTimeout: time.Minute})
	first := h.dial(t, header(t, 1, "192.0.2.7:1")+"x")
	a := <-h.accepted
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	second := h.dial(t, header(t, 1, "192.0.2.7:2")+"x")
	b := <-h.accepted
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("a second one is served")
	}
	refused(t, second)
	h.dial(t, header(t, 1, "192.0.2.8:2")+"x")
	c := <-h.accepted
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	a.Close()
	c.Close()
	b.Close()
	first.Close()
	if got := h.Counts(); got != (Counts{RefusedByClient: 1}) || len(h.clients) != 0 {
		t.Errorf("counted %+v, %v", got, h.clients)
	}

	h.Limit(Limits{Introduced: func(netip.Addr) bool { return false }})
	spoof := header(t, 1, "192.0.2.9:1")
	client := h.dial(t, spoof)
	d := <-h.accepted
	defer d.Close()
	got := make([]byte, len(spoof))
	if _, err := io.ReadFull(d, got); err != nil || string(got) != spoof || d.RemoteAddr().String() != client.LocalAddr().String() {
		t.Errorf("%q from %s, %v", got, d.RemoteAddr(), err)
	}
}
