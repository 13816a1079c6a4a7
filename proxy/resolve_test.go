package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A nameServer answers for one name over UDP.
type nameServer struct {
	conn  net.PacketConn
	mu    sync.Mutex
	addrs []netip.Addr // none: the name does not exist
	asked atomic.Int64
}

func newNameServer(t *testing.T, addrs ...string) *nameServer {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: c}
	s.set(addrs...)
	done := make(chan struct{})
	go func() { defer close(done); s.serve() }()
	t.Cleanup(func() { c.Close(); <-done })
	return s
}

func (s *nameServer) set(addrs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = nil
	for _, a := range addrs {
		s.addrs = append(s.addrs, netip.MustParseAddr(a))
	}
}

func (s *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil {
			continue
		}
		s.asked.Add(1)
		s.mu.Lock()
		q := m.Questions[0]
		m.Response, m.Authoritative, m.Additionals = true, true, nil
		if len(s.addrs) == 0 {
			m.RCode = dnsmessage.RCodeNameError
		}
		for _, a := range s.addrs {
			head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		s.mu.Unlock()
		if answer, err := m.Pack(); err == nil {
			s.conn.WriteTo(answer, from)
		}
	}
}

// resolver asks nobody else.
func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

// named is a Route to app.test at a port, as DNS has it.
func (s *nameServer) named(port string, interval time.Duration) *Route {
	return route("/", "app.test.:"+port, func(o *UpstreamOptions) { o.Resolver, o.ResolveInterval = s.resolver(), interval })
}

// listenAt listens on the addresses at one port, which it returns.
func listenAt(t *testing.T, ips ...string) (listeners []net.Listener, port string) {
	t.Helper()
	for range 50 {
		port = "0"
		for _, ip := range ips {
			l, err := net.Listen("tcp", net.JoinHostPort(ip, port))
			if err != nil {
				break // another program has the port on this address
			}
			_, port, _ = net.SplitHostPort(l.Addr().String())
			listeners = append(listeners, l)
		}
		if len(listeners) == len(ips) {
			return listeners, port
		}
		for _, l := range listeners {
			l.Close()
		}
		listeners = nil
	}
	t.Fatalf("no port is free on all of %v", ips)
	return nil, ""
}

// whoAmI serves on l and answers with the address.
func whoAmI(t *testing.T, l net.Listener) {
	ip, _, _ := net.SplitHostPort(l.Addr().String())
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, ip) })}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
}

