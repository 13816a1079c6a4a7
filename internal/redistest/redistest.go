// Package redistest starts real servers of Redis or Valkey on free ports for tests
// and measurements, and stops, freezes and restarts them.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// An Engine is whose server it is.
type Engine string

// The engines, which speak the same protocol.
const (
	Redis  Engine = "redis"
	Valkey Engine = "valkey"
)

// Each runs the test on each engine.
func Each(t *testing.T, test func(*testing.T, Engine)) {
	for _, e := range []Engine{Redis, Valkey} {
		t.Run(string(e), func(t *testing.T) { test(t, e) })
	}
}

func (e Engine) server(tb testing.TB) string { return testdeps.Need(tb, string(e)+"-server") }

// A Server is one server, or a Sentinel. Its end is that of the test.
type Server struct {
	Port int

	tb      testing.TB
	program string
	args    []string

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start is Redis.Start.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return Redis.Start(tb, args...)
}

// Start starts a server without persistence, with these arguments of the program
// besides, and waits until it answers.
func (e Engine) Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, program: e.server(tb), Port: freePort(tb)}
	s.args = append([]string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", tb.TempDir(), "--daemonize", "no",
		"--save", "", "--appendonly", "no",
	}, args...)
	tb.Cleanup(s.Kill)
	s.Restart()
	return s
}

// freePort is below 55535, as a node of a cluster takes the one 10000 above it
// too.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port < 55535 {
			return port
		}
	}
	tb.Fatal("no port below 55535 is free")
	return 0
}

// Address is the server's host:port.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Restart starts a server that was killed, with nothing in it, and waits until it
// answers.
func (s *Server) Restart() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := exec.Command(s.program, s.args...)
	// Its own group, so that an interrupt of the test's terminal is not its end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	s.cmd, s.ended = cmd, ended
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if answer, err := s.Do("PING"); err == nil || strings.Contains(answer, "NOAUTH") || strings.Contains(answer, "MASTERDOWN") {
			return
		}
		select {
		case <-ended:
			s.tb.Fatalf("%s %s ended at once", s.program, strings.Join(s.args, " "))
		default:
		}
		if time.Now().After(deadline) {
			s.tb.Fatalf("%s does not answer", s.program)
		}
	}
}

// RestartWith is Kill and Restart with more arguments.
func (s *Server) RestartWith(args ...string) {
	s.Kill()
	s.args = append(s.args, args...)
	s.Restart()
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// Freeze stops the server with SIGSTOP, so that its connections stay and nothing
// answers; Thaw lets it go on.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }
func (s *Server) Thaw()   { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatal(err)
	}
}

// Must is Do of a command that must not fail.
func (s *Server) Must(command ...string) string {
	s.tb.Helper()
	answer, err := s.Do(command...)
	if err != nil {
		s.tb.Fatalf("%v: %v", command, err)
	}
	return answer
}

// AllSince reports whether the sorted set has n members, the scores of all of which
// are microseconds after an instant.
func (s *Server) AllSince(set string, n int, at time.Time) bool {
	s.tb.Helper()
	words := strings.Fields(s.Must("ZRANGE", set, "0", "-1", "WITHSCORES"))
	if len(words) != 2*n {
		return false
	}
	least, err := strconv.ParseFloat(words[1], 64)
	return err == nil && int64(least) > at.UnixMicro()
}

// Do runs one command on a connection of its own. The answer is its text, items
// of a list one a line; an answer that is an error is both.
func (s *Server) Do(command ...string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Address(), 2*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return "", err
	}
	return read(bufio.NewReader(c))
}

// read reads an answer in RESP2.
func read(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return rest, errors.New(rest)
	}
	n, err := strconv.Atoi(rest)
	switch {
	case err != nil || n < 0:
		return "", err
	case kind == '$':
		buf := make([]byte, n+2)
		_, err = io.ReadFull(r, buf)
		return string(buf[:n]), err
	}
	var items []string
	for range n {
		item, err := read(r)
		if err != nil {
			return "", err
		}
		items = append(items, item)
	}
	return strings.Join(items, "\n"), nil
}

// Sentinels are a master, its replica and three Sentinels that watch them.
type Sentinels struct {
	Master, Replica *Server
	Watch           []*Server
	Name            string // of the master
}

// StartSentinels starts them, and waits until each knows of the others.
func (e Engine) StartSentinels(tb testing.TB) *Sentinels {
	tb.Helper()
	t := &Sentinels{Name: "shape", Master: e.Start(tb, "--repl-diskless-sync-delay", "0")}
	t.Replica = e.Start(tb, "--replicaof", "127.0.0.1 "+strconv.Itoa(t.Master.Port))
	for range 3 {
		file := filepath.Join(tb.TempDir(), "sentinel.conf")
		text := fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\nsentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 2000\n",
			t.Name, t.Master.Port, t.Name, t.Name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
		s := &Server{tb: tb, program: e.server(tb), Port: freePort(tb)}
		s.args = []string{file, "--sentinel", "--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1"}
		tb.Cleanup(s.Kill)
		s.Restart()
		t.Watch = append(t.Watch, s)
	}
	await(tb, "the Sentinels do not find each other", func() bool {
		for _, s := range t.Watch {
			known, err := s.Do("SENTINEL", "MASTER", t.Name)
			if err != nil || !strings.Contains(known, "num-other-sentinels\n2") || !strings.Contains(known, "num-slaves\n1") {
				return false
			}
		}
		role, _ := t.Replica.Do("ROLE")
		return strings.Contains(role, "connected")
	})
	return t
}

// Addresses are those of the Sentinels.
func (t *Sentinels) Addresses() (list []string) {
	for _, s := range t.Watch {
		list = append(list, s.Address())
	}
	return list
}

// StartCluster starts a cluster of three masters, and waits until it serves.
func (e Engine) StartCluster(tb testing.TB) (nodes []*Server) {
	tb.Helper()
	args := []string{"--cluster", "create"}
	for range 3 {
		n := e.Start(tb, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
		nodes = append(nodes, n)
		args = append(args, n.Address())
	}
	cli := testdeps.Need(tb, string(e)+"-cli")
	out, err := exec.Command(cli, append(args, "--cluster-yes")...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s --cluster create: %v\n%s", cli, err, out)
	}
	await(tb, "the cluster does not serve", func() bool {
		for _, n := range nodes {
			if info, err := n.Do("CLUSTER", "INFO"); err != nil || !strings.Contains(info, "cluster_state:ok") {
				return false
			}
		}
		return true
	})
	return nodes
}

func await(tb testing.TB, problem string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal(problem)
		}
	}
}
