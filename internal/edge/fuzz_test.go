package edge

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
)

// A spoken is a connection of a peer that says something and ends.
type spoken struct {
	net.Conn
	say    *bytes.Reader
	piece  int // the most that one Read gets
	closed bool
}

var fuzzPeer = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 99}

func (s *spoken) Read(p []byte) (int, error)      { return s.say.Read(p[:min(len(p), s.piece)]) }
func (s *spoken) Close() error                    { s.closed = true; return nil }
func (s *spoken) RemoteAddr() net.Addr            { return fuzzPeer }
func (s *spoken) SetReadDeadline(time.Time) error { return nil }

// headerLength is where a header of the PROXY protocol ends, by the first lines
// of its specification alone.
func headerLength(sent []byte) int {
	if bytes.HasPrefix(sent, []byte("PROXY")) {
		return bytes.IndexByte(sent, '\n') + 1
	}
	if len(sent) < 16 {
		return len(sent)
	}
	return 16 + int(binary.BigEndian.Uint16(sent[14:]))
}

// FuzzIntro: whatever a peer begins with that must say whom it introduces, it is
// refused and closed, or all that stands behind the header is read as it came,
// from an address that can be one. What is counted is counted down again.
func FuzzIntro(f *testing.F) {
	for _, source := range []string{"192.0.2.7:1234", "[2001:db8::7]:1234", "[::ffff:192.0.2.7]:1"} {
		for _, version := range []byte{1, 2} {
			f.Add([]byte(header(f, version, source)+"GET / HTTP/1.1\r\n\r\n"), 1<<16)
		}
	}
	tlvs := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1}, fuzzPeer)
	if err := tlvs.SetTLVs([]proxyproto.TLV{{Type: proxyproto.PP2_TYPE_AUTHORITY, Value: []byte("a.test")}, {Type: proxyproto.PP2_TYPE_NOOP, Value: make([]byte, 300)}}); err != nil {
		f.Fatal(err)
	}
	long, err := tlvs.Format()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(long, "GET /"...), 7)
	for _, send := range []string{
		"", "P", "PROXY", "PROXY UNKNOWN\r\nGET /", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
		"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n", "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
		"PROXY TCP4 " + strings.Repeat("1", 200), "GET / HTTP/1.1\r\nHost: x\r\n\r\n", local + "GET /",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x31\x00\xd8" + strings.Repeat("/tmp/sock", 24) + "GET /",     // of a Unix socket
		"\r\n\r\n\x00\r\nQUIT\n\x21\x12\x00\x0c\x01\x02\x03\x04\x01\x02\x03\x04\x00\x01\x00\x02", // UDP
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff", "\r\n\r\n\x00\r\nQUIT\n\x2f\xff\x00\x00GET",
	} {
		f.Add([]byte(send), 1<<16)
		f.Add([]byte(send), 1)
	}
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, sent []byte, piece int) {
		g := NewGate(log)
		g.Limit(Limits{Introduced: everybody, PerClient: 1, IPv6Prefix: 64})
		peer := &spoken{say: bytes.NewReader(sent), piece: max(1, piece)}
		c := g.admit(peer)
		got, err := io.ReadAll(c)
		addr, ok := c.RemoteAddr().(*net.TCPAddr)
		if !ok || addr.IP.To16() == nil || addr.Port < 0 || addr.Port > 65535 {
			t.Fatalf("the client is %v", c.RemoteAddr())
		}
		counts := g.Counts()
		if err != nil {
			if len(got) > 0 || !peer.closed || counts != (Counts{RefusedIntro: 1}) || addr != fuzzPeer {
				t.Fatalf("refused, yet %q is read of %v, closed %t, counted %+v", got, addr, peer.closed, counts)
			}
			return
		}
		if want := sent[min(len(sent), headerLength(sent)):]; !bytes.Equal(got, want) {
			t.Fatalf("behind the header is %q, read is %q", want, got)
		}
		if client := addrOf(addr); !client.IsValid() || client.Zone() != "" || counts != (Counts{Open: 1}) || len(g.clients) != 1 {
			t.Fatalf("the client is %v, counted %+v, %v", client, counts, g.clients)
		}
		c.Close()
		if counts := g.Counts(); counts != (Counts{}) || len(g.clients) != 0 || !peer.closed {
			t.Fatalf("closed, yet counted %+v, %v", counts, g.clients)
		}
	})
}
