//go:build !linux

package proxy

import (
	"errors"
	"net"
)

// departures cannot be had where there is no epoll; requests are not parked.
type departures struct{}

func watchDepartures() (*departures, error) { return nil, errors.ErrUnsupported }

func (d *departures) watch(net.Conn, func()) (stop func()) { return func() {} }

func (d *departures) close() {}

func descriptor(net.Conn) int32 { return -1 }
