package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a connection behind a gate, and the client's end of it.
func pipe(t *testing.T, limits Limits) (*Conn, net.Conn) {
	g := NewGate(slog.New(slog.DiscardHandler))
	g.Limit(limits)
	near, far := net.Pipe()
	c := g.admit(far)
	t.Cleanup(func() { c.Close(); near.Close() })
	return c, near
}

const patiently = 10 * time.Second

// A client that takes nothing is cut, after a time between the one that was
// asked for and a quarter more.
func TestReaderThatStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := pipe(t, Limits{SendTimeout: patiently})
		for _, quiet := range []time.Duration{0, time.Second, time.Hour} {
			time.Sleep(quiet)
			go io.ReadFull(client, make([]byte, 5))
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatalf("after %v: %v", quiet, err)
			}
		}
		time.Sleep(2 * time.Second)
		start := time.Now()
		n, err := c.Write([]byte("nobody reads this"))
		if took := time.Since(start); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took != 10500*time.Millisecond {
			t.Errorf("wrote %d, %v, in %v", n, err, took)
		}
		if got := c.gate.Counts().SlowReaders; got != 1 {
			t.Errorf("%d slow readers", got)
		}
	})
}

// One that takes a little all the time is served, if that is enough.
func TestReaderThatIsSlow(t *testing.T) {
	for _, tt := range []struct {
		rate int64 // that is asked for; the client takes 100 bytes a second
		ok   bool
	}{{0, true}, {80, true}, {150, false}} {
		synctest.Test(t, func(t *testing.T) {
			c, client := pipe(t, Limits{SendTimeout: patiently, MinSendRate: tt.rate})
			taken := make(chan int)
			go func() {
				n, buf := 0, make([]byte, 100)
				for {
					m, err := client.Read(buf)
					if n += m; err != nil || n == 10_000 {
						taken <- n
						return
					}
					time.Sleep(time.Second)
				}
			}()
			n, err := c.Write(make([]byte, 10_000))
			if tt.ok != (err == nil) || tt.ok != (n == 10_000) {
				t.Errorf("at least %d B/s: wrote %d, %v", tt.rate, n, err)
			}
			c.Close()
			if got := <-taken; got != n {
				t.Errorf("the client has %d bytes of %d", got, n)
			}
		})
	}
}

// Whoever sets a deadline of their own gets that, and a longer stall too.
func TestOthersDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := pipe(t, Limits{SendTimeout: patiently})
		for _, set := range []func(time.Time) error{c.SetDeadline, c.SetWriteDeadline} {
			for _, d := range []time.Duration{time.Second, time.Minute} {
				start := time.Now()
				if err := set(start.Add(d)); err != nil {
					t.Fatal(err)
				}
				_, err := c.Write([]byte("x"))
				if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took != d {
					t.Errorf("%v, after %v instead of %v", err, took, d)
				}
			}
			if err := set(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		c.Write([]byte("x"))
		if took := time.Since(start); took != 12500*time.Millisecond {
			t.Errorf("then %v", took)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	for _, d := range []time.Duration{0, time.Minute} {
		b.Run("send_timeout="+d.String(), func(b *testing.B) {
			g := NewGate(slog.New(slog.DiscardHandler))
			g.Limit(Limits{SendTimeout: d, MinSendRate: 240})
			c := g.admit(nowhere{})
			b.ReportAllocs()
			for b.Loop() {
				c.Write(nil)
			}
		})
	}
}

// nowhere takes everything.
type nowhere struct{ net.Conn }

func (nowhere) RemoteAddr() net.Addr             { return nil }
func (nowhere) Write(p []byte) (int, error)      { return len(p), nil }
func (nowhere) SetWriteDeadline(time.Time) error { return nil }
