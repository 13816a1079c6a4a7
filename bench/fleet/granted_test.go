package fleet

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A schedule is what the server granted, by what MONITOR shows of the script and
// of what it wrote: each ask adds departures to what was granted, each return takes
// some of the last away.
type schedule struct {
	done sync.WaitGroup
	conn net.Conn

	mu      sync.Mutex
	granted []time.Time
	err     error
}

// watch begins to read until the server ends or stop is called. The limit must have
// a burst of 1 and an interval of whole microseconds.
func (f *fleet) watch(interval time.Duration) *schedule {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Address())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil {
		f.t.Fatal(err)
	}
	s := &schedule{conn: conn}
	lines := bufio.NewReader(conn)
	if ok, err := lines.ReadString('\n'); err != nil || ok != "+OK\r\n" {
		f.t.Fatalf("%q %v", ok, err)
	}
	s.done.Go(func() { s.read(lines, interval) })
	f.t.Cleanup(func() { s.stop() })
	return s
}

func (s *schedule) stop() ([]time.Time, error) {
	s.conn.Close()
	s.done.Wait()
	return s.granted, s.err
}

// read follows the calls of departures.lua, whose arguments that file names.
func (s *schedule) read(lines *bufio.Reader, interval time.Duration) {
	var mode string
	var takes int64 // departures that are asked for
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		_, rest, _ := strings.Cut(line, "] ")
		w := words(rest)
		switch {
		case len(w) > 10 && strings.HasPrefix(w[0], "EVAL") && (w[4] == "ask" || w[4] == "return"):
			us, _ := strconv.ParseInt(w[9], 10, 64)
			mode, takes = w[4], us/interval.Microseconds()
		case len(w) == 4 && w[0] == "HSET" && w[2] == "s":
			fields := strings.Fields(w[3])
			if len(fields) != 4 || fields[3] != "0" {
				s.fail("a state %q", w[3])
				return
			}
			us, _ := strconv.ParseInt(fields[2], 10, 64)
			s.note(mode, time.UnixMicro(us), takes, interval)
		}
	}
}

func (s *schedule) note(mode string, paid time.Time, takes int64, interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mode == "ask" {
		for n := takes; n > 0; n-- {
			s.granted = append(s.granted, paid.Add(-time.Duration(n)*interval))
		}
		return
	}
	for n := len(s.granted); n > 0 && !s.granted[n-1].Before(paid); n-- {
		s.granted = s.granted[:n-1]
	}
}

func (s *schedule) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = fmt.Errorf(format, args...)
}

// words are what stands between quotes.
func words(line string) (all []string) {
	for {
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil {
			return all
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			word = quoted // a byte that Go would not write so; none that counts has one
		}
		all = append(all, word)
		line = strings.TrimPrefix(line[len(quoted):], " ")
	}
}
