package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImportNginx(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nginx.conf")
	text := `http { sendfile on; limit_req_zone $remote_addr zone=a:1m rate=2r/s;
		server { listen 8080; location / { limit_req zone=a burst=5; proxy_pass http://127.0.0.1:3000; } } }`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes bytes.Buffer
	if status := run([]string{"import", "nginx", file}, &out, &notes); status != exitOK {
		t.Fatalf("status %d: %s", status, notes.String())
	}
	if !strings.Contains(notes.String(), ":1: sendfile on: has no counterpart") {
		t.Errorf("notes: %s", notes.String())
	}
	written := filepath.Join(t.TempDir(), "shapeproxy.toml")
	if err := os.WriteFile(written, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if status := run([]string{"check", "--config", written}, &out, &notes); status != exitOK || !strings.Contains(out.String(), "2 requests a second") {
		t.Errorf("status %d: %s", status, out.String())
	}
	if status := run([]string{"import", "nginx", filepath.Join(t.TempDir(), "none")}, &out, &notes); status != exitError {
		t.Errorf("status %d without a file", status)
	}
	if status := run([]string{"import", "nginx"}, &out, &notes); status != exitUsage {
		t.Errorf("status %d without a name", status)
	}
}
