package main

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestListenNear(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	port := taken.Addr().(*net.TCPAddr).Port

	var said bytes.Buffer
	if l, err := listenNear(&said, "proxy", address, true); err == nil {
		l.Close()
		t.Errorf("a chosen port that is taken gives way to %s", l.Addr())
	}
	l, err := listenNear(&said, "proxy", address, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	next := l.Addr().(*net.TCPAddr).Port
	if next <= port || next > port+nearby {
		t.Errorf("%d gives way to %d", port, next)
	}
	if want := fmt.Sprintf("proxy: port %d is taken, so it listens on %d\n", port, next); said.String() != want {
		t.Errorf("it says %q, want %q", &said, want)
	}
	if _, err := listenNear(&said, "proxy", "nowhere", false); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("an address without a port: %v", err)
	}
}
