package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// The limits are chosen so that every decision occurs: the log offers about
// 140 requests a second at its compressed speed, and its busy clients come in
// bursts of up to a hundred.
const (
	queueRate = "120/s"
	config    = `
[server]
listen = %q
trusted_proxies = ["127.0.0.1"]

[admin]
listen = %q

[log]
format = "json"

[upstream.files]
url = "http://%s"

[limit.per-client]
algorithm = "token-bucket"
rate = "20/s"
burst = 10
key = "client-ip"

[limit.fragile]
algorithm = "leaky-bucket"
rate = "` + queueRate + `"
%s

[[route]]
match = "/"
upstream = "files"
limits = ["per-client", "fragile"]
`
	// The first is full before anybody's predicted wait is too long, the
	// second the other way round.
	shortQueue = "queue = 20\nmax_wait = \"30s\""
	longQueue  = "queue = 300\nmax_wait = \"200ms\""
)

// maxFile bounds the generated files; the log's largest is 69 MB.
const maxFile = 64 << 10

// An outcome is what all sides say about one run.
type outcome struct {
	answers []answer // by request
	opened  int      // connections from the clients
	late    time.Duration
	took    time.Duration
	proxy   map[int]ledger.Line
	nginx   map[int]arrival
	metrics ledger.Metrics
}

// run sends the requests through the proxy to nginx and collects what each
// side recorded. With reload, the queue is changed by SIGHUP halfway.
func run(t *testing.T, program string, requests []request, reload bool) outcome {
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var addrs [3]string
	for i := range addrs {
		var err error
		addrs[i], err = rig.FreeAddr()
		must(err)
	}
	front, admin, back := addrs[0], addrs[1], addrs[2]

	must(plant(filepath.Join(dir, "files"), requests))
	nginx, err := rig.Nginx(dir, back, fmt.Sprintf("%s\nserver { listen %s; root files; }", nginxLog, back))
	must(err)
	defer nginx.Stop()
	text := func(queue string) string { return fmt.Sprintf(config, front, admin, back, queue) }
	proxy, err := rig.Shapeproxy(dir, program, admin, text(shortQueue))
	must(err)
	defer proxy.Stop()

	var halfway func()
	if reload {
		halfway = func() {
			must(os.WriteFile(filepath.Join(dir, "shapeproxy.toml"), []byte(text(longQueue)), 0o600))
			must(proxy.Cmd.Process.Signal(syscall.SIGHUP))
		}
	}
	var out outcome
	clients := &clientSide{proxy: front}
	began := time.Now()
	out.answers, out.late = sendAll(clients, requests, halfway)
	out.took = time.Since(began)
	out.opened = clients.opened
	if n := clients.close(); n > 0 {
		t.Errorf("%d bytes came on idle connections, where nobody had asked", n)
	}

	// A client has its answer a moment before the proxy has counted it.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out.metrics, err = ledger.Scrape(admin)
		if err != nil {
			t.Fatalf("%v; the end of the proxy's log:\n%s", err, tail(proxy.Output()))
		}
		if out.metrics.Sum("shapeproxy_requests_total") >= len(requests) || time.Now().After(deadline) {
			break
		}
	}
	if err := proxy.Stop(); err != nil {
		t.Errorf("the proxy did not end well after SIGTERM: %v\n%s", err, tail(proxy.Output()))
	}
	if err := nginx.Stop(); err != nil {
		t.Errorf("nginx: %v\n%s", err, tail(nginx.Output()))
	}
	out.proxy, err = ledger.ReadLog(proxy.Output())
	must(err)
	access, err := os.Open(filepath.Join(dir, "access.log"))
	must(err)
	defer access.Close()
	out.nginx, err = readNginxLog(access)
	must(err)
	return out
}

// sendAll sends every request at its time, and calls halfway, unless nil, when
// half are sent. late is the most that one was sent after its time.
func sendAll(clients *clientSide, requests []request, halfway func()) (answers []answer, late time.Duration) {
	answers = make([]answer, len(requests))
	var all sync.WaitGroup
	began := time.Now()
	for i, r := range requests {
		time.Sleep(r.at - time.Since(began))
		late = max(late, time.Since(began)-r.at)
		all.Go(func() { answers[i] = clients.send(r) })
		if i == len(requests)/2 && halfway != nil {
			halfway()
		}
	}
	all.Wait()
	return answers, late
}

// plant makes a file for each path that the logged server had, of the logged
// size up to maxFile. A path that is a folder's for one request and a file's
// for another keeps what came first.
func plant(root string, requests []request) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, r := range requests {
		raw, _, _ := strings.Cut(r.target, "?")
		name, err := url.PathUnescape(raw)
		if r.status != 200 || err != nil {
			continue
		}
		if strings.HasSuffix(name, "/") {
			name += "index.html"
		}
		file := filepath.Join(root, path.Clean("/"+name))
		if os.MkdirAll(filepath.Dir(file), 0o755) == nil {
			os.WriteFile(file, make([]byte, min(r.size, maxFile)), 0o644)
		}
	}
	return nil
}

func tail(s string) string {
	return s[max(0, len(s)-2000):]
}
