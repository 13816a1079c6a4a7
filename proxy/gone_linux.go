package proxy

import (
	"crypto/tls"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasLeft reports whether the client has closed, half-closed or reset its
// connection. net/http notices that only while it reads, and it does not read
// while the body of a waiting request stands unread; the kernel knows.
func hasLeft(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false // an in-memory pipe
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	left := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		left = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return left || err != nil
}

// roomForBody has the kernel take in up to n bytes that nobody reads yet: the
// end of a connection comes behind what was sent before it, and stays with the
// sender for as long as there is no room for that. 0 ends it. Of what sets the
// size of the buffer, only this goes up to net.ipv4.tcp_rmem, as reading would;
// see tcp_set_rcvlowat in Linux.
func roomForBody(c net.Conn, n int) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, max(1, n))
		if n > 0 {
			// A look has the kernel tell the sender of the new room.
			_, _, _ = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
	})
}
