package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// The whole demo over real sockets: what it tells people to try shows what it
// says.
func TestDemo(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	anyPort := func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	var log bytes.Buffer
	d, err := newDemo(demoAddresses{}, nil, &log, anyPort)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- d.run(ctx) }()

	transport := &http.Transport{}
	client := http.Client{Transport: transport}
	get := func(url string) (status int, body string) {
		res, err := client.Get("http://" + url)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, string(b)
	}

	// At once through the proxy: all are served.
	const together = 4
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			if status, body := get(d.at.Proxy + "/"); status != 200 || !strings.HasPrefix(body, "served: request ") {
				t.Errorf("through the proxy: %d %q", status, body)
			}
		})
	}
	all.Wait()
	if c := d.upstream.Counts(); c != (fragileCounts{Sent: together, Served: together}) {
		t.Errorf("the upstream counts %+v", c)
	}

	for _, algo := range limiter.Algorithms {
		if status, body := get(d.at.Proxy + "/check?algo=" + string(algo)); status != 200 || !strings.Contains(body, `"remaining":4`) {
			t.Errorf("/check of %s: %d %s", algo, status, body)
		}
	}
	if c := d.upstream.Counts(); c.Sent != together {
		t.Errorf("/check was sent to the upstream")
	}
	for path, want := range map[string]string{
		"/":           "<html",
		"/readyz":     "",
		"/api/limits": `"steady"`,
		"/metrics":    `shapeproxy_limit_decisions_total{decision="admitted",limit="steady",reason=""} `,
	} {
		if status, body := get(d.at.Admin + path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("admin %s: %d, without %q:\n%s", path, status, want, body)
		}
	}

	// More than it can take, past the proxy: it breaks.
	for d.upstream.Counts().Broke == 0 {
		if d.upstream.Counts().Sent > 100 {
			t.Fatal("the upstream takes whatever it is sent")
		}
		get(d.at.Upstream + "/")
	}
	if status, _ := get(d.at.Proxy + "/"); status != 503 {
		t.Errorf("the broken upstream through the proxy: %d", status)
	}

	transport.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("the log of a run without trouble:\n%s", &log)
	}
}

func TestDemoListensOnAllOrNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var opened []net.Listener
	_, err = newDemo(demoAddresses{Admin: taken.Addr().String()}, nil, io.Discard, func(flag, address string) (net.Listener, error) {
		if address == "" {
			address = "127.0.0.1:0"
		}
		l, err := net.Listen("tcp", address)
		if err == nil {
			opened = append(opened, l)
		}
		return l, err
	})
	if err == nil || len(opened) != 2 {
		t.Fatalf("with its third address taken: %v, after %d listeners", err, len(opened))
	}
	for _, l := range opened {
		if _, err := l.Accept(); err == nil {
			t.Errorf("%s is still listening", l.Addr())
		}
	}
}

func TestPrintDemo(t *testing.T) {
	at := demoAddresses{Upstream: "127.0.0.1:1", Proxy: "127.0.0.1:2", Admin: "127.0.0.1:3"}
	anyPort := func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	d, err := newDemo(at, nil, io.Discard, anyPort)
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	defer d.run(stopped)

	var out bytes.Buffer
	steady := d.proxy.started.Limits[0]
	printDemo(&out, at, steady)
	for _, want := range []string{
		"http://127.0.0.1:1/", "http://127.0.0.1:2/", "http://127.0.0.1:3/",
		"12 get 200", "all 30 get 200, one each 100ms, the last after 2.9s", "check?algo=token-bucket",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	// What it says of the 30 holds only if all of them find a place in time.
	if steady.Queue < 29 || steady.MaxWait < 29*steady.Rate.Interval() {
		t.Errorf("30 at once do not fit into %+v", steady)
	}
	if steady.Rate.Interval() != time.Second/fragileRate {
		t.Errorf("the proxy lets %s through, the upstream is made for %d a second", steady.Rate, fragileRate)
	}
}

func TestPrintSummary(t *testing.T) {
	for _, tt := range []struct {
		counts fragileCounts
		want   string
	}{
		{fragileCounts{}, "the upstream was sent 0 requests, served 0, answered 503 to 0, and never broke\n"},
		{fragileCounts{30, 12, 18, 1}, "the upstream was sent 30 requests, served 12, answered 503 to 18, and broke once\n"},
		{fragileCounts{60, 24, 36, 2}, "the upstream was sent 60 requests, served 24, answered 503 to 36, and broke 2 times\n"},
	} {
		var out bytes.Buffer
		printSummary(&out, tt.counts)
		if out.String() != tt.want {
			t.Errorf("%q, want %q", &out, tt.want)
		}
	}
}
