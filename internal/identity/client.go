package identity

import (
	"net/netip"
	"strings"
)

// DefaultIPv6Prefix is the length at which IPv6 addresses are one client: a
// subscriber commonly has a whole /64 (traefik #9721).
const DefaultIPv6Prefix = 64

// A Resolver finds the client of a request.
type Resolver struct {
	// Trusted are the peers whose X-Forwarded-For is believed.
	Trusted Trust
	// IPv6Prefix is the length of the prefix that makes one client; 0 means
	// DefaultIPv6Prefix.
	IPv6Prefix int
}

// Client returns the address of the client, without zone and with IPv4-mapped
// addresses folded, and whether its peer is trusted. The address is not
// masked; Source.IPv6Prefix does that where keys are made.
//
// remoteAddr is http.Request.RemoteAddr; one that holds no address is a Unix
// socket's, and the client is then the invalid Addr unless a trusted
// X-Forwarded-For tells more. xff are the lines of X-Forwarded-For as they
// came; together they are one list (RFC 9110, section 5.3). The client is its
// right-most address that is not trusted; if all are trusted, the left-most.
// What stands left of an element that is no address is not believed: the
// client is then the address right of it, or the peer.
func (r Resolver) Client(remoteAddr string, xff []string) (client netip.Addr, peerTrusted bool) {
	peer, _ := parseHop(remoteAddr)
	if !r.Trusted.Contains(peer) {
		return peer, false
	}
	client = peer
	for i := len(xff) - 1; i >= 0; i-- {
		for line, more := xff[i], true; more; {
			var hop string
			// From the right, so that a client that sends a long list makes
			// nobody read it.
			if comma := strings.LastIndexByte(line, ','); comma >= 0 {
				line, hop = line[:comma], line[comma+1:]
			} else {
				hop, more = line, false
			}
			// An empty element is no address either: nothing vouches for what
			// stands left of it.
			a, ok := parseHop(hop)
			if !ok {
				return client, true
			}
			client = a
			if !r.Trusted.Contains(a) {
				return client, true
			}
		}
	}
	return client, true
}

// parseHop reads one address as proxies write it: bare, with a port, an IPv6
// address in brackets or not, with a zone.
func parseHop(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if len(s) > maxHop {
		return netip.Addr{}, false
	}
	// The form decides how to read it, as a failed attempt would allocate.
	var a netip.Addr
	var err error
	switch colons := strings.Count(s, ":"); {
	case strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") && colons > 0:
		a, err = netip.ParseAddr(s[1 : len(s)-1])
	case strings.HasPrefix(s, "[") || colons == 1:
		var ap netip.AddrPort
		ap, err = netip.ParseAddrPort(s)
		a = ap.Addr()
	default:
		a, err = netip.ParseAddr(s)
	}
	return a.Unmap().WithZone(""), err == nil
}

// maxHop is longer than any address with brackets, zone and port.
const maxHop = 128

// clientValue is the value of the key client-ip.
func clientValue(a netip.Addr, ipv6Prefix int) string {
	if !a.IsValid() {
		return UnixWord
	}
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	if ipv6Prefix == 0 {
		ipv6Prefix = DefaultIPv6Prefix
	}
	p, err := a.Prefix(ipv6Prefix)
	if err != nil || p.IsSingleIP() { // longer than an address: the whole of it
		return a.String()
	}
	return p.String()
}
