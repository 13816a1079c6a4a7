package main

import (
	"bytes"
	"runtime/debug"
	"strings"
	"testing"
)

func TestRunStatusAndStreams(t *testing.T) {
	for _, tt := range []struct {
		args   string
		status int
		stdout string // begins with
		stderr string // begins with
	}{
		{"version", exitOK, "shapeproxy ", ""},
		{"--version", exitOK, "shapeproxy ", ""},
		{"", exitOK, "A reverse proxy", ""},
		{"--help", exitOK, "A reverse proxy", ""},
		{"help version", exitOK, "Print the version", ""},
		{"completion bash", exitOK, "# bash completion", ""},
		{"completion", exitOK, "Generate the autocompletion", ""},
		{"completion tcsh", exitUsage, "", "shapeproxy: unknown command \"tcsh\" for \"shapeproxy completion\""},
		{"help", exitOK, "A reverse proxy", ""},
		{"help import nginx", exitOK, "Write a configuration", ""},
		{"help nope", exitUsage, "", "shapeproxy: unknown command \"nope\" for \"shapeproxy\""},
		{"help run nope", exitUsage, "", "shapeproxy: unknown command \"nope\" for \"shapeproxy run\""},
		{"vresion", exitUsage, "", "shapeproxy: unknown command \"vresion\""},
		{"version now", exitUsage, "", "shapeproxy: unknown command \"now\""},
		{"demo --fro 10s", exitUsage, "", "shapeproxy: unknown flag: --fro\nRun \"shapeproxy demo --help\""},
		{"demo --for ten", exitUsage, "", "shapeproxy: invalid argument \"ten\""},
		{"demo --for -1s", exitUsage, "", "shapeproxy: --for must not be negative"},
		{"demo --listen 80", exitUsage, "", "shapeproxy: --listen: \"80\" is no address; write host:port, such as 127.0.0.1:8080\n"},
		{"demo --admin nowhere", exitUsage, "", "shapeproxy: --admin: \"nowhere\" is no address; write host:port, such as 127.0.0.1:9090\n"},
		{"demo --upstream 127.0.0.1:99999", exitError, "", "shapeproxy: --upstream: listen tcp: "},
		{"demo --upstream-like nothing", exitUsage, "", "shapeproxy: --upstream-like"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(strings.Fields(tt.args), &stdout, &stderr)
		if status != tt.status {
			t.Errorf("%q: exit status %d, want %d", tt.args, status, tt.status)
		}
		for name, s := range map[string]struct{ got, want string }{
			"stdout": {stdout.String(), tt.stdout}, "stderr": {stderr.String(), tt.stderr},
		} {
			if !strings.HasPrefix(s.got, s.want) || s.want == "" && s.got != "" {
				t.Errorf("%q: %s is\n%s\nwant it to begin with %q", tt.args, name, s.got, s.want)
			}
		}
		if tt.stderr != "" && strings.Count(stderr.String(), "shapeproxy: ") != 1 {
			t.Errorf("%q: the error is not printed once:\n%s", tt.args, &stderr)
		}
	}
}

func TestVersionOf(t *testing.T) {
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	for _, tt := range []struct {
		version  string
		settings []debug.BuildSetting
		want     string
	}{
		{"v1.2.3", nil, "v1.2.3"},
		{"(devel)", nil, "devel"},
		{"", []debug.BuildSetting{setting("vcs.revision", "2a45a9b1c0de5f60718293a4b5c6d7e8f9012345")}, "devel-2a45a9b1c0de"},
		{"(devel)", []debug.BuildSetting{
			setting("vcs.revision", "2a45a9b1c0de5f60718293a4b5c6d7e8f9012345"), setting("vcs.modified", "true"),
		}, "devel-2a45a9b1c0de-modified"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: tt.version}, Settings: tt.settings}
		if got := versionOf(info); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.version, tt.settings, got, tt.want)
		}
	}
}
