package plot

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/replay"
)

// The guide's pictures: the same two minutes through each algorithm. Whatever
// it is, the upstream can take ten a second.
var choices = []struct{ name, limit string }{
	{"queue", `algorithm = "leaky-bucket"
rate = "10/s"
queue = 60
max_wait = "10s"`},
	{"fair", `algorithm = "leaky-bucket"
rate = "10/s"
queue = 60
max_wait = "10s"
fair_by = "client-ip"`},
	{"bucket", `algorithm = "token-bucket"
rate = "10/s"
burst = 50`},
	{"bucket-queue", `algorithm = "token-bucket"
rate = "10/s"
burst = 20
queue = 60
max_wait = "10s"`},
	{"window", `algorithm = "fixed-window"
limit = 100
window = "10s"`},
	{"log", `algorithm = "sliding-window-log"
limit = 100
window = "10s"`},
	{"counter", `algorithm = "sliding-window-counter"
limit = 100
window = "10s"`},
	{"concurrency", `algorithm = "concurrency"
max_in_flight = 8
queue = 60
max_wait = "10s"`},
}

const (
	choosingDir  = "../choosing/"
	choosingPage = "../choosing.md"
	// Seconds in which the upstream takes an answer, for the places.
	serviceTime = 800 * time.Millisecond
)

// traffic is two minutes: ten calm clients, a crowd at once, one client that
// pours, and a crowd on either side of the end of a window.
func traffic() string {
	type request struct {
		at     time.Duration
		client int
	}
	var all []request
	evenly := func(from, to time.Duration, n int, client func(i int) int) {
		for i := range n {
			all = append(all, request{from + (to-from)*time.Duration(i)/time.Duration(n), client(i)})
		}
	}
	each := func(i int) int { return i%10 + 1 }
	evenly(0, 120*time.Second, 720, each)
	evenly(20*time.Second, 20*time.Second+300*time.Millisecond, 80, each)
	evenly(45*time.Second, 75*time.Second, 30*25, func(int) int { return 99 })
	evenly(99*time.Second, 100*time.Second, 80, each)
	evenly(100*time.Second, 101*time.Second, 80, each)
	slices.SortStableFunc(all, func(a, b request) int { return int(a.at - b.at) })

	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"time", "client", "method", "path"}) // to memory
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, r := range all {
		at := begin.Add(r.at)
		_ = w.Write([]string{fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond()), fmt.Sprintf("198.51.100.%d", r.client), "GET", "/"})
	}
	w.Flush()
	return b.String()
}

