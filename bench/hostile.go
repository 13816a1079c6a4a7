//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

const (
	honestClients = 50
	honestEach    = 20 * time.Millisecond // a request of each of them
	slowHeaders   = 2000
	slowReaders   = 500
	largeAnswer   = 8 << 20
	stageTime     = 30 * time.Second
)

// hostile has clients that work honestly tell how long their answers take while
// nothing else happens, while others write their heads slowly or do not read
// their answers, and while one resets its streams as fast as it can.
func hostile(b *bench, rounds int) error {
	large := make([]byte, largeAnswer)
	up := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			w.Write(large)
			return
		}
		io.WriteString(w, "ok")
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go up.Serve(l)
	defer up.Close()
	p, err := b.fortress(l.Addr().String())
	if err != nil {
		return err
	}
	rows := [][]string{{"round", "stage", "honest requests", "failed", "p50 ms", "p99 ms", "memory MB", "descriptors", "goroutines", "cut"}}
	for round := range rounds {
		for _, stage := range []struct {
			name   string
			attack func(ctx context.Context, addr string) *atomic.Int64 // what it counts: connections that the proxy cut
		}{
			{"quiet", nil},
			{fmt.Sprintf("%d slow heads, %d slow readers", slowHeaders, slowReaders), slowClients},
			{"after it", nil},
			{"reset flood", resetFlood},
			{"after it", nil},
		} {
			ctx, cancel := context.WithTimeout(context.Background(), stageTime)
			var cut *atomic.Int64
			if stage.attack != nil {
				cut = stage.attack(ctx, p.addr)
				time.Sleep(2 * time.Second) // what is measured is the attack, not its start
			}
			honest := work(ctx, p.addr)
			state, err := p.state()
			cancel()
			if err != nil {
				return err
			}
			cuts := ""
			if cut != nil {
				cuts = strconv.FormatInt(cut.Load(), 10)
			}
			rows = append(rows, append([]string{strconv.Itoa(round + 1), stage.name, strconv.Itoa(len(honest.took)), strconv.FormatInt(honest.failed.Load(), 10),
				honest.ms(0.5), honest.ms(0.99)}, append(state, cuts)...))
			time.Sleep(2 * time.Second) // for what was cut to be gone
		}
	}
	table(rows...)
	return nil
}

// A fortress is the proxy under attack.
type fortress struct {
	*rig.Process
	addr, admin string
}

func (b *bench) fortress(upstream string) (*fortress, error) {
	f := &fortress{}
	for _, addr := range []*string{&f.addr, &f.admin} {
		a, err := rig.FreeAddr()
		if err != nil {
			return nil, err
		}
		*addr = a
	}
	dir, err := b.folder("shapeproxy")
	if err != nil {
		return nil, err
	}
	f.Process, err = rig.Shapeproxy(dir, b.program, f.admin, fmt.Sprintf(`
server.listen = %q
admin.listen = %q
log.access = false
upstream.up.url = "http://%s"
[[route]]
match = "/"
upstream = "up"
`, f.addr, f.admin, upstream))
	if err == nil {
		b.stops = append(b.stops, f.Stop)
	}
	return f, err
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

// state is the proxy's memory, descriptors and goroutines.
func (f *fortress) state() ([]string, error) {
	memory, err := f.Memory()
	if err != nil {
		return nil, err
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.Cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	res, err := http.Get("http://" + f.admin + "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	n := goroutines.FindSubmatch(page)
	if n == nil {
		return nil, errors.New("the metrics have no go_goroutines")
	}
	return []string{strconv.FormatInt(memory>>20, 10), strconv.Itoa(len(fds)), string(n[1])}, nil
}

// honestly is what honest clients saw.
type honestly struct {
	mu     sync.Mutex
	took   []time.Duration
	failed atomic.Int64
}

func (h *honestly) ms(q float64) string {
	if len(h.took) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(quantile(h.took, q).Microseconds())/1000)
}

// work has honest clients ask at a steady pace until ctx is nearly over.
func work(ctx context.Context, addr string) *honestly {
	h := &honestly{}
	until, _ := ctx.Deadline()
	until = until.Add(-500 * time.Millisecond)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: honestClients}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for i := range honestClients {
		all.Go(func() {
			time.Sleep(honestEach * time.Duration(i) / honestClients)
			for tick := time.NewTicker(honestEach); time.Now().Before(until); <-tick.C {
				began := time.Now()
				res, err := client.Get("http://" + addr + "/")
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				if err != nil || res.StatusCode != http.StatusOK {
					h.failed.Add(1)
					continue
				}
				h.mu.Lock()
				h.took = append(h.took, time.Since(began))
				h.mu.Unlock()
			}
		})
	}
	all.Wait()
	return h
}

// slowClients come again as soon as they are cut.
func slowClients(ctx context.Context, addr string) *atomic.Int64 {
	var cut atomic.Int64
	client := func(act func(net.Conn) error) {
		for ctx.Err() == nil {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				time.Sleep(time.Second)
				continue
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			for err == nil {
				err = act(c)
			}
			if stop() {
				cut.Add(1)
				c.Close()
			}
		}
	}
	for i := range slowHeaders {
		go client(func(c net.Conn) error {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
				return err
			}
			for {
				time.Sleep(time.Second + time.Duration(i%100)*time.Millisecond)
				if _, err := c.Write([]byte("x")); err != nil {
					return err
				}
			}
		})
	}
	for range slowReaders {
		go client(func(c net.Conn) error {
			if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
				return err
			}
			if _, err := io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				return err
			}
			return untilReset(ctx, c)
		})
	}
	return &cut
}

// untilReset waits until the other side has ended c, and reads nothing.
func untilReset(ctx context.Context, c net.Conn) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		time.Sleep(time.Second)
		state := 0
		if err := raw.Control(func(fd uintptr) {
			state, _ = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		}); err != nil || state != 0 {
			return io.EOF
		}
	}
	return ctx.Err()
}

// resetFlood opens streams on one connection after another, and resets each at
// once.
func resetFlood(ctx context.Context, addr string) *atomic.Int64 {
	var cut atomic.Int64
	go func() {
		for ctx.Err() == nil {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			stop := context.AfterFunc(ctx, func() { c.Close() })
			flood(c)
			if stop() {
				cut.Add(1)
				c.Close()
			}
		}
	}()
	return &cut
}

func flood(c net.Conn) {
	go io.Copy(io.Discard, c)
	out := bufio.NewWriter(c)
	framer := http2.NewFramer(out, nil)
	io.WriteString(out, http2.ClientPreface)
	framer.WriteSettings()
	for id := uint32(1); id < 1<<30; id += 2 {
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "x"}} {
			enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		framer.WriteRSTStream(id, http2.ErrCodeCancel)
		if out.Flush() != nil {
			return
		}
	}
}
