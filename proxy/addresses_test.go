package proxy

import (
	"fmt"
	"net"
	"net/http"
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
