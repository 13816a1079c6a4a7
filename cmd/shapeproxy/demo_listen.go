package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
)

// nearby is how many ports above a default one are tried when it is taken.
const nearby = 20

// listenNear listens on the address. If that is taken and was nobody's choice
// but the default, it takes the next free port, and tells w so.
func listenNear(w io.Writer, what, address string, chosen bool) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	if chosen || !errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	for next := port + 1; next <= port+nearby; next++ {
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(next))); err == nil {
			fmt.Fprintf(w, "%s: port %d is taken, so it listens on %d\n", what, port, next)
			return l, nil
		}
	}
	return nil, fmt.Errorf("%s: the ports %d to %d are taken; choose another: %w", what, port, port+nearby, err)
}