// TestNamesAreFollowed: each address of a name gets its share; one that DNS no
// longer names gets nothing more, over kept connections neither, and one that
// is new gets its share.
func TestNamesAreFollowed(t *testing.T) {
	ls, port := listenAt(t, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	for _, l := range ls {
		whoAmI(t, l)
	}
	dns := newNameServer(t, "127.0.0.1", "127.0.0.2")
	r := dns.named(port, time.Nanosecond) // every request finds the answer too old
	f := newFront(t, &Site{Routes: []*Route{r}})
	share := func(n int) map[string]int {
		got := map[string]int{}
		for range n {
			got[body(t, f.get(t, "GET", "/"))]++
			f.next(t)
		}
		return got
	}
	if got := fmt.Sprint(share(6)); got != "map[127.0.0.1:3 127.0.0.2:3]" {
		t.Errorf("of two: %s", got)
	}
	kept := r.Upstream.resolved.all
	dns.set("127.0.0.2", "127.0.0.3")
	if got := fmt.Sprint(share(6)); got != "map[127.0.0.2:3 127.0.0.3:3]" {
		t.Errorf("of two others: %s", got)
	}
	if now := r.Upstream.resolved.all; !slices.ContainsFunc(now, func(a *address) bool { return slices.Contains(kept, a) }) {
		t.Error("the address that stayed lost its connections")
	}
	dns.set() // the name is gone: what is known stays
	if got := fmt.Sprint(share(4)); got != "map[127.0.0.2:2 127.0.0.3:2]" {
		t.Errorf("without DNS: %s", got)
	}
}

// TestNoSuchName: where no address was ever known the answer says so, and the
// next request asks again.
func TestNoSuchName(t *testing.T) {
	ls, port := listenAt(t, "127.0.0.1")
	whoAmI(t, ls[0])
	dns := newNameServer(t)
	f := newFront(t, &Site{Routes: []*Route{dns.named(port, time.Hour)}})
	res := f.get(t, "GET", "/")
	if kind := errorType(t, res.Header); res.StatusCode != 502 || kind != "dns_error" {
		t.Errorf("status %d, error=%s", res.StatusCode, kind)
	}
	f.next(t)
	dns.set("127.0.0.1")
	if res := f.get(t, "GET", "/"); res.StatusCode != 200 {
		t.Errorf("status %d once it exists", res.StatusCode)
	}
	f.next(t)
}

// TestStaleNames: within the interval DNS is not asked; up to twice the interval
// a request goes on with what is known while it is asked; beyond, it waits.
func TestStaleNames(t *testing.T) {
	ls, port := listenAt(t, "127.0.0.1", "127.0.0.2")
	for _, l := range ls {
		whoAmI(t, l)
	}
	dns := newNameServer(t, "127.0.0.1")
	r := dns.named(port, time.Hour)
	f := newFront(t, &Site{Routes: []*Route{r}})
	known := r.Upstream.resolved
	who := func() string {
		defer f.next(t)
		return body(t, f.get(t, "GET", "/"))
	}
	age := func(d time.Duration) {
		known.mu.Lock()
		defer known.mu.Unlock()
		known.at = time.Now().Add(-d)
	}
	if got := who(); got != "127.0.0.1" {
		t.Fatal(got)
	}
	asked := dns.asked.Load()
	dns.set("127.0.0.2")
	if got := who(); got != "127.0.0.1" || dns.asked.Load() != asked {
		t.Errorf("within the interval: %s, asked %d times more", got, dns.asked.Load()-asked)
	}

	age(90 * time.Minute)
	known.mu.Lock() // the round cannot end before the request has taken its address
	before := known.all
	known.mu.Unlock()
	if all, err := r.Upstream.current(t.Context()); err != nil || !slices.Equal(all, before) {
		t.Errorf("stale: %v, %v", all, err)
	}
	known.mu.Lock()
	round := known.round
	known.mu.Unlock()
	if round != nil {
		<-round
	}
	if got := who(); got != "127.0.0.2" {
		t.Errorf("after the round: %s", got)
	}

	dns.set("127.0.0.1")
	age(3 * time.Hour)
	if got := who(); got != "127.0.0.1" {
		t.Errorf("too old: %s", got)
	}
}

// TestOneFamily: of a name in both families the addresses are used at which
// somebody listens.
func TestOneFamily(t *testing.T) {
	for _, there := range []string{"127.0.0.1", "::1"} {
		ls, port := listenAt(t, there)
		whoAmI(t, ls[0])
		dns := newNameServer(t, "127.0.0.1", "::1")
		r := dns.named(port, time.Hour)
		f := newFront(t, &Site{Routes: []*Route{r}})
		for range 4 {
			if got := body(t, f.get(t, "GET", "/")); got != there {
				t.Errorf("%s got a request of %s", got, there)
			}
			f.next(t)
		}
		if all := r.Upstream.resolved.all; len(all) != 1 || all[0].target != net.JoinHostPort(there, port) {
			t.Errorf("%d addresses in use", len(all))
		}
	}
}

// TestManyAddresses: a name with very many addresses takes a bounded room.
func TestManyAddresses(t *testing.T) {
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("127.0.1.%d", i+1))
	}
	dns := newNameServer(t, many...)
	r := dns.named("9", time.Hour)
	all, err := r.Upstream.current(t.Context())
	if err != nil || len(all) != maxResolved {
		t.Errorf("%d addresses, %v", len(all), err)
	}
}
