package proxy

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// departures tells when clients leave whose connections nobody reads: an epoll
// of our own, itself watched by the runtime's poller, so that any number of
// connections take one goroutine.
type departures struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu   sync.Mutex
	last int32 // the number of the latest watch
	left map[watchID]func()
}

// A watchID tells a watch from a later one whose connection got the same
// descriptor: an event may have been read before the connection was closed, and
// be told when the next has come.
type watchID struct{ fd, n int32 }

// watchDepartures begins to watch. The error is one of the system.
func watchDepartures() (*departures, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // what makes os.NewFile leave it to the poller
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	d := &departures{file: os.NewFile(uintptr(fd), "epoll"), done: make(chan struct{}), left: make(map[watchID]func())}
	if d.raw, err = d.file.SyscallConn(); err != nil {
		_ = d.file.Close()
		return nil, err
	}
	go d.tell()
	return d, nil
}

// watch calls left, once, when the client of c closes, half-closes or resets
// its connection, unless stop is called before. left must not block.
func (d *departures) watch(c net.Conn, left func()) (stop func()) {
	fd := descriptor(c)
	if fd < 0 {
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	id := watchID{fd, d.last}
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: id.fd, Pad: id.n} // both are handed back
	if err := d.control(unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return func() {} // noticed at its turn
	}
	d.left[id] = left
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.left, id)
		_ = d.control(unix.EPOLL_CTL_DEL, fd, nil) // it is there: only we remove it
	}
}

func (d *departures) control(op int, fd int32, event *unix.EpollEvent) (err error) {
	if e := d.raw.Control(func(ep uintptr) { err = unix.EpollCtl(int(ep), op, int(fd), event) }); e != nil {
		return e // closed
	}
	return err
}

// tell passes on what epoll says.
func (d *departures) tell() {
	defer close(d.done)
	events := make([]unix.EpollEvent, 64)
	_ = d.raw.Read(func(ep uintptr) bool { // it ends when the file is closed
		for {
			n, err := unix.EpollWait(int(ep), events, 0)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return false
			}
			d.pass(events[:n])
		}
	})
}

func (d *departures) pass(events []unix.EpollEvent) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range events {
		if left := d.left[watchID{e.Fd, e.Pad}]; left != nil {
			left()
		}
	}
}

// close ends it. Nobody is told any more.
func (d *departures) close() {
	if d == nil {
		return
	}
	_ = d.file.Close()
	<-d.done
}

// descriptor is that of the socket below c; negative if there is none. It stays
// good for as long as c is not closed.
func descriptor(c net.Conn) int32 {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return -1
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1
	}
	fd := int32(-1)
	_ = raw.Control(func(f uintptr) { fd = int32(f) })
	return fd
}
