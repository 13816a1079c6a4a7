package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a running shapeproxy.
type process struct {
	cmd    *exec.Cmd
	file   string
	addr   string // of the first listener for clients
	admin  string
	exited chan error

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs shapeproxy with a configuration, in which {{dir}} is a folder of
// the test, and waits until it listens.
func start(t *testing.T, text string) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{file: filepath.Join(dir, "c.toml"), exited: make(chan error, 1)}
	p.write(t, text)
	p.cmd = exec.Command(os.Args[0], "run", "--config", p.file)
	p.cmd.Env = append(os.Environ(), "SHAPEPROXY_TEST_MAIN=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		want := 1 + strings.Count(text, "[admin]")
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.mu.Lock()
			fmt.Fprintln(&p.log, s.Text())
			if m := listening.FindStringSubmatch(s.Text()); m != nil {
				if m[1] == "operators" {
					p.admin = "http://" + m[2]
				} else if p.addr == "" {
					p.addr = m[2]
				}
				if want--; want == 0 {
					close(ready)
				}
			}
			p.mu.Unlock()
		}
		p.exited <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		select {
		case <-p.exited:
		default:
		}
	})
	select {
	case <-ready:
	case err := <-p.exited:
		t.Fatalf("ended: %v\n%s", err, p.logged())
	}
	return p
}

func (p *process) write(t *testing.T, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, "{{dir}}", filepath.Dir(p.file))
	if err := os.WriteFile(p.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// until waits for what another process does.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

func (p *process) waitLog(t *testing.T, text string) {
	t.Helper()
	until(t, "a log line with "+text, func() bool { return strings.Contains(p.logged(), text) })
}

func (p *process) metric(t *testing.T, line string) {
	t.Helper()
	until(t, "the metric "+line, func() bool { return strings.Contains(get(t, p.admin+"/metrics").body, "\n"+line+"\n") })
}

func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case err := <-p.exited:
		p.exited <- err
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(30 * time.Second):
		t.Fatal("it does not exit")
		return 0
	}
}

type reply struct {
	status int
	body   string
	header http.Header
	err    error
}

func get(t *testing.T, url string) reply {
	t.Helper()
	return fetch(http.DefaultClient, url)
}

func fetch(c *http.Client, url string) reply {
	res, err := c.Get(url)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, string(b), res.Header, err}
}

// serveUpstream serves h and returns its URL.
func serveUpstream(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

func configOf(upstream, more string) string {
	return `
[server]
listen = "127.0.0.1:0"
shutdown_timeout = "30s"
[admin]
listen = "127.0.0.1:0"
[upstream.u]
url = "` + upstream + `"
[limit.q]
algorithm = "leaky-bucket"
rate = "20/s"
queue = 100
[[route]]
match = "/"
upstream = "u"
limits = ["q"]
` + more
}

// fill sends n requests and waits until all but the first wait.
func (p *process) fill(t *testing.T, n int) <-chan reply {
	t.Helper()
	replies := make(chan reply, n)
	for range n {
		go func() {
			replies <- fetch(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+p.addr+"/")
		}()
	}
	p.metric(t, fmt.Sprintf("shapeproxy_queue_depth{limit=\"q\"} %d", n-1))
	return replies
}
