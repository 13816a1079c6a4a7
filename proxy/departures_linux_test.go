package proxy

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// pair is the two ends of a connection on the loopback.
func pair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// An event that was read before its watch was stopped is not told to the next
// one on the same descriptor.
func TestDepartureOfAnEarlierConnection(t *testing.T) {
	d, err := watchDepartures()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	here, there := pair(t)
	d.watch(here, func() { t.Error("the first watch was told when it was stopped") })()
	left := make(chan struct{})
	stop := d.watch(here, func() { close(left) })
	defer stop()
	d.pass([]unix.EpollEvent{{Events: unix.EPOLLRDHUP, Fd: descriptor(here), Pad: 1}})
	select {
	case <-left:
		t.Fatal("the second watch was told what belonged to the first")
	default:
	}
	there.Close()
	<-left
}

// A lot that could not be opened for want of descriptors opens when there are
// some again, and that there were none is told once.
func TestLotOpensLater(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	_, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	var told bytes.Buffer
	f.proxy.log = slog.New(slog.NewTextHandler(&told, nil))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	before := f.server.lot.ready()
	before = f.server.lot.ready() || before // told of once
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if before || strings.Count(told.String(), "level=WARN") != 1 {
		t.Errorf("without descriptors, open is %v, told\n%s", before, told.String())
	}
	if !f.server.lot.ready() {
		t.Error("it stays closed")
	}
}

// A request for whose answer there is no time is one that the proxy cut, and
// not one whose client left.
func TestParkedAndCut(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g, r := gated(up.addr)
	f := newFront(t, &Site{Routes: []*Route{r}})
	f.dial(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-g.came
	f.server.Close()
	f.cut(limiter.ErrShutdown)
	if e := f.next(t); e.Reason != limiter.ReasonShutdown || e.Status != 0 {
		t.Errorf("%+v", e)
	}
}

func TestAcceptErrorsAreTold(t *testing.T) {
	var told bytes.Buffer
	l := &serverLog{log: slog.New(slog.NewTextHandler(&told, nil))}
	for range 100 {
		l.Write([]byte("http: Accept error: accept4: too many open files; retrying in 5ms\n"))
		l.Write([]byte("http: TLS handshake error from 127.0.0.1:1: EOF\n"))
	}
	if strings.Count(told.String(), "\n") != 1 || !strings.Contains(told.String(), "level=WARN") {
		t.Errorf("told\n%s", told.String())
	}
}
