package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What systemd would do is done by the test: it opens the sockets, passes them
// on from descriptor 3, and listens to what the process tells.
func TestUnderSystemd(t *testing.T) {
	dir := t.TempDir()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	spare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "front.sock")
	front, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	front.(*net.UnixListener).SetUnlinkOnClose(false)
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()

	file := filepath.Join(dir, "c.toml")
	upstream := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) {})
	text := "[server]\nlisten = [\"" + tcp.Addr().String() + "\", \"unix:" + socket + "\"]\n[admin]\nlisten = \"\"\n" +
		"[upstream.u]\nurl = \"" + upstream + "\"\n[[route]]\nmatch = \"/\"\nupstream = \"u\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The process must name itself in LISTEN_PID, which the shell knows.
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "run", "--config", file)
	cmd.Env = append(os.Environ(), "SHAPEPROXY_TEST_MAIN=1", "LISTEN_FDS=3", "NOTIFY_SOCKET="+filepath.Join(dir, "notify"), "WATCHDOG_USEC=200000")
	for _, l := range []net.Listener{tcp, front, spare} {
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		l.Close()
	}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	defer cmd.Process.Kill()

	await := func(want string) {
		t.Helper()
		told.SetReadDeadline(time.Now().Add(20 * time.Second))
		for b := make([]byte, 4096); ; {
			n, err := told.Read(b)
			if err != nil {
				t.Fatalf("%s was never told: %v", want, err)
			}
			if strings.HasPrefix(string(b[:n]), want) {
				return
			}
		}
	}
	await("READY=1")
	if r := get(t, "http://"+tcp.Addr().String()+"/"); r.status != 200 {
		t.Errorf("over the passed socket: %d", r.status)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	if r := fetch(c, "http://front/"); r.status != 200 {
		t.Errorf("over the passed Unix socket: %d", r.status)
	}
	c.CloseIdleConnections()
	if c, err := net.Dial("tcp", spare.Addr().String()); err == nil {
		c.Close()
		t.Error("a passed socket that no listen names is kept open")
	}
	await("WATCHDOG=1")
	cmd.Process.Signal(syscall.SIGHUP)
	await("RELOADING=1\nMONOTONIC_USEC=")
	await("READY=1")
	cmd.Process.Signal(syscall.SIGTERM)
	await("STOPPING=1")
	if err := <-exited; err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("systemd's socket file is gone: %v", err)
	}
	if !strings.Contains(log.String(), "no listen names") {
		t.Errorf("nothing about the socket that is left:\n%s", log.String())
	}
}

func TestListensAt(t *testing.T) {
	tcp := func(ip string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: port} }
	for _, test := range []struct {
		at      net.Addr
		address string
		want    bool
	}{
		{tcp("::", 80), ":80", true},
		{tcp("0.0.0.0", 80), ":80", true},
		{tcp("::", 80), "0.0.0.0:80", true},
		{tcp("127.0.0.1", 80), "127.0.0.1:80", true},
		{tcp("127.0.0.1", 80), ":80", false},
		{tcp("::", 80), "127.0.0.1:80", false},
		{tcp("::", 80), ":81", false},
		{tcp("::1", 80), "[::1]:80", true},
		{&net.UnixAddr{Name: "/run/a", Net: "unix"}, "unix:/run/a", true},
		{&net.UnixAddr{Name: "/run/a", Net: "unix"}, "unix:/run/b", false},
		{tcp("::", 80), "unix:/run/a", false},
		{&net.UnixAddr{Name: "/run/a", Net: "unix"}, ":80", false},
	} {
		if got := listensAt(test.at, test.address); got != test.want {
			t.Errorf("%v is %s: %t", test.at, test.address, got)
		}
	}
}
