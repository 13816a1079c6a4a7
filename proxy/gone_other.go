//go:build !linux

package proxy

import "net"

// hasLeft knows nothing where the kernel cannot be asked; there, a client that
// leaves behind an unread body is noticed when its request has been sent.
func hasLeft(net.Conn) bool { return false }

// roomForBody does nothing where it would not help.
func roomForBody(net.Conn, int) {}
