package ledger

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// full says that all scenarios are to be run, at their full length.
var full = os.Getenv("E2E") == "full"

// A scenario is run in plain go test too if it is quick.
type scenario struct {
	name  string
	quick bool
	run   func(*testing.T)
}

func TestLedger(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of real time")
	}
	began := time.Now()
	rows.cells = nil
	// The long ones, of which each does little, go side by side.
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range scenarios {
			if full || s.quick {
				t.Run(s.name, func(t *testing.T) {
					names.Store(t.Name(), s.name)
					s.run(t)
				})
			}
		}
	})
	t.Logf("in %.0f s\n%s", time.Since(began).Seconds(), table())
}

var names sync.Map // of scenarios by those of tests, in which spaces are underscores

var built struct {
	once    sync.Once
	program string
	err     error
}

// program is the proxy, built from this tree.
func program(t *testing.T) string {
	built.once.Do(func() {
		var dir string
		if dir, built.err = os.MkdirTemp("", "shapeproxy-ledger-"); built.err == nil {
			built.program, built.err = rig.Build(dir, "github.com/shapeproxy/shapeproxy/cmd/shapeproxy")
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.program
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.program != "" {
		os.Remove(built.program)
		os.Remove(strings.TrimSuffix(built.program, "/shapeproxy"))
	}
	os.Exit(code)
}

var rows struct {
	sync.Mutex
	cells [][]string
}

// report adds a row to the table.
func report(t *testing.T, f ledger.Findings, stalls *ledger.Stalls) {
	t.Logf("%+v; %v", f, stalls)
	name, _ := names.Load(t.Name())
	count := func(n int) string { return fmt.Sprint(n) }
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1000) }
	share := func(x float64) string { return fmt.Sprintf("%.3f", 100*max(0, x)) }
	rows.Lock()
	defer rows.Unlock()
	rows.cells = append(rows.cells, []string{
		name.(string), count(f.Requests), count(f.Served), count(f.Refused), count(f.Left), count(f.Arrived),
		ms(f.Departures), ms(f.Late), ms(max(0, f.Idle)), share(f.Behind), share(f.Net), ms(stalls.Longest()), count(len(f.Problems)),
	})
}

func table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	head := []string{
		"", "requests", "answered", "refused", "left", "arrived", "slack used, ms", "arrived late, ms", "idle, ms",
		"rate short, %", "net, %", "longest stall, ms", "problems",
	}
	fmt.Fprintf(w, "| %s\t|\n", strings.Join(head, "\t| "))
	fmt.Fprintln(w, strings.Repeat("| ---\t", len(head))+"|")
	for _, row := range rows.cells {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(row, "\t| "))
	}
	w.Flush()
	return b.String()
}
