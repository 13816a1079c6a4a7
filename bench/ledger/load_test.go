package ledger

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

var scenarios = []scenario{
	{"overload", true, overload},
	{"reload every 20 ms", false, reloads},
	{"SIGTERM, all served", true, drained},
	{"SIGTERM, time over", true, cut},
	{"starved processor", false, starved},
	{"GET leaves", true, leave(leaver{})},
	{"POST leaves, 1 MB unread", false, leave(leaver{body: 1 << 20})},
	{"half-close", false, leave(leaver{half: true})},
	{"h2c stream reset", true, leave(leaver{h2: true})},
	{"h2c, POST reset, 1 MB unread", false, leave(leaver{h2: true, body: 1 << 20})},
	{"TLS, GET leaves", false, leave(leaver{secure: true})},
	{"TLS, POST leaves, 1 MB unread", false, leave(leaver{secure: true, body: 1 << 20})},
	{"TLS, half-close", false, leave(leaver{secure: true, half: true})},
	{"TLS, h2 stream reset", false, leave(leaver{secure: true, h2: true})},
	{"1000 leave at once", false, allLeave},
	{"places given back, 250 of 500 leave", false, givenBack},
	{"max_in_flight, upstream breaks", true, broken},
	{"max_in_flight, a third leaves", false, wakeUps},
	{"h2c uploads, one at a time", false, uploads},
	{"places, refused by a later limit", false, refusedLater},
	{"concurrency with queue", false, concurrency},
	{"concurrency without", false, concurrencyAlone},
	{"WebSockets closed by either side", false, sockets},
	{"priority", false, priority},
	{"order", false, order},
	{"deadlines", false, deadlines},
	{"SIGSTOP for 3 s", false, standstill},
	{"fair_by, one floods", false, flood},
	{"5 s of patience, three times overload", false, patience},
}

// overload offers twice what the queue lets out, from the start with a crowd.
func overload(t *testing.T) {
	s := raise(t, play{limits: queue("200/s", 100, "")})
	during := 500 * time.Millisecond
	if full {
		during = 2500 * time.Millisecond
	}
	c := s.clients(false)
	s.crowd(c, 150, plain)
	s.stream(c, 2500*time.Microsecond, during, plain)
	f := s.finish(terms("200/s", "queue_full"))
	if f.Refused == 0 {
		t.Error("nobody was refused, so that the queue was never full")
	}
}

// order sends requests one after the other, over HTTP/1 connections and as
// streams of one HTTP/2 connection.
func order(t *testing.T) {
	t.Parallel()
	s := raise(t, play{limits: queue("80/s", 300, "")})
	s.stream(s.clients(false), 10*time.Millisecond, time.Second, func(int) ledger.Ask { return ledger.Ask{Flow: "HTTP/1"} })
	c := s.clients(true)
	defer c.Close()
	s.stream(c, 10*time.Millisecond, time.Second, func(int) ledger.Ask { return ledger.Ask{Flow: "HTTP/2"} })
	s.all.Wait()
	c.Close()
	s.finish(terms("80/s"))
}

// reloads changes rate, queue and max_wait all the time.
func reloads(t *testing.T) {
	var settings []string
	for _, rate := range []string{"200/s", "100/s", "150/s"} {
		for _, places := range []int{100, 20, 200} {
			for _, wait := range []string{"30s", "300ms", "2s"} {
				settings = append(settings, queue(rate, places, fmt.Sprintf("max_wait = %q", wait)))
			}
		}
	}
	s := raise(t, play{limits: settings[0]})
	s.all.Go(func() { s.stream(s.clients(false), 3333*time.Microsecond, 2500*time.Millisecond, plain) })
	random := rand.New(rand.NewPCG(1, 2))
	for range 140 {
		s.reload(settings[random.IntN(len(settings))])
		time.Sleep(20 * time.Millisecond)
	}
	terms := terms("200/s", "queue_full", "max_wait", "paused")
	terms.Slowest = parse("100/s")
	f := s.finish(terms)
	if f.Refused == 0 {
		t.Error("nobody was refused, so that the queue was never full")
	}
	if n := strings.Count(s.proxy.Output(), `"configuration reloaded"`); n < 30 {
		t.Errorf("%d reloads", n)
	}
	if strings.Contains(s.proxy.Output(), `"level":"ERROR"`) {
		t.Errorf("an error:\n%s", tail(s.proxy.Output()))
	}
}

