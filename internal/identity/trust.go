// Package identity turns a request into the key whose budget it uses: the
// client behind trusted proxies, an IPv6 prefix, a header, a cookie, a query
// parameter, a part of the path, or several of these at once.
//
// Everything it reads comes from the client. Its work is linear in the size of
// the request's head, and it keeps nothing.
package identity

import (
	"fmt"
	"net/netip"
	"strings"
)

// UnixWord stands for a peer that came over a Unix socket: in a list of
// trusted proxies, as in NGINX's set_real_ip_from, and as the value of the key
// client-ip.
const UnixWord = "unix:"

// A Trust is a set of addresses. The zero Trust is empty.
type Trust struct {
	prefixes []netip.Prefix
	unix     bool
}

// ParseTrust reads CIDRs, addresses and UnixWord. The error names the first
// entry that is none of them.
func ParseTrust(list []string) (Trust, error) {
	var t Trust
	for _, entry := range list {
		if entry == UnixWord {
			t.unix = true
			continue
		}
		p, err := parsePrefix(entry)
		if err != nil {
			return Trust{}, err
		}
		t.prefixes = append(t.prefixes, p)
	}
	return t, nil
}

func parsePrefix(entry string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(entry); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(entry)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a CIDR; write one such as \"10.0.0.0/8\", \"192.0.2.1\" or \"2001:db8::/32\"", entry)
	}
	// Addresses are folded before they are compared, so the set must be too.
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("%q holds more than IPv4-mapped addresses; write the IPv4 network, such as \"10.0.0.0/8\"", entry)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%q has bits set beyond its length; write %q for the network or %q for the one address", entry, p.Masked(), p.Addr())
	}
	return p, nil
}

// Contains reports whether a is in the set. The invalid Addr is a peer over a
// Unix socket.
func (t Trust) Contains(a netip.Addr) bool {
	if !a.IsValid() {
		return t.unix
	}
	a = a.Unmap().WithZone("")
	for _, p := range t.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Empty reports whether the set holds nothing.
func (t Trust) Empty() bool { return len(t.prefixes) == 0 && !t.unix }

// String lists the entries, separated by a comma and a space.
func (t Trust) String() string {
	var list []string
	for _, p := range t.prefixes {
		if p.IsSingleIP() {
			list = append(list, p.Addr().String())
		} else {
			list = append(list, p.String())
		}
	}
	if t.unix {
		list = append(list, UnixWord)
	}
	return strings.Join(list, ", ")
}
