package h1

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkRoundTrip compares with net/http's Transport, over loopback.
func BenchmarkRoundTrip(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answer := []byte("HTTP/1.1 200 OK\r\nServer: x\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 128\r\n\r\n" + strings.Repeat("x", 128))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for b := make([]byte, 8<<10); ; {
					if _, err := c.Read(b); err != nil {
						return
					}
					c.Write(answer)
				}
			}()
		}
	}()
	defer l.Close()
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
	ours := &Transport{Dial: dial, MaxIdle: 64, MaxHeaderBytes: 1 << 20}
	defer ours.Close()
	theirs := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	defer theirs.CloseIdleConnections()
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
		body string
	}{{"ours/GET", ours, ""}, {"theirs/GET", theirs, ""}, {"ours/POST", ours, "body"}, {"theirs/POST", theirs, "body"}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			buf := make([]byte, 1024)
			for b.Loop() {
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				res, err := c.rt.RoundTrip(newRequest("POST", "/path", body).WithContext(ctx))
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = res.Body.Read(buf)
				}
				res.Body.Close()
			}
		})
	}
}
