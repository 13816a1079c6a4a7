package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// How queues are left, and by whom first.
func TestTurns(t *testing.T) {
	c := load(t, "testdata/good/turns.toml")
	key := func(words ...string) identity.Key {
		k, err := identity.ParseKey(words)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	tenth := limiter.Rate{Count: 1, Per: 100 * time.Millisecond}
	limits := []Limit{
		{Name: "slots", Algorithm: limiter.Concurrency, MaxInFlight: 4},
		{
			Name: "line", Algorithm: limiter.Concurrency, Queue: 100, MaxWait: 10 * time.Second, MaxInFlight: 1,
			DeadlineHeader: "Request-Timeout", FairBy: key("client-ip", "header:X-Tenant"), PromoteAfter: 500 * time.Millisecond,
		},
		{
			Name: "fragile", Algorithm: limiter.LeakyBucket, Rate: tenth, Burst: 1, Queue: 100, MaxWait: 30 * time.Second, MaxInFlight: 4,
			FairBy: key("path:id"), PromoteAfter: 2 * time.Second,
		},
		// All who wait here have low priority.
		{
			Name: "tenants", Algorithm: limiter.TokenBucket, Rate: tenth, Burst: 5, Queue: 20, MaxWait: 30 * time.Second,
			Key: key("header:X-Tenant", "client-ip"), FairBy: key("client-ip"),
		},
	}
	for i := range limits {
		l := &limits[i]
		l.MissingKey, l.Cost, l.MaxKeys, l.Status = "shared", 1, 100000, 429
	}
	if !reflect.DeepEqual(c.Limits, limits) {
		t.Errorf("got  %+v\nwant %+v", c.Limits, limits)
	}
	for i, want := range []struct {
		priority string
		timing   bool
	}{{"high", true}, {"low", false}, {"normal", false}, {"normal", false}} {
		if r := c.Routes[i]; r.Priority != want.priority || r.ServerTiming != want.timing {
			t.Errorf("%s: priority %s, server timing %t", r.Match, r.Priority, r.ServerTiming)
		}
	}
	// A promotion that has nothing to rise to is none.
	for _, l := range load(t, "testdata/good/turns-in-vain.toml").Limits {
		if l.PromoteAfter != 0 {
			t.Errorf("%s: promoted after %s", l.Name, l.PromoteAfter)
		}
	}
}

// Traefik #5918: one a minute could not be written. What loads must also be
// the exact rate.
func TestCase01SlowRates(t *testing.T) {
	c := load(t, "testdata/good/case01-slow-rates.toml")
	for i, want := range []limiter.Rate{{Count: 1, Per: 10 * time.Second}, {Count: 1, Per: 10 * time.Second}, {Count: 1, Per: 24 * time.Hour}, {Count: 7, Per: time.Minute}} {
		if got := c.Limits[i].Rate; got != want {
			t.Errorf("%s: got %v, want %v", c.Limits[i].Name, got, want)
		}
	}
}

// privkeyio/wisp #78: counters too small for the limit.
func TestCase07LargeNumbers(t *testing.T) {
	c := load(t, "testdata/good/case07-large-numbers.toml")
	if l := c.Limits[1]; l.Limit != 5_000_000_000 || l.Window != 365*24*time.Hour {
		t.Errorf("got %d in %s", l.Limit, l.Window)
	}
	if l := c.Limits[2]; l.Window != 300_000*time.Hour {
		t.Errorf("got a window of %s", l.Window)
	}
}

// A dry run is loaded like what it stands for: only the flag differs.
func TestCase68DryRun(t *testing.T) {
	text := "[limit.a]\nalgorithm = \"leaky-bucket\"\nrate = \"1/s\"\nqueue = 5\ndry_run = true\n[[route]]\nmatch = \"/\"\nupstream = \"app\"\nlimits = [\"a\"]\n"
	dry, err := parse(t, text)
	if err != nil {
		t.Fatal(err)
	}
	binding, err := parse(t, strings.Replace(text, "true", "false", 1))
	if err != nil {
		t.Fatal(err)
	}
	if !dry.Limits[0].DryRun || binding.Limits[0].DryRun {
		t.Fatal("the flag is not what the file says")
	}
	dry.Limits[0].DryRun = false
	dry.source, binding.source = source{}, source{}
	if !reflect.DeepEqual(dry, binding) {
		t.Errorf("got %+v, want %+v", dry, binding)
	}
}

// Who may read a key, or change it.
func TestModesOfKeys(t *testing.T) {
	dir := files(t)
	text := "tls = { certificates = [ { cert = \"${DIR}/valid.pem\", key = \"${DIR}/valid.key\" } ] }\nupstream.a.url = \"http://127.0.0.1:9\"\nroute = [ { match = \"/\", upstream = \"a\" } ]\nadmin.listen = \"\"\n"
	for mode, want := range map[os.FileMode]string{
		0o400: "", 0o600: "", 0o640: "", 0o700: "",
		0o644: "everyone on this machine can read the file; run chmod 600 on it",
		0o601: "everyone on this machine can read the file; run chmod 600 on it",
		0o660: "the file's group can change it; run chmod 640 on it",
	} {
		if err := os.Chmod(filepath.Join(dir, "valid.key"), mode); err != nil {
			t.Fatal(err)
		}
		c, err := Parse("x.toml", []byte(text), environment(dir))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if len(c.Warnings) > 0 {
			got = c.Warnings[0].Text
		}
		if got != want || len(c.Warnings) > 1 {
			t.Errorf("%o: %v, want %q", mode, c.Warnings, want)
		}
	}
}
