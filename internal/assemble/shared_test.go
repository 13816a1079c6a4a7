package assemble

import (
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/redisstore"
)

// TestDefinitions: limits that are asked in one call stand together on a cluster,
// and what a queue behind them may give back is known.
func TestDefinitions(t *testing.T) {
	c := load(t, `
[upstream.u]
url = "http://127.0.0.1:8081"
[limit.ip-b]
algorithm = "token-bucket"
rate = "1/s"
key = "client-ip"
store = "redis"
[limit.ip-a]
algorithm = "token-bucket"
rate = "1/s"
key = "client-ip"
store = "redis"
store_down = "closed"
[limit.all]
algorithm = "fixed-window"
limit = 5
window = "1h"
store = "redis"
[limit.host]
algorithm = "fixed-window"
limit = 5
window = "1h"
key = "host"
store = "redis"
store_down = "open"
[limit.alone]
algorithm = "fixed-window"
limit = 5
window = "1h"
store = "redis"
[limit.here]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 5
[[route]]
match = "/ip"
upstream = "u"
limits = ["ip-b", "ip-a"]
[[route]]
match = "/mixed"
upstream = "u"
limits = ["here", "host", "all"]
[[route]]
match = "/alone"
upstream = "u"
limits = ["alone"]
`)
	got := definitions(c)
	for name, want := range map[string]redisstore.Definition{
		"ip-a":  {CountedBy: "client-ip", Down: redisstore.Closed},
		"ip-b":  {CountedBy: "client-ip", Down: redisstore.Local},
		"all":   {CountedBy: "global", Down: redisstore.Local, Together: "all", GivenBack: true},
		"host":  {CountedBy: "host", Down: redisstore.Open, Together: "all", GivenBack: true},
		"alone": {CountedBy: "global", Down: redisstore.Local},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d limits are shared, want 5", len(got))
	}
}