// drained stops the proxy with 100 waiting and time enough.
func drained(t *testing.T) {
	s := raise(t, play{limits: queue("100/s", 100, "")})
	s.crowd(s.clients(false), 101, plain)
	s.entered(101)
	s.stop()
	if f := s.finish(terms("100/s")); f.Served != 101 {
		t.Errorf("%d of 101 were served", f.Served)
	}
}

// cut stops the proxy with 100 waiting and too little time.
func cut(t *testing.T) {
	s := raise(t, play{server: `shutdown_timeout = "400ms"`, limits: queue("50/s", 100, "")})
	s.crowd(s.clients(false), 101, plain)
	s.entered(101)
	s.stop()
	f := s.finish(terms("50/s", "shutdown"))
	if f.Served+f.Refused != 101 || f.Refused == 0 || f.Served < 10 {
		t.Errorf("%d were served and %d told to come back, of 101", f.Served, f.Refused)
	}
	for _, r := range s.Requests() {
		if r.Reason == "shutdown" && r.Status != 503 {
			t.Errorf("request %d was answered %d %s", r.ID, r.Status, r.Reason)
		}
	}
}

// starved gives the proxy as little of the processors as two others leave it.
func starved(t *testing.T) {
	s := raise(t, play{limits: queue("100/s", 300, "")})
	for range 2 {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		defer busy.Wait()
		defer busy.Process.Kill()
	}
	pid := s.proxy.Cmd.Process.Pid
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		// Nice is a thread's own on Linux; new ones have it from their maker.
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			unix.Setpriority(unix.PRIO_PROCESS, tid, 10)
		}
	}
	s.crowd(s.clients(false), 200, plain)
	if f := s.finish(terms("100/s")); f.Served != 200 {
		t.Errorf("%d of 200 were served", f.Served)
	}
}

// standstill stops the process itself for 3 s. What became due meanwhile must
// not leave in a bunch.
func standstill(t *testing.T) {
	t.Parallel()
	s := raise(t, play{limits: queue("200/s", 600, "")})
	s.crowd(s.clients(false), 400, plain)
	s.until("40 arrivals", func() bool { return s.Arrived() >= 40 })
	from := s.Now()
	s.signal(syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	to := s.Now()
	s.signal(syscall.SIGCONT)
	s.stalls.Add(from, to)
	f := s.finish(terms("200/s"))
	if f.Served != 400 {
		t.Errorf("%d of 400 were served", f.Served)
	}
	// The audit allows the arrivals what one of them was late, and those that
	// were under way are late by the whole standstill.
	log, err := ledger.ReadLog(s.proxy.Output())
	if err != nil {
		t.Fatal(err)
	}
	var after []time.Time
	var late time.Duration
	for _, r := range s.Requests() {
		if departed := log[r.ID].Departed; departed.After(to) {
			after = append(after, s.At(r.ID))
			late = max(late, s.At(r.ID).Sub(departed))
		}
	}
	slack := ledger.Slack(after, parse("200/s"), 1)
	t.Logf("%d arrivals after the standstill use %v of slack; the latest was %v late", len(after), slack, late)
	if len(after) < 300 {
		t.Errorf("%d of 400 left after the standstill, so that it shows little", len(after))
	}
	if slack > late+ledger.Notable {
		t.Errorf("a bunch after the standstill: %v of slack", slack)
	}
}
