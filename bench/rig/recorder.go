package rig

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Recorder is an upstream that answers 200 at once and notes when each
// request came. Targets have the form /QUEUE/ID.
//
// The instants are the kernel's: it stamps what a socket receives
// (SO_TIMESTAMPNS, socket(7)), so that they tell nothing of how long this
// process, or another that has the processor, took to look at it.
type Recorder struct {
	net.Listener
	mu       sync.Mutex
	arrivals map[string][]Arrival // by queue
}

// An Arrival is one request at the upstream.
type Arrival struct {
	ID   string
	At   time.Time // when the last of its head came
	Read time.Time // when this process had read it
}

const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// Record starts a Recorder on a free port, to be ended with Close.
func Record() (*Recorder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// Connections inherit it, so that what comes before they are accepted is
	// stamped too.
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}); err != nil || failed != nil {
		return nil, fmt.Errorf("SO_TIMESTAMPNS: %v %v", err, failed)
	}
	r := &Recorder{Listener: l, arrivals: make(map[string][]Arrival)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(conn.(*net.TCPConn))
		}
	}()
	return r, nil
}

// Take returns what has come through the queue since it was last called, the
// earliest first.
func (r *Recorder) Take(queue string) []Arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.arrivals[queue]
	delete(r.arrivals, queue)
	slices.SortFunc(all, func(a, b Arrival) int { return a.At.Compare(b.At) })
	return all
}

func (r *Recorder) serve(conn *net.TCPConn) {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	buffer, stamp := make([]byte, 8192), make([]byte, unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))))
	for filled := 0; ; {
		n, at, err := receive(raw, buffer[filled:], stamp)
		now := time.Now()
		if filled += n; err != nil || n == 0 {
			return
		}
		head := buffer[:filled]
		if !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			if filled == len(buffer) {
				return
			}
			continue
		}
		filled = 0
		line, _, _ := strings.Cut(string(head), "\r\n")
		if fields := strings.Fields(line); len(fields) == 3 {
			if queue, id, ok := strings.Cut(strings.TrimPrefix(fields[1], "/"), "/"); ok {
				r.mu.Lock()
				r.arrivals[queue] = append(r.arrivals[queue], Arrival{id, at, now})
				r.mu.Unlock()
			}
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// receive reads what is there, and when the kernel got it.
func receive(raw syscall.RawConn, p, stamp []byte) (n int, at time.Time, err error) {
	var control int
	waited := raw.Read(func(fd uintptr) bool {
		for {
			n, control, _, _, err = unix.Recvmsg(int(fd), p, stamp, 0)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if waited != nil {
		return 0, at, waited
	}
	if err != nil || n == 0 {
		return 0, at, err
	}
	messages, err := unix.ParseSocketControlMessage(stamp[:control])
	if err != nil {
		return 0, at, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
			ts := (*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return n, time.Unix(ts.Unix()), nil
		}
	}
	return 0, at, fmt.Errorf("the kernel put no stamp on %d bytes", n)
}
