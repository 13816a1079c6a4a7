package edge

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent is how much the kernel takes of what is to be sent on one connection
// before that is on its way. Without a bound it is up to net.ipv4.tcp_wmem,
// 4 MB as Linux comes, for each client that does not read. What is on its way
// is not counted, so that fast and far clients are as fast as before.
const unsent = 128 << 10

// boundUnsent sets it for every connection that l accepts.
func boundUnsent(l net.Listener) {
	sc, ok := l.(syscall.Conn)
	if _, tcp := l.Addr().(*net.TCPAddr); !ok || !tcp {
		return
	}
	if raw, err := sc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			// It is to save memory only: a kernel that does not know it does as before.
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
		})
	}
}
