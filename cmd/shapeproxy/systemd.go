package main

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// A supervisor is what the service manager that started the process wants to
// know and has prepared: systemd, or nobody (sd_notify(3), sd_listen_fds(3)).
type supervisor struct {
	log    *slog.Logger
	passed []net.Listener // not yet taken
	beat   *time.Ticker   // nil: nobody watches
}

// newSupervisor takes what systemd has passed on.
func newSupervisor(log *slog.Logger) *supervisor {
	s := &supervisor{log: log}
	passed, err := activation.Listeners()
	if err != nil {
		log.Warn("the sockets that systemd passes cannot be used", "error", err)
	}
	for _, l := range passed {
		if l != nil {
			s.passed = append(s.passed, l)
		}
	}
	if every, err := daemon.SdWatchdogEnabled(false); err != nil {
		log.Warn("systemd's watchdog cannot be understood; check WATCHDOG_USEC", "error", err)
	} else if every > 0 {
		s.beat = time.NewTicker(every / 2)
	}
	return s
}

// listen is the passed socket that listens at an address, or a new one.
func (s *supervisor) listen(address string) (net.Listener, error) {
	if l := s.take(address); l != nil {
		return l, nil
	}
	return listen(address)
}

// take returns the passed socket that listens at an address of the
// configuration; nil if there is none.
func (s *supervisor) take(address string) net.Listener {
	for i, l := range s.passed {
		if listensAt(l.Addr(), address) {
			s.passed = append(s.passed[:i:i], s.passed[i+1:]...)
			return l
		}
	}
	return nil
}

// listensAt reports whether a socket listens where an address of the
// configuration says. Without a host it is any that takes every address.
func listensAt(at net.Addr, address string) bool {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return at.Network() == "unix" && at.String() == path
	}
	have, ok := at.(*net.TCPAddr)
	want, err := net.ResolveTCPAddr("tcp", address)
	if !ok || err != nil || have.Port != want.Port {
		return false
	}
	anywhere := func(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
	return have.IP.Equal(want.IP) || anywhere(have.IP) && anywhere(want.IP)
}

// dropRest closes the passed sockets that nobody took: clients would wait for
// ever at one that nobody serves.
func (s *supervisor) dropRest() {
	for _, l := range s.passed {
		s.log.Warn("systemd passes a socket that no listen names; name it, or take it out of the .socket unit", "address", addressOf(l))
		_ = l.Close()
	}
	s.passed = nil
}

// beats is when to tell that the process lives.
func (s *supervisor) beats() <-chan time.Time {
	if s.beat == nil {
		return nil
	}
	return s.beat.C
}

func (s *supervisor) alive()    { s.tell(daemon.SdNotifyWatchdog) }
func (s *supervisor) ready()    { s.tell(daemon.SdNotifyReady) }
func (s *supervisor) stopping() { s.tell(daemon.SdNotifyStopping) }

// reloading must be followed by ready. systemd wants the time, to tell this
// message from one of a reload before.
func (s *supervisor) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.log.Warn("the monotonic clock cannot be read", "error", err)
		return
	}
	s.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

func (s *supervisor) tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("the service manager cannot be told", "state", strings.SplitN(state, "\n", 2)[0], "error", err)
	}
}
