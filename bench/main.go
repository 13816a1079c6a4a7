// Bench measures the proxy side by side with others, everything on loopback:
//
//	go run ./bench accuracy   departures from a queue, beside NGINX limit_req
//	go run ./bench cpu        processor time a request, beside NGINX and a plain httputil.ReverseProxy
//	go run ./bench resend     requests that a transport sends again by itself
//
// Rounds are interleaved, so that what disturbs the machine disturbs all sides;
// the tables hold medians. It needs Linux, nginx and, for cpu, wrk.
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

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 5, "how often each side is measured")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./bench [-rounds N] accuracy | cpu | resend")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "accuracy":
		err = inFolder(accuracy, *rounds)
	case "cpu":
		err = inFolder(cpu, *rounds)
	case "resend":
		err = inFolder(resend, 1)
	case plainProxy:
		err = servePlain(flag.Arg(1), flag.Arg(2))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
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
access = false
[upstream.up]
url = "http://%s"
%s`, addr, admin, upstream, limits)
	if p, err = rig.Shapeproxy(dir, b.program, admin, config); err != nil {
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
