// Package rig starts the real programs on loopback, for the end-to-end test
// and the measurements: the proxy as built from this tree, and Debian's nginx
// from a folder of its own. It needs Linux.
package rig

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// startTime and stopTime bound how long a program may take to answer and to
// end; the machines that tests run on are slow at times.
const (
	startTime = 20 * time.Second
	stopTime  = 20 * time.Second
)

// A Process is a running program whose output goes to a file.
type Process struct {
	Cmd    *exec.Cmd
	Stderr string // path of the file, which has standard output too
	done   chan error
}

// Start runs a program, with its output in dir/NAME.stderr, and
// returns once something accepts connections at ready.
func Start(dir, ready, program string, args ...string) (*Process, error) {
	p := &Process{
		Cmd:    exec.Command(program, args...),
		Stderr: filepath.Join(dir, filepath.Base(program)+".stderr"),
		done:   make(chan error, 1),
	}
	stderr, err := os.Create(p.Stderr)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	p.Cmd.Stdout, p.Cmd.Stderr = stderr, stderr
	if err := p.Cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.done <- p.Cmd.Wait() }()

	for deadline := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", ready); err == nil {
			return p, conn.Close()
		}
		select {
		case err := <-p.done:
			return nil, fmt.Errorf("%s ended at its start: %v\n%s", program, err, p.Output())
		default:
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s does not listen on %s", program, ready), p.Stop())
		}
	}
}

// Output is what the program has written.
func (p *Process) Output() string {
	b, err := os.ReadFile(p.Stderr)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Stop asks the program to end with SIGTERM and waits for it. The error is nil
// when it ended by itself with status 0.
func (p *Process) Stop() error {
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-p.done:
		p.done <- err // a second Stop finds it again
		return err
	case <-time.After(stopTime):
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.Cmd.Path, stopTime), p.Cmd.Process.Kill())
	}
}

// Kill ends the program as a crash would, and waits for it.
func (p *Process) Kill() error {
	if err := p.Cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := <-p.done
	p.done <- err
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		return err
	}
	return nil
}

// Build compiles a package of this module into dir and returns the program's path.
// It may be asked by a test in another module.
func Build(dir, pkg string) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/shapeproxy/shapeproxy").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	program := filepath.Join(dir, filepath.Base(pkg))
	build := exec.Command("go", "build", "-o", program, pkg)
	build.Dir = strings.TrimSpace(string(root))
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return program, nil
}

// Shapeproxy writes config into dir and runs the proxy with it. The admin
// address is asked until it says that the proxy is ready.
func Shapeproxy(dir, program, admin, config string) (*Process, error) {
	file := filepath.Join(dir, "shapeproxy.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	p, err := Start(dir, admin, program, "run", "--config", file)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startTime); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if resp, err := http.Get("http://" + admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p, nil
			}
		}
	}
	return nil, errors.Join(errors.New("shapeproxy is not ready\n"+p.Output()), p.Stop())
}

// Nginx runs nginx in the foreground with everything that it writes in dir,
// with the given directives inside its http block, one of which listens on
// ready.
func Nginx(dir, ready, directives string) (*Process, error) {
	user := ""
	if os.Geteuid() == 0 {
		// The workers would run as somebody who cannot enter a test's folder.
		user = "user root;"
	}
	config := fmt.Sprintf(`%s
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr error;
events { worker_connections 16384; }
http {
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	scgi_temp_path scgi;
	uwsgi_temp_path uwsgi;
	keepalive_requests 1000000;
	%s
}
`, user, directives)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	program, err := testdeps.Look("nginx")
	if err != nil {
		return nil, err
	}
	return Start(dir, ready, program, "-p", dir, "-e", "stderr", "-c", file)
}

// FreeAddr returns a loopback address that nothing listens on.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
