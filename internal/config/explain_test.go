package config

import (
	"os"
	"strings"
	"testing"
)

// The whole explanation of a file that has everything, word by word.
func TestExplain(t *testing.T) {
	dir := files(t)
	for _, name := range []string{"everything", "case01-slow-rates", "keys", "turns", "warnings", "presets", "redis", "auto", "reserve"} {
		c, err := Load("testdata/good/"+name+".toml", environment(dir))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile("testdata/explain/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Explain(); got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

// explained holds the first sentence about each limit.
func explained(t *testing.T, table [][2]string) {
	t.Helper()
	for _, tt := range table {
		limit, want := tt[0], tt[1]
		c, err := parse(t, "limit.a = { "+limit+" }\nroute = [ { match = \"/\", upstream = \"app\", limits = [\"a\"] } ]\n")
		if err != nil {
			t.Errorf("%s: %v", limit, err)
			continue
		}
		if _, got, _ := strings.Cut(c.Explain(), "\n  "); !strings.HasPrefix(got, want+"\n") {
			line, _, _ := strings.Cut(got, "\n")
			t.Errorf("%s:\ngot  %s\nwant %s", limit, line, want)
		}
	}
}

// Traefik #8330: "6 a minute" is also a spacing, and the words must say so.
func TestCase02ExplainBurstAndSpacing(t *testing.T) {
	explained(t, [][2]string{
		{`algorithm = "token-bucket", rate = "6/m"`, "6 requests a minute: at most 1 at once, then one each 10s; what comes sooner is refused"},
		{`algorithm = "token-bucket", rate = "6/m", burst = 5`, "6 requests a minute: at most 5 at once, then one each 10s; what comes sooner is refused"},
		{`algorithm = "leaky-bucket", rate = "6/m", burst = 5`, "6 requests a minute: at most 5 at once, then one each 10s; what comes sooner is refused"},
		{`algorithm = "fixed-window", limit = 6, window = "1m"`, "6 requests in each 1m window, windows aligned to UTC; around a boundary twice as many can pass within 1m"},
	})
}

// express-slow-down #6: a wait always has a bound, also when none is set.
func TestCase24ExplainMaxWait(t *testing.T) {
	explained(t, [][2]string{
		{`algorithm = "leaky-bucket", rate = "10/s", queue = 100`, "10 requests a second, one each 100ms; 100 may wait up to 10s (max_wait 30s)"},
		{`algorithm = "leaky-bucket", rate = "10/s", queue = 300`, "10 requests a second, one each 100ms; 300 may wait up to 30s (max_wait 30s)"},
		{`algorithm = "leaky-bucket", rate = "10/s", queue = 1000`, "10 requests a second, one each 100ms; 1000 may wait up to 30s (max_wait), which only 300 of them can keep to at this rate; the others are refused at once"},
		{`algorithm = "leaky-bucket", rate = "1/m", queue = 5, max_wait = "1h"`, "1 request a minute, one each 1m; 5 may wait up to 5m (max_wait 1h)"},
		{`algorithm = "leaky-bucket", rate = "1/36500d", queue = 2147483647`, "1 request in 36500d, one each 36500d; turns come further apart than max_wait (30s), so only one that comes no more than that before its turn can wait for it; the others are refused at once"},
		{`algorithm = "leaky-bucket", rate = "10/s", queue = 100, cost = 5`, "10 requests a second, one each 100ms; 100 may wait up to 30s (max_wait), which only 60 of them can keep to at this rate; the others are refused at once"},
		{`algorithm = "leaky-bucket", rate = "10/s", queue = 10, cost = 5`, "10 requests a second, one each 100ms; 10 may wait up to 5s (max_wait 30s)"},
		{`algorithm = "token-bucket", rate = "100/10s", burst = 20, queue = 1`, "10 requests a second: at most 20 at once, then one each 100ms; 1 may wait up to 100ms (max_wait 30s)"},
	})
}

// What a request counts as, where that is not one.
func TestExplainCost(t *testing.T) {
	const window = `algorithm = "fixed-window", limit = 5, window = "1h", cost = `
	const queue = `algorithm = "token-bucket", rate = "1/s", burst = 2, queue = 5, cost = `
	for limit, want := range map[string]string{
		window + `5`:               "each request counts as 5",
		window + `"header:x-cost"`: "a request counts as many as its header X-Cost says, if a trusted proxy sends it, and else as one",
		queue + `5`:                "each request counts as 5: it takes the time of 5, and one place in the queue",
		queue + `"header:x-cost"`:  "a request counts as many as its header X-Cost says, if a trusted proxy sends it, and else as one: it takes the time of as many, and one place in the queue",
	} {
		c, err := parse(t, `limit.a = { `+limit+` }
route = [ { match = "/", upstream = "app", limits = ["a"] } ]
`)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Explain(); !strings.Contains(got, "\n  "+want+"\n") {
			t.Errorf("%s: %q is not in\n%s", limit, want, got)
		}
	}
}

// Numbers and units that read right.
func TestExplainUnits(t *testing.T) {
	explained(t, [][2]string{
		{`algorithm = "fixed-window", limit = 1000, window = "month"`, "1000 requests in each calendar month, by the clocks of UTC; around its end twice as many can pass at once"},
		{`algorithm = "fixed-window", limit = 1, window = "day", timezone = "Asia/Tokyo"`, "1 request in each calendar day, by the clocks of Asia/Tokyo; around its end twice as many can pass at once"},
		{`algorithm = "sliding-window-log", limit = 1, window = "90s"`, "1 request in any 1m30s, exactly; each is remembered for 1m30s"},
		{`algorithm = "sliding-window-counter", limit = 2, window = "1d"`, "2 requests in any 1d, estimated: the window before counts by the share of it that is not over"},
		{`algorithm = "token-bucket", rate = "7/m"`, "7 requests a minute: at most 1 at once, then one each about 8.571s; what comes sooner is refused"},
		{`algorithm = "token-bucket", rate = "0.5/s"`, "30 requests a minute: at most 1 at once, then one each 2s; what comes sooner is refused"},
		{`algorithm = "token-bucket", rate = "5000/h"`, "5000 requests an hour: at most 1 at once, then one each 720ms; what comes sooner is refused"},
		{`algorithm = "token-bucket", rate = "1/d"`, "1 request a day: at most 1 at once, then one each 1d; what comes sooner is refused"},
		{`algorithm = "token-bucket", rate = "3/7s"`, "3 requests in 7s: at most 1 at once, then one each about 2.333s; what comes sooner is refused"},
	})
}
