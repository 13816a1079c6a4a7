package edge

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
)

// An intro is the header of the PROXY protocol, version 1 or 2, with which a
// proxy in front says whose connection it passes on. It is read by the
// connection's own goroutine, when that first asks for the address or reads, so
// that a proxy which is slow with it keeps nobody from being accepted.
type intro struct {
	once   sync.Once
	addr   net.Addr
	err    error
	behind *bufio.Reader // holds what came with the header; nil when that has been read

	mu       sync.Mutex
	deadline time.Time // for reading, as whoever has the connection wants it
}

func (i *intro) keepDeadline(t time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.deadline = t
}

// read is c's Read.
func (i *intro) read(c *Conn, p []byte) (int, error) {
	i.once.Do(func() { i.begin(c) })
	if i.err != nil {
		return 0, i.err
	}
	if i.behind != nil {
		if n := i.behind.Buffered(); n > 0 {
			return i.behind.Read(p[:min(n, len(p))])
		}
		i.behind = nil
	}
	return c.Conn.Read(p)
}

// source is whom the header names: the peer itself if it has none to name, as
// when it asks for its own sake whether we live.
func (i *intro) source(c *Conn) net.Addr {
	i.once.Do(func() { i.begin(c) })
	return i.addr
}

func (i *intro) begin(c *Conn) {
	limits := c.gate.limits.Load()
	i.addr = c.Conn.RemoteAddr()
	if limits.IntroTimeout > 0 {
		_ = c.Conn.SetReadDeadline(time.Now().Add(limits.IntroTimeout))
		defer func() {
			i.mu.Lock()
			defer i.mu.Unlock()
			_ = c.Conn.SetReadDeadline(i.deadline)
		}()
	}
	i.behind = bufio.NewReader(c.Conn)
	header, err := proxyproto.Read(i.behind)
	if err != nil {
		i.err = fmt.Errorf("no header of the PROXY protocol: %w", err)
		c.gate.refuse(&c.gate.badIntro, "they do not begin with a header of the PROXY protocol, as peers in proxy_protocol must", "peer", i.addr.String())
		_ = c.Close()
		return
	}
	client := c.peer
	if tcp, ok := header.SourceAddr.(*net.TCPAddr); ok && !header.Command.IsLocal() {
		i.addr, client = tcp, addrOf(tcp)
	}
	if !c.count(limits, client) {
		i.err = net.ErrClosed
		c.abort()
	}
}
