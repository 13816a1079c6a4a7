package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// severalAt is a Route to an upstream with these addresses.
func severalAt(addresses ...string) *Route {
	return route("/", addresses[0], func(o *UpstreamOptions) {
		o.Places = nil
		for _, a := range addresses {
			o.Places = append(o.Places, Place{Address: a, Host: a})
		}
	})
}

// TestLeastInFlight: a request goes to the address with the fewest unfinished,
// and where these are equal they take turns.
func TestLeastInFlight(t *testing.T) {
	var got [3]atomic.Int64
	came, hold := make(chan struct{}, 30), make(chan struct{})
	var addrs []string
	for i := range got {
		addrs = append(addrs, upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got[i].Add(1)
			if r.URL.Path == "/held" {
				came <- struct{}{}
				<-hold
			}
			fmt.Fprint(w, r.Host)
		})))
	}
	r := severalAt(addrs...)
	u := r.Upstream
	f := newFront(t, &Site{Routes: []*Route{r}})
	for range 6 {
		if res := f.get(t, "GET", "/"); res.StatusCode != 200 || body(t, res) == "" {
			t.Fatalf("status %d", res.StatusCode)
		}
		f.next(t)
	}
	for i := range got {
		if n := got[i].Load(); n != 2 {
			t.Errorf("address %d got %d of six", i, n)
		}
	}
	// Of 30 that are held at once, each gets a third.
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if res := f.get(t, "GET", "/held"); res.StatusCode != 200 {
				t.Errorf("status %d", res.StatusCode)
			}
		})
	}
	for range 30 {
		<-came
	}
	for i := range u.resolved.all {
		if n := u.resolved.all[i].inFlight.Load(); n != 10 {
			t.Errorf("address %d has %d of 30 in flight", i, n)
		}
	}
	close(hold)
	all.Wait()
	for range 30 {
		f.next(t)
	}
	for i := range u.resolved.all {
		if n := u.resolved.all[i].inFlight.Load(); n != 0 {
			t.Errorf("address %d has %d in flight at the end", i, n)
		}
	}
}

// TestNobodyAtAnAddress: what could not be sent to one address is sent to the
// next, whatever its method, with its body whole, and nobody notices.
func TestNobodyAtAnAddress(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().String()
	gone.Close()
	up := newRawUpstream(t, always(ok200))
	f := newFront(t, &Site{Routes: []*Route{limited(severalAt(nobody, up.addr), &turnstile{})}})
	for i := range 8 {
		method, fields := "GET", []string(nil)
		if i%2 == 1 {
			method, fields = "POST", []string{"Content-Length: 4", "", "body"}
		}
		if res := f.get(t, method, "/", fields...); res.StatusCode != 200 {
			t.Errorf("%s is answered %d", method, res.StatusCode)
		}
		if e := f.next(t); e.UpstreamStatus != 200 || e.Error != "" {
			t.Errorf("told %+v", e)
		}
	}
	if n := up.count(); n != 8 {
		t.Errorf("eight requests became %d", n)
	}
}

// TestAddressIsKilled: when one of two addresses goes away under load, with its
// connections, no request reaches the upstream twice, and a client sees an
// error only if its request had been sent there.
func TestAddressIsKilled(t *testing.T) {
	var seen sync.Map // how often each request came, over both
	serve := func(w http.ResponseWriter, r *http.Request) {
		n, _ := seen.LoadOrStore(r.URL.Path, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		fmt.Fprint(w, "ok")
	}
	lives := upstreamHTTP(t, http.HandlerFunc(serve))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dies := &http.Server{Handler: http.HandlerFunc(serve), ConnState: func(c net.Conn, s http.ConnState) {
		if s == http.StateNew {
			c.(*net.TCPConn).SetLinger(0) // closed with a reset, as of a process that was killed
		}
	}}
	go dies.Serve(l)
	defer dies.Close()
	r := severalAt(l.Addr().String(), lives)
	limited(r, &turnstile{})
	f := newFront(t, &Site{Routes: []*Route{r}})

	const workers, each = 20, 10
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range workers {
		all.Go(func() {
			c := h1Client(t)
			for j := range each {
				method, sent := "GET", ""
				if j%2 == 1 {
					method, sent = "POST", "body"
				}
				req := f.request(t, method, fmt.Sprintf("/%d-%d", i, j))
				if sent != "" {
					req.Body, req.ContentLength = io.NopCloser(strings.NewReader(sent)), int64(len(sent))
				}
				res, err := c.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if done.Add(1) == workers*each/4 {
					dies.Close()
				}
			}
		})
	}
	all.Wait()
	failed := 0
	for range workers * each {
		e := f.next(t)
		if e.Status == 200 {
			continue
		}
		// connection_refused and its like would be of a request that was not sent.
		if failed++; e.Status != 502 || e.Error != "connection_terminated" {
			t.Errorf("%s is answered %d, %s", e.Path, e.Status, e.Error)
		}
	}
	came := 0
	seen.Range(func(path, n any) bool {
		if came++; n.(*atomic.Int64).Load() != 1 {
			t.Errorf("%s came %d times", path, n.(*atomic.Int64).Load())
		}
		return true
	})
	if came < workers*each-failed {
		t.Errorf("%d requests came, %d were answered", came, workers*each-failed)
	}
	if failed > workers {
		t.Errorf("%d requests failed, of %d that can have been under way", failed, workers)
	}
}
