package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// trusting is a Site's Client as the program has it.
func trusting(t *testing.T, cidrs ...string) func(string, []string) (netip.Addr, bool) {
	t.Helper()
	trust, err := identity.ParseTrust(cidrs)
	if err != nil {
		t.Fatal(err)
	}
	return identity.Resolver{Trusted: trust}.Client
}

// fieldsOf are the lines of one name in a head.
func fieldsOf(head, name string) (values []string) {
	for line := range strings.SplitSeq(head, "\r\n") {
		if n, v, ok := strings.Cut(line, ": "); ok && strings.EqualFold(n, name) {
			values = append(values, v)
		}
	}
	return values
}

// TestCase38ForwardedFields: what clients say of themselves is believed from
// trusted peers only, and can be neither deleted nor doubled by anybody (traefik
// #7067, CVE-2024-45410).
func TestCase38ForwardedFields(t *testing.T) {
	for _, c := range []struct {
		name               string
		trusted            []string
		fields             []string
		client             string
		xff, xfhost, proto string
	}{
		{"S23 from anyone", nil, []string{"X-Forwarded-For: 1.1.1.1", "X-Forwarded-Host: evil.test", "X-Forwarded-Proto: https"}, "127.0.0.1", "127.0.0.1", "front.test", "http"},
		{"case 38, forged on the left", []string{"127.0.0.0/8"}, []string{"X-Forwarded-For: 1.1.1.7, 203.0.113.9", "X-Forwarded-Host: a.test", "X-Forwarded-Proto: https"}, "203.0.113.9", "1.1.1.7, 203.0.113.9, 127.0.0.1", "a.test", "https"},
		{"case 38, two lines are one list", []string{"127.0.0.0/8"}, []string{"X-Forwarded-For: 1.1.1.7", "X-Forwarded-For: 203.0.113.9"}, "203.0.113.9", "1.1.1.7, 203.0.113.9, 127.0.0.1", "front.test", "http"},
		{"case 38, all trusted", []string{"127.0.0.0/8", "10.0.0.0/8"}, []string{"X-Forwarded-For: 10.0.0.1, 10.0.0.2"}, "10.0.0.1", "10.0.0.1, 10.0.0.2, 127.0.0.1", "front.test", "http"},
		{"case 37, nothing told", []string{"127.0.0.0/8"}, nil, "127.0.0.1", "127.0.0.1", "front.test", "http"},
		{"case 37, the peer is outside", []string{"10.0.0.0/8"}, []string{"X-Forwarded-For: 1.1.1.1"}, "127.0.0.1", "127.0.0.1", "front.test", "http"},
		{"S23, ports and forms", []string{"127.0.0.0/8"}, []string{"X-Forwarded-For: [2001:db8::1%eth0]:80, ::ffff:127.0.0.2"}, "2001:db8::1", "[2001:db8::1%eth0]:80, ::ffff:127.0.0.2, 127.0.0.1", "front.test", "http"},
		{"S23, not an address", []string{"127.0.0.0/8"}, []string{"X-Forwarded-For: 1.1.1.1, evil"}, "127.0.0.1", "1.1.1.1, evil, 127.0.0.1", "front.test", "http"},
		{"case 49 and S11, named in Connection", nil, []string{"Connection: X-Forwarded-For, x-FORWARDED-host, X-Forwarded-Proto"}, "127.0.0.1", "127.0.0.1", "front.test", "http"},
		{"S11, from a trusted peer", []string{"127.0.0.0/8"}, []string{"Connection: x-forwarded-for", "X-Forwarded-For: 203.0.113.9"}, "203.0.113.9", "203.0.113.9, 127.0.0.1", "front.test", "http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			var keyed netip.Addr
			r := limited(route("/", up.addr), &turnstile{})
			identify := r.Identify
			r.Identify = func(id Identity) ([]limiter.Key, error) { keyed = id.Client; return identify(id) }
			f := newFront(t, &Site{Routes: []*Route{r}, Client: trusting(t, c.trusted...)})
			fields := append([]string{"Forwarded: for=6.6.6.6", "X-Real-IP: 6.6.6.6", "X_Forwarded_For: 6.6.6.6"}, c.fields...)
			if res := f.get(t, "GET", "/", fields...); res.StatusCode != 200 {
				t.Fatalf("status %d", res.StatusCode)
			}
			if e := f.next(t); e.Client.String() != c.client || keyed != e.Client {
				t.Errorf("client %v, keyed by %v, want %s", e.Client, keyed, c.client)
			}
			head := up.bytes()
			for name, want := range map[string]string{"X-Forwarded-For": c.xff, "X-Forwarded-Host": c.xfhost, "X-Forwarded-Proto": c.proto} {
				if got := fieldsOf(head, name); !slices.Equal(got, []string{want}) {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if strings.Contains(head, "6.6.6.6") || strings.Contains(head, "Connection:") {
				t.Errorf("the upstream got %q", head)
			}
		})
	}
}

// TestCase49HopByHop: what Connection names goes, our own fields stay, and of TE
// only trailers passes (CVE-2021-33197).
func TestCase49HopByHop(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	r := limited(route("/", up.addr), &turnstile{})
	var keyed string
	identify := r.Identify
	r.Identify = func(id Identity) ([]limiter.Key, error) {
		keyed = id.Request.Header.Get("X-Shape-Key")
		return identify(id)
	}
	r.SetHeaders = []Field{{"Authorization", "Bearer ours"}, {"X-Set", "ours"}}
	f := newFront(t, &Site{Routes: []*Route{r}})
	res := f.get(t, "GET", "/", "Connection: ", "Connection: x-shape-key, X-SET, authorization, X-Mine", "Connection: Te",
		"X-Shape-Key: k", "X-Set: theirs", "X-Set: twice", "Authorization: Bearer theirs", "X-Mine: 1", "X-Other: 1", "TE: gzip, trailers",
		"Keep-Alive: 5", "Proxy-Connection: x", "Proxy-Authorization: secret", "Proxy-Authenticate: x", "Trailer: x", "Upgrade: x", "User-Agent: ua")
	if res.StatusCode != 200 || keyed != "k" {
		t.Errorf("status %d, keyed by %q: counted by it before it was removed", res.StatusCode, keyed)
	}
	head := up.bytes()
	for name, want := range map[string][]string{
		"Authorization": {"Bearer ours"}, "X-Set": {"ours"}, "X-Other": {"1"}, "TE": {"trailers"}, "User-Agent": {"ua"},
		"X-Shape-Key": nil, "X-Mine": nil, "Connection": nil, "Keep-Alive": nil, "Proxy-Connection": nil, "Proxy-Authorization": nil,
		"Proxy-Authenticate": nil, "Trailer": nil, "Upgrade": nil, "Accept-Encoding": nil,
	} {
		if got := fieldsOf(head, name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestAnswersHopByHop: fields of the upstream's connection stay there, and ours
// and theirs of the limits both pass.
func TestAnswersHopByHop(t *testing.T) {
	up := newRawUpstream(t, always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n"+
		"Proxy-Authenticate: x\r\nX-Mine: 1\r\nRetry-After: 30\r\nProxy-Status: up; error=x\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nRateLimit: \"up\";r=0;t=30\r\n\r\nok"))
	f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), &turnstile{})}, RateLimitHeaders: everyDialect})
	res := f.get(t, "GET", "/")
	for name, want := range map[string][]string{
		"X-Mine": {"1"}, "Retry-After": {"30"}, "Proxy-Status": {"up; error=x"}, "Set-Cookie": {"a", "b"},
		"X-Hop": nil, "Keep-Alive": nil, "Upgrade": nil, "Proxy-Authenticate": nil, "Connection": nil,
	} {
		if got := res.Header.Values(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"up", "turnstile"} {
		member(t, res.Header["Ratelimit"], name)
	}
}
