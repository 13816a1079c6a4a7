//go:build !linux

package edge

import "net"

// boundUnsent is for Linux; elsewhere the kernel's own bounds hold.
func boundUnsent(net.Listener) {}
