// Package faults has a network between the proxy and its upstream that
// delays, resets, swallows and slices what passes. It is a module of its own,
// as toxiproxy brings more modules along than the product has.
package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A stage is a proxy, an upstream, and the network between them.
type stage struct {
	t     *testing.T
	net   *toxiproxy.Proxy
	front string
	up    *proxy.Upstream

	headCame func() // at the client; nil: nobody minds

	mu     sync.Mutex
	came   map[string]int // requests by path, at the upstream
	events []proxy.Event
	told   chan struct{}
}

// Decided implements proxy.Observer.
func (s *stage) Decided(string, []limiter.Decision) {}

// Done implements proxy.Observer.
func (s *stage) Done(e *proxy.Event) {
	s.mu.Lock()
	s.events = append(s.events, *e)
	s.mu.Unlock()
	s.told <- struct{}{}
}

// patience is far beyond what a test takes.
const patience = time.Minute

// newStage has h be the upstream, behind a network at scheme.
func newStage(t *testing.T, scheme string, h http.HandlerFunc, change func(*proxy.UpstreamOptions)) *stage {
	t.Helper()
	s := &stage{t: t, came: map[string]int{}, told: make(chan struct{}, 1000)}
	upstream := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.came[r.URL.Path]++
		s.mu.Unlock()
		h(w, r)
	})}
	upstream.Protocols.SetHTTP1(true)
	upstream.Protocols.SetUnencryptedHTTP2(true)
	behind := listen(t)
	go upstream.Serve(behind)
	t.Cleanup(func() { upstream.Close() })

	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	s.net = toxiproxy.NewProxy(server, "network", "127.0.0.1:0", behind.Addr().String())
	if err := s.net.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.net.Stop)

	o := proxy.UpstreamOptions{
		Name: "up", Scheme: scheme, SendHost: "upstream", Places: []proxy.Place{{Host: s.net.Listen, Address: s.net.Listen}},
		DialTimeout: patience, ResponseHeaderTimeout: patience, BodyTimeout: patience, MaxIdleConns: 8, IdleConnTimeout: patience,
	}
	if change != nil {
		change(&o)
	}
	s.up = proxy.NewUpstream(o)
	t.Cleanup(s.up.Close)
	// A place that is not given back would stop the test.
	queue, err := shaping.New(shaping.Policy{Name: "one", MaxInFlight: 1, Queue: 100, MaxWait: patience})
	if err != nil {
		t.Fatal(err)
	}
	site := &proxy.Site{Routes: []*proxy.Route{{
		Match: "/", Pattern: "/", Upstream: s.up,
		Limiter:  shaping.NewChain(limiter.NewMemory(), shaping.Link{Queue: queue}),
		Identify: func(proxy.Identity) ([]limiter.Key, error) { return make([]limiter.Key, 1), nil },
	}}}
	if err := site.Check(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	p := proxy.New(s, log)
	p.Serve(site)
	before := listen(t)
	s.front = before.Addr().String()
	ctx, cut := context.WithCancel(context.Background())
	front := proxy.NewServer(ctx, p, proxy.ServerOptions{ReadHeaderTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: 64 << 10}, log)
	go front.Serve(before)
	t.Cleanup(func() { cut(); front.Close(); p.Wait() })
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// toxic puts a fault into the network: downstream is towards the proxy.
func (s *stage) toxic(kind, stream string, attributes map[string]any) {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.net.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
		s.t.Fatal(err)
	}
}

// An outcome is what became of a request, as its client saw it and as the proxy
// told.
type outcome struct {
	status int
	whole  bool
	body   string
	error  string // in Proxy-Status
	event  proxy.Event
	came   int // how often it came to the upstream
}

// send sends one request over a connection of its own.
func (s *stage) send(method, path, body string) outcome {
	s.t.Helper()
	c, err := net.Dial("tcp", s.front)
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	var o outcome
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
		if s.headCame != nil {
			s.headCame()
		}
		text, err := io.ReadAll(res.Body)
		o = outcome{status: res.StatusCode, whole: err == nil, body: string(text)}
		_, o.error, _ = strings.Cut(res.Header.Get("Proxy-Status"), "error=")
	}
	select {
	case <-s.told:
	case <-time.After(patience):
		s.t.Fatal("the request did not end")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) != 1 {
		s.t.Errorf("told of %d requests", len(s.events))
	}
	o.event, s.events = s.events[0], nil
	o.came = s.came[path]
	return o
}
