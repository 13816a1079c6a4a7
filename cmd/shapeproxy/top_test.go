package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// topEvent has a limit of each form, as /api/events tells them.
const topEvent = `{"ready": true, "limits": [
{"name": "fragile", "key": "global", "queue": 40, "depth": 24, "oldest_wait_seconds": 3.61, "wait_seconds": {"p50": 0.41, "p90": 0.8, "p99": 65.2},
 "paused": "operator", "resumes_in_seconds": 12.3, "samples": [{"in": 1}, {"in": 12.04, "out": 9.5, "rejected": 2}]},
{"name": "per-client", "key": ["client-ip", "route"], "queue": 5, "depth": 3, "oldest_wait_seconds": 0.0214, "samples": [{"in": 0, "out": 0, "rejected": 0}]},
{"name": "quota", "key": "global", "dry_run": true, "depth": 0, "paused": "429 of \u001b[2Jthe upstream", "samples": []}],
"upstreams": [
{"name": "billing", "in_flight": 3, "breaker": "half-open", "addresses": [{"healthy": true}, {"healthy": false}]},
{"name": "b", "in_flight": 0, "addresses": [{"healthy": true}]}]}`

func topSnapshotOf(t *testing.T, text string) (s topSnapshot) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// topAPI is an admin listener that sends one event and takes calls.
func topAPI(t *testing.T, token string) (url string, calls func() []string) {
	asked := make(chan string, 10)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/api/events":
			fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(topEvent, "\n", ""))
		case r.Method == "POST" && !strings.Contains(r.URL.Path, "quota"):
			asked <- r.URL.Path + " " + r.Header.Get("Content-Type")
			io.WriteString(w, "{}")
		default:
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"error": "the limit has no queue"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() (all []string) {
		for {
			select {
			case c := <-asked:
				all = append(all, c)
			default:
				return all
			}
		}
	}
}

func TestTopWithoutATerminal(t *testing.T) {
	url, _ := topAPI(t, "s3cret")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"top", "--admin", url, "--token-file", file}, &out, &errs); code != 0 {
		t.Fatalf("%d: %s", code, &errs)
	}
	want := `LIMIT       DEPTH  OLDEST  IN/S  OUT/S  REJECTED/S  WAIT P50   P99  STATE
fragile     24/40    3.6s    12    9.5         2.0     410ms  1m5s  paused: operator, for 12.3s
per-client      3    21ms     0      0           0         -     -
quota           -       -     -      -           -         -     -  paused: 429 of [2Jthe upstream; dry run

UPSTREAM  IN FLIGHT  HEALTHY  BREAKER
billing           3   1 of 2  half-open
b                 0   1 of 1  -

`
	if out.String() != want {
		t.Errorf("it prints\n%swant\n%s", &out, want)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--admin", url}, "--token-file"},
		{[]string{"--admin", "ftp://x"}, "http://127.0.0.1:9090"},
		{[]string{"--admin", "http://u:p@127.0.0.1"}, "--token-file"},
		{[]string{"--admin", "127.0.0.1:9090"}, "http://127.0.0.1:9090"},
		{[]string{"--token-file", file + "x"}, "no such file"},
		{[]string{"--admin", "unix:" + file + ".sock"}, "is it running"},
	} {
		errs.Reset()
		if code := run(append([]string{"top"}, test.args...), io.Discard, &errs); code != exitError || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%q: %d %s, want %q", test.args, code, &errs, test.want)
		}
	}
}

// What listens there may be anything.
func TestTopOfSomethingElse(t *testing.T) {
	for answer, want := range map[string]string{
		"data: {\"limits\": 7}\n\n": "does not answer as",
		"hello\n":                   "has ended the connection",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
		var errs bytes.Buffer
		if code := run([]string{"top", "--admin", s.URL}, io.Discard, &errs); code != exitError || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: %d %s", answer, code, &errs)
		}
		s.Close()
	}
}

// A connection on which nothing comes is given up.
func TestTopSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go io.Copy(io.Discard, there)
		c, err := newTopClient("http://127.0.0.1:9090", "")
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return here, nil }
		began := time.Now()
		err = c.events(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "silent") || time.Since(began) != topSilence {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		there.Close()
	})
}

// A terminal in which keys are pressed; calls are made at once.
type topKeys struct {
	t *testing.T
	v *topView
}

func (k topKeys) press(keys ...string) (quit bool) {
	k.t.Helper()
	for _, key := range keys {
		press := tea.KeyPressMsg{Code: []rune(key)[0], Text: key}
		switch key {
		case "up":
			press = tea.KeyPressMsg{Code: tea.KeyUp}
		case "down":
			press = tea.KeyPressMsg{Code: tea.KeyDown}
		case "esc":
			press = tea.KeyPressMsg{Code: tea.KeyEscape}
		case "ctrl+c":
			press = tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}
		}
		_, cmd := k.v.Update(press)
		if cmd == nil {
			continue
		}
		msg := cmd()
		if _, quit = msg.(tea.QuitMsg); !quit {
			k.v.Update(msg)
		}
	}
	return quit
}

