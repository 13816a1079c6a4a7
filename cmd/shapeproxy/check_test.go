package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestCheckForPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	check := func(text string) (status int, v struct {
		OK                 bool
		Problems, Warnings []struct {
			File, Key, Text string
			Line            int
		}
	}) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, stderr bytes.Buffer
		status = run([]string{"check", "--config", file, "--format", "json"}, &out, &stderr)
		if err := json.Unmarshal(out.Bytes(), &v); err != nil || stderr.Len() > 0 {
			t.Fatalf("%v: %s%s", err, out.String(), stderr.String())
		}
		return status, v
	}
	upstream := "[upstream.u]\nurl = \"http://127.0.0.1:1\"\n"
	status, v := check(upstream + "[upstream.spare]\nurl = \"http://127.0.0.1:2\"\n[[route]]\nmatch = \"/\"\nupstream = \"u\"\n")
	if status != exitOK || !v.OK || len(v.Problems) != 0 || len(v.Warnings) != 1 || v.Warnings[0].Line != 3 {
		t.Errorf("status %d, %+v", status, v)
	}
	status, v = check(upstream + "[[route]]\nmatch = \"/\"\nupstream = \"v\"\nlimit = 3\n")
	if status != exitError || v.OK || len(v.Problems) != 2 || v.Problems[0].File != file || v.Problems[0].Key == "" || v.Problems[0].Text == "" {
		t.Errorf("status %d, %+v", status, v)
	}
	var out, stderr bytes.Buffer
	if status := run([]string{"check", "--config", file, "--format", "xml"}, &out, &stderr); status != exitUsage || out.Len() > 0 {
		t.Errorf("status %d for a format that is none: %s", status, out.String())
	}
}
