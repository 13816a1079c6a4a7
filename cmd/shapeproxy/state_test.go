package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCase64StateLostAtRestart: a quota outlives the process that counted it,
// stopped or killed, and a file that was spoilt keeps nobody from starting
// (libops/captcha-protect #13, 3proxy #768).
func TestCase64StateLostAtRestart(t *testing.T) {
	up := serveUpstream(t, func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "state")
	text := `[server]
listen = "127.0.0.1:0"
state_file = "` + file + `"
state_interval = "100ms"
[admin]
listen = "127.0.0.1:0"
[upstream.u]
url = "` + up + `"
[limit.monthly]
algorithm = "fixed-window"
limit = 10
window = "36500d"
key = "header:X-Key"
[[route]]
match = "/"
upstream = "u"
limits = ["monthly"]
`
	ask := func(p *process) (status int, left string) {
		t.Helper()
		r := get(t, "http://"+p.addr+"/")
		return r.status, r.header.Get("RateLimit-Remaining")
	}
	expect := func(p *process, status int, left string) {
		t.Helper()
		if s, l := ask(p); s != status || l != left {
			t.Errorf("status %d with %s left, want %d with %s\n%s", s, l, status, left, p.logged())
		}
	}

	p := start(t, text)
	expect(p, 200, "9")
	expect(p, 200, "8")
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 {
		t.Fatalf("exit status %d", code)
	}

	p = start(t, text)
	expect(p, 200, "7")
	// What was asked before two whole writes have gone by is on the disk.
	writes := func() os.FileInfo {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	for range 2 {
		before := writes()
		until(t, "a write", func() bool { return !os.SameFile(before, writes()) })
	}
	p.signal(t, syscall.SIGKILL)
	p.exit(t)

	p = start(t, text)
	expect(p, 200, "6")
	p.signal(t, syscall.SIGTERM)
	p.exit(t)

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data[:len(data)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, text)
	p.waitLog(t, "the state file is refused")
	expect(p, 200, "9")
	p.signal(t, syscall.SIGTERM)
	if code := p.exit(t); code != 0 || !strings.Contains(p.logged(), "is torn") {
		t.Errorf("exit status %d\n%s", code, p.logged())
	}
	if kept, err := os.ReadFile(file + ".refused"); err != nil || len(kept) != len(data)-5 {
		t.Errorf("%d bytes were put aside: %v", len(kept), err)
	}
}
