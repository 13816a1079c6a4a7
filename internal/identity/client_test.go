package identity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func trust(t testing.TB, list ...string) Trust {
	t.Helper()
	s, err := ParseTrust(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTrust(t *testing.T) {
	s := trust(t, "10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::ffff:172.16.0.0/108", "fe80::1%eth0")
	for addr, want := range map[string]bool{
		"10.1.2.3": true, "11.0.0.1": false, "192.0.2.1": true, "192.0.2.2": false,
		"::ffff:10.1.2.3": true, "2001:db8::5": true, "2001:db9::5": false, "172.31.0.1": true, "172.32.0.1": false,
		"fe80::1%eth1": true, // the zone names an interface, not a peer
	} {
		if got := s.Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	if s.Contains(netip.Addr{}) || !trust(t, "unix:").Contains(netip.Addr{}) {
		t.Error("a Unix peer is trusted just when the list says unix:")
	}
	if got, want := trust(t, "10.0.0.0/8", "192.0.2.1", "unix:").String(), "10.0.0.0/8, 192.0.2.1, unix:"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !trust(t).Empty() || trust(t, "unix:").Empty() || s.Empty() {
		t.Error("empty is the list without entries")
	}
}

func TestParseTrustErrors(t *testing.T) {
	for entry, want := range map[string]string{
		"":                 `"" is not an address or a CIDR`,
		"balancer":         `"balancer" is not an address or a CIDR`,
		"10.0.0.0/33":      `"10.0.0.0/33" is not`,
		"10.0.0.1/8":       `write "10.0.0.0/8" for the network or "10.0.0.1" for the one address`,
		"::ffff:0:0/95":    `"::ffff:0:0/95" holds more than IPv4-mapped addresses`,
		"unix:/run/a.sock": `"unix:/run/a.sock" is not`,
		"10.0.0.1:80":      `"10.0.0.1:80" is not`,
	} {
		if _, err := ParseTrust([]string{"192.0.2.1", entry}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", entry, err, want)
		}
	}
}

// Traefik #7129: behind a balancer everybody shares a budget unless it is
// trusted; and a peer that is not is not believed.
func TestCase37TrustedProxies(t *testing.T) {
	r := Resolver{Trusted: trust(t, "10.0.0.0/8")}
	if c, trusted := r.Client("10.0.0.2:4711", []string{"203.0.113.9"}); c.String() != "203.0.113.9" || !trusted {
		t.Errorf("behind the balancer: %v %v", c, trusted)
	}
	if c, trusted := r.Client("192.0.2.7:4711", []string{"203.0.113.9"}); c.String() != "192.0.2.7" || trusted {
		t.Errorf("from a stranger: %v %v", c, trusted)
	}
}

// Traefik #7067: what a client puts left of its own address changes nothing.
func TestCase38ForgedForwardedFor(t *testing.T) {
	r := Resolver{Trusted: trust(t, "10.0.0.0/8")}
	for range 100 {
		forged := fmt.Sprintf("1.1.1.%d", rand.IntN(256))
		for _, xff := range [][]string{{forged + ", 203.0.113.9"}, {forged, "203.0.113.9"}, {forged + ",203.0.113.9,10.0.0.7"}, {forged, "203.0.113.9 , 10.1.1.1", "10.0.0.7"}} {
			if c, _ := r.Client("10.0.0.2:1", xff); c.String() != "203.0.113.9" {
				t.Fatalf("%q: %v", xff, c)
			}
		}
	}
	if c, _ := r.Client("10.0.0.2:1", []string{"10.0.0.9, 10.0.0.8", "10.0.0.7"}); c.String() != "10.0.0.9" {
		t.Errorf("all trusted: %v, want the left-most", c)
	}
}

// S23: every form of an address, and what is none.
func TestS23Client(t *testing.T) {
	r := Resolver{Trusted: trust(t, "10.0.0.0/8", "2001:db8::/32")}
	for _, tt := range []struct {
		peer string
		xff  string // lines separated by |
		want string
	}{
		{"10.0.0.2:1", "203.0.113.9:4711", "203.0.113.9"},
		{"10.0.0.2:1", "[2a00::1]:4711", "2a00::1"},
		{"10.0.0.2:1", "[2a00::1]", "2a00::1"},
		{"10.0.0.2:1", "2a00::1", "2a00::1"},
		{"10.0.0.2:1", "fe80::1%eth0", "fe80::1"},
		{"10.0.0.2:1", "::ffff:203.0.113.9", "203.0.113.9"},
		{"10.0.0.2:1", "[::ffff:203.0.113.9]:80", "203.0.113.9"},
		{"10.0.0.2:1", "\t203.0.113.9 ", "203.0.113.9"},
		{"10.0.0.2:1", "1.1.1.1, ::ffff:10.9.9.9", "1.1.1.1"},
		{"10.0.0.2:1", "1.1.1.1, [2001:db8::1]:80", "1.1.1.1"},
		// Peers.
		{"[::ffff:10.0.0.2]:1", "1.1.1.1", "1.1.1.1"},
		{"[fe80::2%eth0]:1", "1.1.1.1", "fe80::2"},
		{"[2001:db8::1]:1", "1.1.1.1", "1.1.1.1"},
		{"10.0.0.2:1", "", "10.0.0.2"}, // an empty line
		// What is no address is not believed, nor what stands left of it.
		{"10.0.0.2:1", "1.1.1.1, unknown", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1, _hidden", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1, unknown, 10.0.0.7", "10.0.0.7"},
		{"10.0.0.2:1", "1.1.1.1|unknown|10.0.0.7, 10.0.0.6", "10.0.0.7"},
		{"10.0.0.2:1", "1.1.1.1, unknown, 8.8.8.8, 10.0.0.7", "8.8.8.8"},
		{"10.0.0.2:1", "1.1.1.1,", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1,,10.0.0.7", "10.0.0.7"},
		{"10.0.0.2:1", "1.1.1.1|", "10.0.0.2"},
		{"10.0.0.2:1", "010.1.1.1", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1.", "10.0.0.2"},
		{"10.0.0.2:1", "[1.1.1.1]", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1:99999", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1:", "10.0.0.2"},
		{"10.0.0.2:1", `"1.1.1.1"`, "10.0.0.2"},
		{"10.0.0.2:1", "for=1.1.1.1", "10.0.0.2"},
		{"10.0.0.2:1", "1.1.1.1\x00", "10.0.0.2"},
		{"10.0.0.2:1", "fe80::1%" + strings.Repeat("z", 200), "10.0.0.2"},
	} {
		c, trusted := r.Client(tt.peer, strings.Split(tt.xff, "|"))
		if c.String() != tt.want {
			t.Errorf("%s %q: got %v, want %s", tt.peer, tt.xff, c, tt.want)
		}
		if want := !strings.HasPrefix(tt.peer, "[fe80"); trusted != want {
			t.Errorf("%s: trusted %v, want %v", tt.peer, trusted, want)
		}
	}
}

// A peer over a Unix socket has no address.
func TestUnixPeer(t *testing.T) {
	for _, remote := range []string{"", "@", "/run/a.sock"} {
		if c, trusted := (Resolver{}).Client(remote, []string{"1.1.1.1"}); c.IsValid() || trusted {
			t.Errorf("%q: %v %v", remote, c, trusted)
		}
		r := Resolver{Trusted: trust(t, "unix:", "10.0.0.0/8")}
		if c, trusted := r.Client(remote, []string{"1.1.1.1, 10.0.0.1"}); c.String() != "1.1.1.1" || !trusted {
			t.Errorf("%q: %v %v", remote, c, trusted)
		}
		if c, trusted := r.Client(remote, nil); c.IsValid() || !trusted {
			t.Errorf("%q: %v %v", remote, c, trusted)
		}
	}
}

// A client that sends a long list makes nobody read it: one element is looked
// at, and nothing allocated.
func TestLongForwardedForIsNotRead(t *testing.T) {
	r := Resolver{Trusted: trust(t, "10.0.0.0/8")}
	xff := []string{strings.Repeat("garbage, ", 10_000), strings.Repeat("10.0.0.1, ", 10_000) + "203.0.113.9"}
	want := netip.MustParseAddr("203.0.113.9")
	if n := testing.AllocsPerRun(10, func() {
		if c, _ := r.Client("10.0.0.2:1", xff); c != want {
			t.Error(c)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Traefik #9721 and caddy-ratelimit: addresses of one prefix are one client.
func TestCase41Prefix(t *testing.T) {
	for _, tt := range []struct {
		addr   string
		prefix int
		want   string
	}{
		{"2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:ffff::", 64, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", 0, "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::/48"},
		{"2001:db8:1:2:3:4:5:6", 56, "2001:db8:1::/56"},
		{"2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"},
		{"2001:db8:1:2:3:4:5:6", 1, "::/1"},
		{"203.0.113.9", 64, "203.0.113.9"},
		{"203.0.113.9", 24, "203.0.113.9"}, // a length for IPv6 says nothing about IPv4
		{"::ffff:203.0.113.9", 64, "203.0.113.9"},
		{"fe80::1%eth0", 128, "fe80::1"},
	} {
		if got := clientValue(netip.MustParseAddr(tt.addr), tt.prefix); got != tt.want {
			t.Errorf("%s/%d: got %s, want %s", tt.addr, tt.prefix, got, tt.want)
		}
	}
}

// S24: 10 000 addresses of one /64 are one client; 1000 /64 of one /48 are
// 1000, and one where the prefix says so.
func TestS24AddressesOfOnePrefix(t *testing.T) {
	count := func(prefix, networks, hosts int) int {
		values := map[string]bool{}
		for n := range networks {
			for h := range hosts {
				a := netip.MustParseAddr("2001:db8::").As16()
				a[6], a[7], a[14], a[15] = byte(n>>8), byte(n), byte(h>>8), byte(h)
				values[clientValue(netip.AddrFrom16(a), prefix)] = true
			}
		}
		return len(values)
	}
	if n := count(64, 1, 10_000); n != 1 {
		t.Errorf("one /64 is %d clients", n)
	}
	if n := count(64, 1000, 1); n != 1000 {
		t.Errorf("1000 /64 are %d clients", n)
	}
	if n := count(48, 1000, 1); n != 1 {
		t.Errorf("one /48 is %d clients", n)
	}
}

// FuzzClient compares the walk from the right with the rule read plainly, and
// checks that no stranger is believed.
func FuzzClient(f *testing.F) {
	f.Add("10.0.0.2:1", "1.1.1.1, 203.0.113.9", "10.0.0.7")
	f.Add("10.0.0.2:1", "unknown", "10.0.0.7,")
	f.Add("[2001:db8::1]:80", "[2a00::1]:4711,fe80::1%eth0", "::ffff:10.0.0.1")
	f.Add("192.0.2.1:1", "10.0.0.1", "")
	f.Add("@", "10.0.0.1,,1.1.1.1", "\t10.0.0.3 ")
	f.Add("10.0.0.2:1", "[::1", "::1]")
	r := Resolver{Trusted: trust(f, "10.0.0.0/8", "2001:db8::/32", "unix:")}
	f.Fuzz(func(t *testing.T, remote, line1, line2 string) {
		got, trusted := r.Client(remote, []string{line1, line2})
		peer, _ := parseHop(remote)
		if trusted != r.Trusted.Contains(peer) || !trusted && got != peer {
			t.Fatalf("a stranger is believed: %v", got)
		}
		want := peer
		if trusted {
			hops := strings.Split(line1+","+line2, ",")
			for i := len(hops) - 1; i >= 0; i-- {
				hop, ok := parseHop(hops[i])
				if !ok {
					break
				}
				if want = hop; !r.Trusted.Contains(hop) {
					break
				}
			}
		}
		if got != want {
			t.Errorf("%q, %q from %q: got %v, want %v", line1, line2, remote, got, want)
		}
		if got.IsValid() && (got.Zone() != "" || got.Is4In6()) {
			t.Errorf("not in normal form: %v", got)
		}
	})
}
