//go:build unix

package h1

import "golang.org/x/sys/unix"

// quiet reports whether a socket has nothing to be read, not even an end.
func quiet(fd uintptr) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if err != unix.EINTR {
			return err == nil && n == 0
		}
	}
}
