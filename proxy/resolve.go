package proxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Names are resolved again each ResolveInterval while requests come. A request
// that finds the answer stale has it asked for again and goes on with the old
// one; one that finds it older than two intervals waits for the new one. Where
// DNS fails, the addresses known last stay.

// maxResolved bounds the addresses of one name. Choosing one looks at all of
// them, and each has a series of metrics.
const maxResolved = 32

// resolveAgain is how long an answer that failed is not asked for again while
// older addresses are known.
const resolveAgain = time.Second

// A spot is a Place with the addresses that it has now.
type spot struct {
	Place
	name string // what DNS is asked for; empty for literal addresses and sockets
	port string
	// ipv6 is the family in use where the name has both.
	ipv6, known bool
	addresses   []*address
	err         error // of the last time that it was resolved
}

// resolution is what is known of an Upstream's addresses.
type resolution struct {
	spots []*spot // the running round's alone
	names bool    // whether any is a name

	mu    sync.Mutex
	all   []*address // never changed in place
	err   error      // why there are none
	at    time.Time  // when they were found
	round chan struct{}
}

func (u *Upstream) newResolution() *resolution {
	r := &resolution{}
	for _, p := range u.opts.Places {
		s := &spot{Place: p}
		host, port, _ := net.SplitHostPort(p.Address)
		if _, err := netip.ParseAddr(host); err != nil && p.UnixSocket == "" {
			s.name, s.port, r.names = host, port, true
		} else {
			s.addresses = []*address{u.newAddress(p)}
		}
		r.spots = append(r.spots, s)
		r.all = append(r.all, s.addresses...)
	}
	return r
}

// current returns the addresses as they are known now. It waits only where
// none are, or none that are fresh enough.
func (u *Upstream) current(ctx context.Context) ([]*address, error) {
	r := u.resolved
	if !r.names {
		return r.all, nil
	}
	r.mu.Lock()
	age := time.Since(r.at)
	if age >= u.opts.ResolveInterval && r.round == nil {
		r.round = make(chan struct{})
		go u.resolve(r.round)
	}
	round, all, err := r.round, r.all, r.err
	r.mu.Unlock()
	if age < 2*u.opts.ResolveInterval && len(all) > 0 {
		return all, nil
	}
	if round != nil {
		select {
		case <-round:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.mu.Lock()
		all, err = r.all, r.err
		r.mu.Unlock()
	}
	if len(all) == 0 {
		return nil, err
	}
	return all, nil
}

// known are the addresses as they were found last.
func (u *Upstream) known() []*address {
	u.resolved.mu.Lock()
	defer u.resolved.mu.Unlock()
	return u.resolved.all
}

// resolve asks for every name once.
func (u *Upstream) resolve(round chan struct{}) {
	r := u.resolved
	ctx, cancel := context.WithTimeout(context.Background(), u.opts.DialTimeout)
	defer cancel()
	var each sync.WaitGroup
	for _, s := range r.spots {
		if s.name != "" {
			each.Go(func() { u.resolveOne(ctx, s) })
		}
	}
	each.Wait()

	var all []*address
	var failed error
	for _, s := range r.spots {
		all = append(all, s.addresses...)
		if s.err != nil {
			failed = s.err
		}
	}
	r.mu.Lock()
	gone := without(r.all, all)
	r.all, r.err, r.at, r.round = all, failed, time.Now(), nil
	switch {
	case failed != nil && len(all) == 0:
		r.at = time.Time{} // the next request asks again
	case failed != nil:
		r.at = r.at.Add(min(0, resolveAgain-u.opts.ResolveInterval))
	}
	r.mu.Unlock()
	close(round)
	for _, a := range gone {
		// Their requests end in peace. Connections that come free there are
		// closed, as no request will reset the transport's mind.
		a.transport.CloseIdleConnections()
	}
}

// resolveOne asks for one name. Addresses that stay are kept, with their
// connections.
func (u *Upstream) resolveOne(ctx context.Context, s *spot) {
	found, err := u.opts.Resolver.LookupNetIP(ctx, "ip", s.name)
	if s.err = err; err != nil {
		return
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	if !slices.ContainsFunc(s.addresses, (*address).in) {
		s.known = false
	}
	found = u.oneFamily(ctx, s, found)
	if len(found) > maxResolved {
		found = found[:maxResolved]
	}
	var next []*address
	for _, ip := range found {
		target := net.JoinHostPort(ip.String(), s.port)
		a := find(s.addresses, target)
		if a == nil {
			a = u.newAddress(Place{Host: s.Host, Address: target})
		}
		if find(next, target) == nil {
			next = append(next, a)
		}
	}
	s.addresses = next
}

// oneFamily leaves the addresses of one family where the name has both: the one
// in which a connection comes about first, the other getting a little less time
// (RFC 8305). Else a host without IPv6, or a localhost that listens on one of
// its two addresses, would have requests try in vain now and then.
func (u *Upstream) oneFamily(ctx context.Context, s *spot, found []netip.Addr) []netip.Addr {
	var four, six []netip.Addr
	for _, ip := range found {
		if ip.Is4() {
			four = append(four, ip)
		} else {
			six = append(six, ip)
		}
	}
	if len(four) == 0 || len(six) == 0 {
		s.known = false
		return found
	}
	if !s.known {
		conn, err := u.dial(ctx, "tcp", net.JoinHostPort(s.name, s.port))
		if err != nil {
			return found // nobody answers yet
		}
		ip, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		conn.Close()
		if err != nil {
			return found
		}
		s.ipv6, s.known = !ip.Addr().Unmap().Is4(), true
	}
	if s.ipv6 {
		return six
	}
	return four
}

func find(list []*address, target string) *address {
	for _, a := range list {
		if a.target == target {
			return a
		}
	}
	return nil
}

// without are those of a that are not in b.
func without(a, b []*address) (rest []*address) {
	for _, x := range a {
		if find(b, x.target) != x {
			rest = append(rest, x)
		}
	}
	return rest
}
