package ledger

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// limit is the name of the limit in every scenario.
const limit = "q"

// A play is what a scenario needs.
type play struct {
	server string // fields of [server]
	limits string // [limit.q] and more, and the routes
	secure bool   // the proxy speaks TLS
	// upstream answers what arrives; nil: 200 at once.
	upstream http.HandlerFunc
}

// A stage is one run of the real proxy, between clients and an upstream that
// keep a ledger.
type stage struct {
	*ledger.Ledger
	t        *testing.T
	play     play
	dir      string
	front    string
	admin    string
	upstream *httptest.Server
	proxy    *rig.Process
	stalls   *ledger.Stalls
	base     ledger.Metrics
	stopped  bool
	all      sync.WaitGroup // clients
}

func raise(t *testing.T, p play) *stage {
	t.Helper()
	s := &stage{Ledger: ledger.New(), t: t, play: p, dir: t.TempDir()}
	s.upstream = s.Upstream(p.upstream)
	t.Cleanup(s.upstream.Close)
	for _, addr := range []*string{&s.front, &s.admin} {
		var err error
		if *addr, err = rig.FreeAddr(); err != nil {
			t.Fatal(err)
		}
	}
	if p.secure {
		s.certify()
	}
	var err error
	if s.proxy, err = rig.Shapeproxy(s.dir, program(t), s.admin, s.config(p.limits)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.proxy.Stop() })
	s.base = s.scrape()
	s.stalls = s.Watch(s.proxy.Cmd.Process.Pid)
	return s
}

// certify writes the certificate that package httptest brings along.
func (s *stage) certify() {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) config(limits string) string {
	tls := ""
	if s.play.secure {
		tls = fmt.Sprintf("[tls]\ncertificates = [ { cert = %q, key = %q } ]\n",
			filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem"))
	}
	// No request may be at the upstream twice: that one takes another turn is
	// tested where turns are counted.
	return fmt.Sprintf(`
[server]
listen = %q
%s
[admin]
listen = %q
[log]
format = "json"
%s
[upstream.up]
url = "http://%s"
host = "client"
retry = "never"
%s`, s.front, s.play.server, s.admin, tls, s.upstream.Listener.Addr(), limits)
}

// queue is a leaky bucket with a queue and more fields, and one route by it.
func queue(rate string, places int, more string) string {
	return fmt.Sprintf("[limit.q]\nalgorithm = \"leaky-bucket\"\nrate = %q\nqueue = %d\n%s\n", rate, places, more) + route("/", "")
}

func route(match, more string) string {
	return fmt.Sprintf("[[route]]\nmatch = %q\nupstream = \"up\"\nlimits = [\"q\"]\n%s\n", match, more)
}

// terms are those of the limit at a rate such as "200/s".
func terms(rate string, reasons ...string) ledger.Terms {
	return ledger.Terms{Limit: limit, Rate: parse(rate), Burst: 1, Reasons: reasons}
}

func parse(rate string) limiter.Rate {
	r, err := limiter.ParseRate(rate)
	if err != nil {
		panic(err)
	}
	return r
}

// reload gives the proxy other limits by SIGHUP. The file is replaced at one
// blow, as the proxy may be reading it.
func (s *stage) reload(limits string) {
	file := filepath.Join(s.dir, "shapeproxy.toml")
	if err := os.WriteFile(file+".new", []byte(s.config(limits)), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		s.t.Fatal(err)
	}
	s.signal(syscall.SIGHUP)
}

func (s *stage) signal(sig syscall.Signal) {
	if err := s.proxy.Cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// clients returns a client of the stage's proxy.
func (s *stage) clients(h2 bool) *ledger.Client { return s.NewClient(s.front, s.play.secure, h2) }

// send has a client ask, and does not wait for the end.
func (s *stage) send(c *ledger.Client, a ledger.Ask) { s.all.Go(func() { c.Do(a) }) }

// crowd sends n at once.
func (s *stage) crowd(c *ledger.Client, n int, ask func(i int) ledger.Ask) {
	for i := range n {
		s.send(c, ask(i))
	}
}

// stream sends one each interval for so long.
func (s *stage) stream(c *ledger.Client, interval, during time.Duration, ask func(i int) ledger.Ask) {
	began := time.Now()
	for i := 0; time.Duration(i)*interval < during; i++ {
		time.Sleep(time.Duration(i)*interval - time.Since(began))
		s.send(c, ask(i))
	}
}

func plain(int) ledger.Ask { return ledger.Ask{} }

// until waits for what another process does.
func (s *stage) until(what string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s did not happen; the end of the proxy's log:\n%s", what, tail(s.proxy.Output()))
		}
	}
}

// entered waits until n requests have left or wait.
func (s *stage) entered(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("the coming of %d requests", n), func() bool {
		arrived := s.Arrived() // first, so that none is counted twice
		return arrived+s.scrape().Sum("shapeproxy_queue_depth") >= n
	})
}

func (s *stage) scrape() ledger.Metrics {
	m, err := ledger.Scrape(s.admin)
	if err != nil {
		s.t.Fatalf("%v; the end of the proxy's log:\n%s", err, tail(s.proxy.Output()))
	}
	return m
}

// stop asks the proxy to end by SIGTERM, and wants it to end well.
func (s *stage) stop() {
	s.stopped = true
	if err := s.proxy.Stop(); err != nil {
		s.t.Errorf("the proxy did not end well after SIGTERM: %v\n%s", err, tail(s.proxy.Output()))
	}
}

// finish waits until all clients have their end, looks at what the proxy still
// holds, stops it, and audits.
func (s *stage) finish(terms ledger.Terms) ledger.Findings {
	s.t.Helper()
	s.all.Wait()
	terms.Idle = 200 * time.Millisecond
	var account ledger.Account
	if !s.stopped {
		n := len(s.Requests())
		s.until(fmt.Sprintf("the end of %d requests", n), func() bool {
			account.Metrics = s.scrape()
			// A scrape is no one instant: a gauge in it may be older than a counter.
			return account.Metrics.Sum("shapeproxy_requests_total") >= n &&
				account.Metrics.Sum("shapeproxy_upstream_in_flight") == 0 && account.Metrics.Sum("shapeproxy_queue_depth") == 0
		})
		s.back()
		s.stop()
	}
	s.stalls.Stop()
	var err error
	if account.Log, err = ledger.ReadLog(s.proxy.Output()); err != nil {
		s.t.Fatal(err)
	}
	f := s.Audit(terms, account, s.stalls)
	for i, p := range f.Problems {
		if i == 20 {
			s.t.Errorf("and %d more", len(f.Problems)-i)
			break
		}
		s.t.Error(p)
	}
	report(s.t, f, s.stalls)
	return f
}

// made is what the proxy makes once, when somebody first waits, and keeps.
var made = map[string]int{"go_goroutines": 5, "process_open_fds": 3}

// back wants goroutines and descriptors to be as many as at the beginning, but
// for what is made once, when the connections kept to the upstream are closed.
func (s *stage) back() {
	s.t.Helper()
	s.upstream.CloseClientConnections()
	var m ledger.Metrics
	for deadline := time.Now().Add(7 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		m = s.scrape()
		more := false
		for what, once := range made {
			more = more || m.Sum(what) > s.base.Sum(what)+once
		}
		if !more {
			return
		}
	}
	for what := range made {
		s.t.Errorf("%s: %d at the beginning, %d at the end", what, s.base.Sum(what), m.Sum(what))
	}
}

func tail(s string) string { return s[max(0, len(s)-3000):] }
