package assemble

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// Who is trusted says what a request costs; everybody else pays one, whatever
// the header says, and cannot be refused for it either.
func TestCostHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		text := head + `limits = ["tokens", "fixed", "plain"]
[limit.tokens]
algorithm = "token-bucket"
rate = "1/s"
burst = 100
cost = "header:x-cost"
exempt = ["192.0.2.9"]
[limit.fixed]
algorithm = "fixed-window"
limit = 100
window = "1h"
cost = 5
[limit.plain]
algorithm = "leaky-bucket"
rate = "1/s"
`
		c := load(t, "server.trusted_proxies = [\"10.0.0.0/8\"]\nserver.listen = \"127.0.0.1:8080\"\n"+strings.Replace(text, "[server]\nlisten = \"127.0.0.1:8080\"\n", "", 1))
		if err := s.Apply(c); err != nil {
			t.Fatal(err)
		}
		route := s.route(c.Routes[0], &upstream{}, nil, s.now.Load().limits, 64, c.Server.TrustedProxies, nil)
		keys := func(peer, client string, costs ...string) ([]limiter.Key, error) {
			r := &http.Request{RemoteAddr: peer + ":1234", Header: http.Header{}}
			if costs != nil {
				r.Header["X-Cost"] = costs
			}
			return route.Identify(proxy.Identity{Request: r, Client: netip.MustParseAddr(client)})
		}
		for _, tt := range []struct {
			peer  string
			costs []string
			want  int64
		}{
			{"10.1.1.1", nil, 1},
			{"10.1.1.1", []string{"7"}, 7},
			{"10.1.1.1", []string{"0"}, 0},
			{"10.1.1.1", []string{"007"}, 7},
			{"10.1.1.1", []string{"9223372036854775807"}, 1<<63 - 1},
			{"192.0.2.1", []string{"7"}, 1},
			{"192.0.2.1", []string{"0"}, 1},
			{"192.0.2.1", []string{"much"}, 1},
		} {
			k, err := keys(tt.peer, "192.0.2.1", tt.costs...)
			if err != nil {
				t.Fatalf("%+v: %v", tt, err)
			}
			if got := k[0].Charge(); got != tt.want || k[1].Charge() != 5 || k[2].Charge() != 1 {
				t.Errorf("%+v: charges %d, %d and %d", tt, got, k[1].Charge(), k[2].Charge())
			}
		}
		for _, bad := range [][]string{{""}, {"-1"}, {"+1"}, {"1.5"}, {"1e3"}, {" 1"}, {"0x10"}, {"1_000"}, {"9223372036854775808"}, {"1, 2"}, {"1", "1"}} {
			if _, err := keys("10.1.1.1", "192.0.2.1", bad...); err == nil {
				t.Errorf("the cost %q is believed", bad)
			}
			if k, err := keys("10.1.1.1", "192.0.2.9", bad...); err != nil || !k[0].Skip {
				t.Errorf("the cost %q is asked of an exempt client: %v", bad, err)
			}
		}
	})
}
