package config

import (
	"strings"
	"testing"
	"time"
)

const changeable = `
[upstream.u]
url = "http://127.0.0.1:1"
[limit.q]
algorithm = "leaky-bucket"
rate = "${RATE}"
queue = 5
[limit.w]
algorithm = "fixed-window"
limit = 10
window = "1m"
[[route]]
match = "/"
upstream = "u"
limits = ["q", "w"]
`

func TestChange(t *testing.T) {
	first, err := Parse("c.toml", []byte(changeable), func(string) (string, bool) { return "3/s", true })
	if err != nil {
		t.Fatal(err)
	}
	second, err := first.Change("q", map[string]any{"queue": int64(50), "max_wait": "5s"})
	if err != nil {
		t.Fatal(err)
	}
	third, err := second.Change("w", map[string]any{"limit": int64(20), "dry_run": true})
	if err != nil {
		t.Fatal(err)
	}
	if l := third.Limits[0]; l.Queue != 50 || l.MaxWait != 5*time.Second || l.Rate.String() != "3/s" {
		t.Errorf("%+v", l)
	}
	if l := third.Limits[1]; l.Limit != 20 || !l.DryRun {
		t.Errorf("%+v", l)
	}
	if first.Limits[0].Queue != 5 || second.Limits[1].Limit != 10 {
		t.Error("a change changes the configuration it was made of")
	}
	for _, test := range []struct {
		limit  string
		fields map[string]any
		want   string
	}{
		{"none", map[string]any{}, "there is no limit of this name"},
		{"q", map[string]any{"key": "client-ip"}, "key: cannot be changed while the limit runs"},
		{"q", map[string]any{"rate": "5"}, "rate: "},
		{"q", map[string]any{"queue": "ten"}, "queue: must be a whole number"},
		{"q", map[string]any{"queue": int64(0)}, "queue: a limit with a queue and one without"},
		{"q", map[string]any{"burst": int64(9)}, "burst: "},
		{"w", map[string]any{"rate": "5/s"}, "rate: "},
		{"w", map[string]any{"limit": int64(0)}, "limit: "},
	} {
		_, err := first.Change(test.limit, test.fields)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "c.toml") {
			t.Errorf("%s, %v: %v", test.limit, test.fields, err)
		}
	}
}

// A rate in the place of one that is searched for needs none of its bounds, and
// the file's come back with it.
func TestChangeOfARateThatIsSearchedFor(t *testing.T) {
	c := load(t, "testdata/good/auto.toml")
	fixed, err := c.Change("partner", map[string]any{"rate": "20/s"})
	if err != nil {
		t.Fatal(err)
	}
	if l := fixed.Limits[0]; l.Rate.String() != "20/s" || l.MinRate.Count != 0 {
		t.Errorf("%+v", l)
	}
	if l := c.Limits[0]; l.Rate.String() != "100/s" || l.MinRate.String() != "1/s" {
		t.Errorf("the one before is now %+v", l)
	}
	if again, err := c.Change("partner", map[string]any{"queue": int64(7)}); err != nil || again.Limits[0].MinRate.String() != "1/s" || again.Limits[0].Queue != 7 {
		t.Errorf("%+v, %v", again, err)
	}
}
