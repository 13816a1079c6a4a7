package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSimulate(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	config := write("shapeproxy.toml", `
[upstream.u]
url = "http://127.0.0.1:1"
[limit.fragile]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 2
[[route]]
match = "/"
upstream = "u"
limits = ["fragile"]
`)
	line := `198.51.100.7 - - [01/Mar/2026:12:00:05 +0000] "GET / HTTP/1.1" 200 1` + "\n"
	log, page := write("access.log", strings.Repeat(line, 10)), filepath.Join(dir, "page.html")

	simulate := func(args ...string) (status int, stdout, stderr string) {
		var out, err bytes.Buffer
		status = run(append([]string{"simulate", "--config", config}, args...), &out, &err)
		return status, out.String(), err.String()
	}
	status, out, stderr := simulate("--json", "--html", page, "--spread", "start", log)
	if status != exitOK || stderr != "" {
		t.Fatalf("status %d, %s", status, stderr)
	}
	var report struct {
		Limits map[string]struct {
			Offered, Admitted, Queued int
			Rejected                  map[string]int
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if l := report.Limits["fragile"]; l.Offered != 10 || l.Admitted != 1 || l.Queued != 2 || l.Rejected["queue_full"] != 7 {
		t.Errorf("%+v", l)
	}
	if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte("fragile")) {
		t.Errorf("the page: %v", err)
	}
	if status, out, _ := simulate("--suggest", "--compare", config, log); status != exitOK || !strings.Contains(out, "SUGGESTED") || !strings.Contains(out, "B: fragile") {
		t.Errorf("status %d:\n%s", status, out)
	}

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no such log":             {[]string{filepath.Join(dir, "none")}, "no such file"},
		"no log":                  {[]string{config}, "--log-format"},
		"a format without a time": {[]string{"--log-format", "$request", log}, "the log format has no time"},
		"a page in no folder":     {[]string{"--html", filepath.Join(dir, "none", "page"), log}, "no such file"},
	} {
		if status, _, stderr := simulate(test.args...); status != exitError || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no log":                  {nil, "at least 1 arg"},
		"a spread that is none":   {[]string{"--spread", "wide", log}, "--spread is even, random or start"},
		"an aim without a search": {[]string{"--for-wait", "5s", log}, "add --suggest"},
		"a rate without a unit":   {[]string{"--suggest", "--for-rate", "5", log}, `--for-rate: a rate needs a unit; write "5/s"`},
		"a wait without a unit":   {[]string{"--suggest", "--for-wait", "5", log}, "--for-wait: a duration needs a unit"},
		"fewer keys than none":    {[]string{"--top", "-1", log}, "--top"},
		"answers before requests": {[]string{"--service-time", "-1s", log}, "--service-time must not be negative"},
	} {
		if status, _, stderr := simulate(test.args...); status != exitUsage || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: status %d, %s", name, status, stderr)
		}
	}
}
