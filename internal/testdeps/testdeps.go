// Package testdeps finds the programs that tests run against but that a bare
// machine may lack, such as a real nginx.
package testdeps

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Programs are the programs that tests ask for, and what goes untested without
// them.
var Programs = []struct{ Name, Purpose string }{
	{"nginx", "the runs in front of a real server"},
	{"redis-server", "limits that several proxies share"},
	{"redis-cli", "the same on a Redis cluster"},
	{"valkey-server", "the same on Valkey"},
	{"valkey-cli", "the same on a Valkey cluster"},
	{"chromium", "the live page in a real browser"},
	{"tmux", "shapeproxy top in a real terminal"},
	{"promtool", "alert rules, dashboard and metrics by Prometheus's own tool"},
	{"systemd-analyze", "the systemd units"},
	{"pebble", "certificates from a real ACME server"},
	{"varnishtest", "scenarios in raw bytes"},
	{"slowhttptest", "clients that are slow on purpose"},
}

// Look returns the path of the program. Debian keeps servers in /usr/sbin,
// which is not in every user's PATH.
func Look(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	path, err := exec.LookPath("/usr/sbin/" + name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed; run make test-deps", name)
	}
	return path, nil
}

// Need returns the path of the program, or skips the test. With
// SHAPEPROXY_NO_SKIP set, as in CI, the test fails instead: a run that has lost
// a server must not look green.
func Need(tb testing.TB, name string) string {
	tb.Helper()
	path, err := Look(name)
	need(tb, err)
	return path
}

// NeedFile is Need for something that is a file and no program.
func NeedFile(tb testing.TB, path string) {
	tb.Helper()
	_, err := os.Stat(path)
	if err != nil {
		err = fmt.Errorf("%w; run make test-deps", err)
	}
	need(tb, err)
}

func need(tb testing.TB, err error) {
	tb.Helper()
	switch {
	case err == nil:
	case os.Getenv("SHAPEPROXY_NO_SKIP") != "":
		tb.Fatal(err)
	default:
		tb.Skip(err)
	}
}