func simulated(t *testing.T, limit, log string, o replay.Options) (*replay.Result, *replay.Report) {
	t.Helper()
	text := "[upstream.u]\nurl = \"http://127.0.0.1:1\"\n[limit.l]\n" + limit + "\n[limit.who]\nalgorithm = \"token-bucket\"\nrate = \"1/s\"\nkey = \"client-ip\"\ndry_run = true\n" +
		"[[route]]\nmatch = \"/\"\nupstream = \"u\"\nlimits = [\"l\", \"who\"]\n"
	c, err := config.Parse("guide.toml", []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	l, err := replay.Read([]replay.Source{{Name: "log", Reader: strings.NewReader(log)}}, o, c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r, r.Report(3)
}

func TestChoosingPictures(t *testing.T) {
	log := traffic()
	var rows []string
	for _, c := range choices {
		r, report := simulated(t, c.limit, log, replay.Options{ServiceTime: serviceTime})
		svg := choosingSVG(r.Timeline("l"))
		l, up := report.Limits["l"], report.Upstreams["u"]
		rejected := 0
		for _, n := range l.Rejected {
			rejected += n
		}
		rows = append(rows, fmt.Sprintf("| [%s](#%s) | %d | %d | %s | %s | %d |", c.name, c.name,
			rejected, l.Queued, seconds(l.Wait.P50), seconds(l.Wait.Max), up.PeakSecond))
		file := choosingDir + c.name + ".svg"
		if *update {
			if err := os.MkdirAll(choosingDir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(committed) != svg {
			t.Errorf("%s is not what simulate says now; go test ./docs/plot -update draws it anew", file)
		}
	}
	page(t, rows)
	page(t, realLog(t))
}

// realLog are the rows of the guide's table over a real access log.
func realLog(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../bench/e2e/testdata/combined-10k.log.gz")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, c := range []struct{ name, limit string }{
		{"leaky bucket, `2/s`, `queue = 30`", "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nqueue = 30"},
		{"token bucket, `2/s`, `burst = 10`", "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 10"},
		{"the same with `queue = 30`", "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 10\nqueue = 30"},
		{"fixed window, 20 in 10 s", "algorithm = \"fixed-window\"\nlimit = 20\nwindow = \"10s\""},
		{"sliding log, 20 in 10 s", "algorithm = \"sliding-window-log\"\nlimit = 20\nwindow = \"10s\""},
		{"sliding counter, 20 in 10 s", "algorithm = \"sliding-window-counter\"\nlimit = 20\nwindow = \"10s\""},
	} {
		_, report := simulated(t, c.limit, string(text), replay.Options{})
		l, up := report.Limits["l"], report.Upstreams["u"]
		rejected := 0
		for _, n := range l.Rejected {
			rejected += n
		}
		rows = append(rows, fmt.Sprintf("| %s | %d | %d | %s | %s | %d |", c.name, rejected, l.Queued, seconds(l.Wait.P50), seconds(l.Wait.Max), up.PeakSecond))
	}
	return rows
}

// page holds the tables of the guide to what simulate says.
func page(t *testing.T, rows []string) {
	t.Helper()
	text, err := os.ReadFile(choosingPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if !strings.Contains(string(text), row+"\n") {
			t.Errorf("the guide lacks the row\n%s", row)
		}
	}
}

func seconds(f float64) string {
	if f == 0 {
		return "0"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " s"
}

// choosingSVG draws what clients feel above what the upstream feels.
func choosingSVG(l replay.Timeline) string {
	const height, most = 285, 100.0 // requests a second at the top of the clients' band
	above, below := band{56, 150}, band{190, 250}
	d := &drawing{length: 120 * time.Second}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		width, height, width, height, "requests a second over two minutes: above what clients ask and are refused, with the longest wait; below what the upstream gets")
	d.WriteString(style)
	d.add(`<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" class="ground"/>`, width-1, height-1)
	d.text(24, 32, "name", "What clients feel")
	d.text(left+40, 32, "note", "asked (violet), refused (red) a second; line: the longest wait, up to 12 s")
	d.text(24, 180, "name", "What the upstream feels")
	d.text(left+80, 180, "note", "requests a second; dashed: the ten that it can take")
	for at := time.Duration(0); at <= d.length; at += 20 * time.Second {
		d.line(d.x(at), above.top, d.x(at), below.bottom, "grid")
		d.text(d.x(at), below.bottom+18, "mid note", "%d s", at/time.Second)
	}
	bar := func(b band, i int, value, top float64, class string) {
		h := (b.bottom - b.top) * min(value, top) / top
		at := time.Duration(i) * time.Second
		d.rect(d.x(at)+0.4, b.bottom-h, d.x(time.Second)-d.x(0)-0.8, h, class)
	}
	var waits strings.Builder
	for i := range l.Time {
		if i >= 120 {
			break
		}
		if l.Offered[i] > 0 {
			bar(above, i, l.Offered[i], most, "in")
		}
		if l.Rejected[i] > 0 {
			bar(above, i, l.Rejected[i], most, "no")
		}
		if l.Released[i] > 0 {
			bar(below, i, l.Released[i], most, "out")
		}
		op := "L"
		if i == 0 {
			op = "M"
		}
		fmt.Fprintf(&waits, "%s%.1f %.1f", op, d.x(time.Duration(i)*time.Second+time.Second/2), above.bottom-(above.bottom-above.top)*min(l.Wait[i], 12)/12)
	}
	d.add(`<path d="%s" fill="none" stroke="var(--queue)" stroke-width="2"/>`, waits.String())
	y := below.bottom - (below.bottom-below.top)*10/most
	d.line(left, y, right, y, "full")
	for _, b := range []band{above, below} {
		d.line(left, b.bottom, right, b.bottom, "axis")
		d.text(left-8, b.bottom+4, "end note", "0")
		d.text(left-8, b.top+4, "end note", "%.0f", most)
	}
	d.WriteString("</svg>\n")
	return d.String()
}
