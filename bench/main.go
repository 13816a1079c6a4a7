//go:build linux

// Bench measures the proxy side by side with others, everything on loopback:
//
//	go run ./bench accuracy   departures from a queue, beside NGINX limit_req
//	go run ./bench busy       the same, with another route of the proxy under full load
//	go run ./bench rate       the long-run rate, beside NGINX limit_req
//	go run ./bench leave      places given back by those who leave, beside NGINX limit_req
//	go run ./bench memory     memory a waiting request, beside NGINX, HAProxy and net/http
//	go run ./bench idle       processor time while many wait, beside NGINX limit_req
//	go run ./bench cpu        processor time a request, beside NGINX and a plain httputil.ReverseProxy
//	go run ./bench resend     requests that a transport sends again by itself
//	go run ./bench hostile    what honest clients notice of hostile ones
//	go run ./bench obey       an upstream whose limit nobody knows, beside clients who retry and NGINX
//
// Rounds are interleaved, so that what disturbs the machine disturbs all sides;
// the tables hold medians. It needs Linux, nginx, for busy and cpu wrk, and for
// memory 20,000 file descriptors.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

// measurements are what can be asked for, and how many rounds it takes by
// default.
var measurements = []struct {
	name   string
	rounds int
	run    func(b *bench, rounds int) error
}{
	{"accuracy", 7, accuracy},
	{"busy", 5, busy},
	{"rate", 3, rate},
	{"leave", 1, leave},
	{"memory", 3, memory},
	{"idle", 3, idle},
	{"cpu", 5, cpu},
	{"resend", 1, resend},
	{"hostile", 1, hostile},
	{"obey", 1, obey},
}

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 0, "how often each side is measured; 0: as often as the tables in README.md say")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: go run ./bench [-rounds N] MEASUREMENT, one of")
		for _, m := range measurements {
			fmt.Fprint(flag.CommandLine.Output(), " ", m.name)
		}
		fmt.Fprintln(flag.CommandLine.Output())
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Arg(0), *rounds); err != nil {
		log.Fatal(err)
	}
}

func run(what string, rounds int) error {
	switch what {
	case plainProxy:
		return servePlain(flag.Arg(1), flag.Arg(2))
	case blockingHandler:
		return serveBlocking(flag.Arg(1))
	}
	for _, m := range measurements {
		if m.name == what {
			return inFolder(m.run, cmp.Or(rounds, m.rounds))
		}
	}
	flag.Usage()
	os.Exit(2)
	return nil
}

// A bench is one measurement's surroundings: a folder of its own, the proxy's
// program, and what has to be stopped at the end.
type bench struct {
	dir     string
	program string
	stops   []func() error
}

func inFolder(measure func(*bench, int) error, rounds int) error {
	dir, err := os.MkdirTemp("", "shapeproxy-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{dir: dir}
	defer func() {
		for _, stop := range slices.Backward(b.stops) {
			stop()
		}
	}()
	if b.program, err = rig.Build(dir, "github.com/shapeproxy/shapeproxy/cmd/shapeproxy"); err != nil {
		return err
	}
	return measure(b, rounds)
}

// folder makes a folder for one program's files.
func (b *bench) folder(name string) (string, error) {
	dir, err := os.MkdirTemp(b.dir, name+"-")
	return dir, err
}

// nginx runs nginx with a server on a free address; the directives take that
// address as their first %s.
func (b *bench) nginx(directives func(listen string) string) (addr string, p *rig.Process, err error) {
	if addr, err = rig.FreeAddr(); err != nil {
		return "", nil, err
	}
	dir, err := b.folder("nginx")
	if err != nil {
		return "", nil, err
	}
	if p, err = rig.Nginx(dir, addr, "access_log off;\n"+directives(addr)); err != nil {
		return "", nil, err
	}
	b.stops = append(b.stops, p.Stop)
	return addr, p, nil
}

// shapeproxy runs the proxy on a free address, its access log off as nginx's
// is, with the limits and routes given.
func (b *bench) shapeproxy(upstream, limits string) (addr string, p *rig.Process, err error) {
	return b.configured("access = false", upstream, limits)
}

// shapeproxyLogging has it write its access log, in JSON, to standard error.
func (b *bench) shapeproxyLogging(upstream, limits string) (addr string, p *rig.Process, err error) {
	return b.configured(`format = "json"`, upstream, limits)
}

func (b *bench) configured(log, upstream, limits string) (addr string, p *rig.Process, err error) {
	if addr, err = rig.FreeAddr(); err != nil {
		return "", nil, err
	}
	admin, err := rig.FreeAddr()
	if err != nil {
		return "", nil, err
	}
	dir, err := b.folder("shapeproxy")
	if err != nil {
		return "", nil, err
	}
	config := fmt.Sprintf(`
[server]
listen = %q
[admin]
listen = %q
[log]
%s
[upstream.up]
url = "http://%s"
%s`, addr, admin, log, upstream, limits)
	if p, err = rig.Shapeproxy(dir, b.program, admin, config); err != nil {
		return "", nil, err
	}
	b.stops = append(b.stops, p.Stop)
	return addr, p, nil
}

// again runs this program once more, as one of its subcommands, which listens
// on the address that comes first.
func (b *bench) again(subcommand string, args ...string) (addr string, p *rig.Process, err error) {
	if addr, err = rig.FreeAddr(); err != nil {
		return "", nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	if p, err = rig.Start(b.dir, addr, self, append([]string{subcommand, addr}, args...)...); err != nil {
		return "", nil, err
	}
	b.stops = append(b.stops, p.Stop)
	return addr, p, nil
}

// quantile is the value below which the share q of the sorted values lies.
func quantile[T cmp.Ordered](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func median[T cmp.Ordered](values []T) T { return quantile(values, 0.5) }

// table prints rows as Markdown.
func table(rows ...[]string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	for i, row := range rows {
		for _, cell := range row {
			fmt.Fprintf(w, "| %s\t", cell)
		}
		fmt.Fprintln(w, "|")
		if i == 0 {
			for range row {
				fmt.Fprint(w, "| ---\t")
			}
			fmt.Fprintln(w, "|")
		}
	}
	w.Flush()
}
