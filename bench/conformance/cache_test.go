package conformance

import (
	"encoding/json"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// differing are the cases in which the suite's server breaks off or breaks
// HTTP. Its client fails at that when it is alone with the server; from a proxy
// it gets what RFC 9110, section 15.6.3 asks for, or an answer of the right length.
// No cache, and so neither way, passes them.
var differing = map[string]string{
	"stale-close":                             "the server hangs up: 502",
	"stale-close-must-revalidate":             "the server hangs up: 502",
	"stale-close-no-cache":                    "the server hangs up: 502",
	"stale-close-proxy-revalidate":            "the server hangs up: 502",
	"stale-close-s-maxage=2":                  "the server hangs up: 502",
	"stale-sie-503":                           "the server hangs up: 502",
	"stale-sie-close":                         "the server hangs up: 502",
	"stale-warning-become":                    "the server hangs up: 502",
	"stale-warning-stored":                    "the server hangs up: 502",
	"headers-store-Transfer-Encoding":         "the server sends an encoding that does not exist: 502",
	"headers-store-Content-Length":            "the server sends more than the length that it gave: cut there",
	"304-etag-update-response-Content-Length": "the server sends more than the length that it gave: cut there",
}

// TestHTTPCache plays http-cache-tests, its client and its server, with and
// without the proxy between. A proxy that stores nothing and changes nothing
// makes no difference to any of them.
func TestHTTPCache(t *testing.T) {
	node := testdeps.Need(t, "node")
	suite, err := filepath.Abs(filepath.Join("node_modules", "http-cache-tests"))
	if err != nil {
		t.Fatal(err)
	}
	testdeps.NeedFile(t, filepath.Join(suite, "cli.mjs"))

	dir := t.TempDir()
	addr := freeAddr(t)
	_, port := split(t, addr)
	// The suite is meant to be started by npm, which hands its settings on so.
	settings := []string{"-C", suite, "npm_config_protocol=http", "npm_config_port=" + port, "npm_package_config_id=",
		"npm_config_pidfile=" + filepath.Join(dir, "pid")}
	server, err := rig.Start(dir, addr, "env", append(settings, node, "--no-warnings", "server/server.mjs")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Cmd.Process.Kill() })
	f := start(t, setup{upstream: "http://" + addr})

	play := func(base string) map[string]json.RawMessage {
		out, err := exec.Command("env", slices.Concat(settings, []string{"npm_config_base=http://" + base, node, "--no-warnings", "cli.mjs"})...).Output()
		found := make(map[string]json.RawMessage)
		if err := errors.Join(err, json.Unmarshal(out, &found)); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return found
	}
	var direct, through map[string]json.RawMessage
	var both sync.WaitGroup
	both.Go(func() { direct = play(addr) })
	both.Go(func() { through = play(f.Addr) })
	both.Wait()
	differ := 0
	for _, id := range slices.Sorted(maps.Keys(direct)) {
		if a, b := clean(direct[id]), clean(through[id]); a != b {
			differ++
			if differing[id] == "" || a == "true" || b == "true" {
				t.Errorf("%s: direct %s, through the proxy %s", id, a, b)
			}
		}
	}
	if len(direct) < 300 || len(through) != len(direct) {
		t.Errorf("%d cases direct, %d through the proxy", len(direct), len(through))
	}
	result(t, "%d cases, %d differ", len(direct), differ)
}

// addresses are what differs between runs: the server's port, and names of
// tests that are made up anew.
var addresses = regexp.MustCompile(`:\d+/test/[0-9a-f-]{36}`)

// clean is what was found, without addresses.
func clean(found json.RawMessage) string {
	return addresses.ReplaceAllString(string(found), "")
}