func (k topKeys) shows(want string) {
	k.t.Helper()
	if text := strings.Join(k.v.lines(), "\n"); !strings.Contains(text, want) {
		k.t.Errorf("it does not show %q:\n%s", want, text)
	}
}

func TestTopPausesAfterAQuestion(t *testing.T) {
	url, calls := topAPI(t, "")
	c, err := newTopClient(url, "")
	if err != nil {
		t.Fatal(err)
	}
	k := topKeys{t, &topView{client: c, ctx: t.Context()}}
	called := func(want ...string) {
		t.Helper()
		if got := calls(); strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("it called %q, want %q", got, want)
		}
	}
	k.shows("connecting")
	k.press("p", "down", "up") // nothing is known yet
	k.v.Update(topSnapshotOf(t, topEvent))
	k.shows("live")
	k.shows("> fragile")
	k.shows("q: quit")

	k.press("p")
	k.shows("Let fragile go on? y/n")
	called()
	k.press("n", "p", "x", "esc", "p", "q", "y")
	called()
	k.press("p", "y")
	k.shows("fragile goes on.")
	called("/api/limits/fragile/resume ")

	k.press("j", "p")
	k.shows("> per-client")
	k.shows("Pause per-client until resumed?")
	k.press("y")
	k.shows("per-client is paused")
	called("/api/limits/per-client/pause application/json")

	k.press("down", "down", "p")
	k.shows("quota has no queue")
	k.press("k", "k", "k")
	k.shows("> fragile")
	if d := k.v.steer("quota", false); d.err == nil || d.err.Error() != "the limit has no queue" {
		t.Errorf("a call that is refused: %+v", d)
	}

	// The selection stays with its limit, and a question ends with it.
	k.press("p")
	k.v.Update(topSnapshotOf(t, `{"ready": false, "limits": [{"name": "new"}, {"name": "quota"}]}`))
	k.shows("> new")
	k.shows("not ready")
	k.press("y")
	called()
	k.v.Update(topLost{io.ErrUnexpectedEOF})
	k.shows("reconnecting")
	k.shows("unexpected EOF")
	k.v.Update(topSnapshotOf(t, topEvent))
	k.shows("> fragile")
	if !k.press("q") || !k.press("ctrl+c") {
		t.Error("it does not end")
	}
}

var topStyles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Whatever the window's size, nothing is wider or higher than it.
func TestTopFitsIntoItsWindow(t *testing.T) {
	var limits []string
	for i := range 50 {
		limits = append(limits, fmt.Sprintf(`{"name": "limit-%d", "queue": 5}`, i))
	}
	k := topKeys{t, &topView{client: &topClient{Admin: "http://127.0.0.1:9090"}, ctx: t.Context()}}
	k.v.Update(topSnapshotOf(t, `{"ready": true, "limits": [`+strings.Join(limits, ",")+`], "upstreams": [{"name": "u"}]}`))
	for range 30 {
		k.press("down")
	}
	for _, size := range [][2]int{{80, 24}, {40, 12}, {20, 11}, {200, 100}} {
		k.v.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		lines := k.v.lines()
		if len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		k.shows("> limit-30")
		for _, line := range lines {
			if n := len(topStyles.ReplaceAllString(line, "")); n > size[0] {
				t.Errorf("%v: %d columns in %q", size, n, line)
			}
		}
	}
}

// top as people see it: in a terminal, with a real proxy behind it that goes away
// and comes back.
func TestTopInATerminal(t *testing.T) {
	tmux := testdeps.Need(t, "tmux")
	up := serveUpstream(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })
	p := start(t, configOf(up, ""))
	socket := filepath.Join(t.TempDir(), "tmux")
	do := func(args ...string) string {
		out, err := exec.Command(tmux, append([]string{"-S", socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v %s", args, err, out)
		}
		return string(out)
	}
	shows := func(text string) {
		t.Helper()
		until(t, "the screen with "+text, func() bool { return strings.Contains(do("capture-pane", "-p"), text) })
	}
	do("new-session", "-d", "-x", "110", "-y", "20", fmt.Sprintf("SHAPEPROXY_TEST_MAIN=1 '%s' top --admin '%s'; echo it ended with $?; exec sleep 60", os.Args[0], p.admin))
	t.Cleanup(func() { do("kill-server") })
	shows("> q      0/100")
	do("send-keys", "p")
	shows("Pause q until resumed?")
	do("send-keys", "y")
	shows("paused: operator")
	reply := make(chan int, 1)
	go func() { reply <- fetch(http.DefaultClient, "http://"+p.addr+"/").status }()
	shows("> q      1/100")
	do("send-keys", "p")
	shows("Let q go on?")
	do("send-keys", "y")
	if status := <-reply; status != 200 {
		t.Errorf("after the pause: %d", status)
	}
	shows("> q      0/100")
	if os.Getenv("SHAPEPROXY_SCREENSHOTS") != "" {
		t.Log("\n" + do("capture-pane", "-p"))
	}
	p.cmd.Process.Kill()
	shows("reconnecting")
	do("send-keys", "q")
	shows("it ended with 0")
}
