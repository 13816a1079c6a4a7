package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
)

const site = `
[upstream.u]
url = "http://127.0.0.1:1"
[[route]]
match = "/"
upstream = "u"
`

func load(t testing.TB, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shapeproxy.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lines is a CSV log of n requests at these seconds past the hour.
func lines(seconds ...float64) string {
	var b strings.Builder
	b.WriteString("time,client,method,path\n")
	for _, s := range seconds {
		fmt.Fprintf(&b, "%.3f,198.51.100.7,GET,/\n", 1772366400+s)
	}
	return b.String()
}

func read(t testing.TB, log string, o Options, configs ...*config.Config) *Log {
	t.Helper()
	l, err := Read([]Source{{"log", strings.NewReader(log)}}, o, configs...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func simulate(t testing.TB, log string, o Options, configs ...*config.Config) *Report {
	t.Helper()
	r, err := read(t, log, o, configs...).Run(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.Report(3)
}

func TestLimits(t *testing.T) {
	at := func(n int) []float64 { return make([]float64, n) }
	for _, test := range []struct {
		name, limit string
		seconds     []float64
		want        LimitReport
	}{
		{"queue", `algorithm = "leaky-bucket"
			rate = "1/s"
			queue = 5
			max_wait = "60s"`, at(20),
			LimitReport{Offered: 20, Admitted: 1, Queued: 5, Rejected: map[string]int{"queue_full": 14}, Wait: Wait{2, 5, 5, 5}, PeakDepth: 5, Keys: 1}},
		{"max_wait", `algorithm = "leaky-bucket"
			rate = "1/s"
			queue = 50
			max_wait = "2s"`, at(20),
			LimitReport{Offered: 20, Admitted: 1, Queued: 2, Rejected: map[string]int{"max_wait": 17}, Wait: Wait{1, 2, 2, 2}, PeakDepth: 2, Keys: 1}},
		{"burst, then queue", `algorithm = "token-bucket"
			rate = "1/s"
			burst = 3
			queue = 1`, at(5),
			LimitReport{Offered: 5, Admitted: 3, Queued: 1, Rejected: map[string]int{"queue_full": 1}, Wait: Wait{0, 1, 1, 1}, PeakDepth: 1, Keys: 1}},
		{"window", `algorithm = "fixed-window"
			limit = 2
			window = "10s"`, []float64{8, 9, 9.5, 10, 11, 12},
			LimitReport{Offered: 6, Admitted: 4, Rejected: map[string]int{"limit": 2}, Keys: 1}},
		{"queue in dry run", `algorithm = "leaky-bucket"
			rate = "1/s"
			queue = 2
			dry_run = true`, at(5),
			LimitReport{Offered: 5, Admitted: 1, Queued: 2, Rejected: map[string]int{"queue_full": 2}, Wait: Wait{1, 2, 2, 2}, PeakDepth: 2, Keys: 1, DryRun: true}},
		{"places", `algorithm = "concurrency"
			max_in_flight = 2`, []float64{0, 0.5, 0.6, 1, 1.5},
			LimitReport{Offered: 5, Admitted: 4, Rejected: map[string]int{"limit": 1}, Keys: 1}},
		{"places that are waited for", `algorithm = "concurrency"
			max_in_flight = 1
			queue = 2`, []float64{0, 0, 0, 0},
			LimitReport{Offered: 4, Admitted: 1, Queued: 2, Rejected: map[string]int{"queue_full": 1}, Wait: Wait{1, 2, 2, 2}, PeakDepth: 2, Keys: 1}},
		{"by client", `algorithm = "token-bucket"
			rate = "1/h"
			key = "client-ip"`, at(3),
			LimitReport{Offered: 3, Admitted: 1, Rejected: map[string]int{"limit": 2}, Keys: 1, Busiest: []KeyReport{{"198.51.100.7", 3, 2}}}},
		{"a key that is missing", `algorithm = "token-bucket"
			rate = "1/h"
			missing_key = "reject"
			key = "header:X-Api-Key"`, at(3),
			LimitReport{Offered: 3, Rejected: map[string]int{"missing_key": 3}, Keys: 1, Busiest: []KeyReport{{"", 3, 3}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := load(t, "[limit.l]\n"+test.limit+site+"limits = [\"l\"]\n")
			got := simulate(t, lines(test.seconds...), Options{ServiceTime: time.Second}, c).Limits["l"]
			if test.want.Rejected == nil {
				test.want.Rejected = map[string]int{}
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// Refused by the queue, a request is charged to no limit before it.
func TestGivesBack(t *testing.T) {
	c := load(t, `[limit.first]
algorithm = "fixed-window"
limit = 3
window = "1h"
[limit.queue]
algorithm = "leaky-bucket"
rate = "1/s"
queue = 1`+site+`limits = ["first", "queue"]`)
	got := simulate(t, lines(0, 0, 0, 0, 0, 10), Options{}, c)
	if l := got.Limits["first"]; l.Admitted != 6 {
		t.Errorf("%+v: three that the queue refuses are charged", l)
	}
	if u := got.Upstreams["u"]; u != (UpstreamReport{Requests: 3, PeakSecond: 1}) {
		t.Errorf("%+v", u)
	}
	if r := got.Routes["/"]; r.Forwarded != 3 || r.Rejected["queue_full"] != 3 {
		t.Errorf("%+v", r)
	}
}

func TestSpread(t *testing.T) {
	c := load(t, "[limit.l]\nalgorithm = \"leaky-bucket\"\nrate = \"2/s\"\nqueue = 9"+site+"limits = [\"l\"]\n")
	log := strings.ReplaceAll(lines(3, 1, 1, 3), ".000", "") // whole seconds, not in order
	for spread, queued := range map[Spread]int{Even: 0, Start: 2} {
		if got := simulate(t, log, Options{Spread: spread}, c); got.Limits["l"].Queued != queued {
			t.Errorf("%s: %+v", spread, got.Limits["l"])
		} else if len(got.Notes) != 2 {
			t.Errorf("%s: notes %q", spread, got.Notes)
		}
	}
	a, b := read(t, log, Options{Spread: Random, Seed: 7}, c), read(t, log, Options{Spread: Random, Seed: 7}, c)
	for i := range a.arrivals[0] {
		if a.arrivals[0][i].at != b.arrivals[0][i].at {
			t.Error("the same seed gives another trace")
		}
	}
	if _, err := Read([]Source{{"log", strings.NewReader(log)}}, Options{Spread: "even-ish"}, c); err == nil {
		t.Error("an unknown spread is taken")
	}
}

func TestRoutesAndNotes(t *testing.T) {
	c := load(t, `[limit.l]
algorithm = "token-bucket"
rate = "1/s"
key = "header:X-Api-Key"
[upstream.u]
url = "http://127.0.0.1:1"
[[route]]
match = "GET api.example.com/a/{id}"
upstream = "u"
limits = ["l"]`)
	log := "time,client,method,path\n" +
		"1772366400.5,198.51.100.7,GET,/a/1\n1772366400.5,198.51.100.7,POST,/a/1\n1772366400.5,198.51.100.7,GET,/b\n1772366400.5,198.51.100.7,GET,/a/%zz\n"
	got := simulate(t, log, Options{Host: "api.example.com"}, c)
	if l := got.Log; l.NoRoute != 2 || l.Malformed != 1 {
		t.Errorf("%+v", l)
	}
	text := strings.Join(got.Notes, "\n")
	for _, want := range []string{"2 requests match no route", "1 requests would get 400", `counts by header:X-Api-Key, which the log does not have`, "--host"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing about %q in\n%s", want, text)
		}
	}
}

// What is searched for is replayed at its upper bound, and that is said.
func TestSearchedForIsReplayedAtItsBound(t *testing.T) {
	c := load(t, "[limit.l]\nalgorithm = \"leaky-bucket\"\nrate = \"auto\"\nmin_rate = \"1/m\"\nmax_rate = \"2/s\"\nqueue = 9\nmax_in_flight = \"auto\""+site+"limits = [\"l\"]\n")
	r := simulate(t, lines(0, 0, 0), Options{}, c)
	if l := r.Limits["l"]; l.Wait.Max != 1 {
		t.Errorf("the last of three waits %v s at 2/s", l.Wait.Max)
	}
	text := strings.Join(r.Notes, "\n")
	for _, want := range []string{`it goes at max_rate = "2/s"`, "it is max_in_flight_limit = 1000"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing about %q in\n%s", want, text)
		}
	}
}

func TestCompareAndWrite(t *testing.T) {
	text := func(rate string) string {
		return "[limit.l]\nalgorithm = \"leaky-bucket\"\nrate = \"" + rate + "\"\nqueue = 9\nkey = \"client-ip\"" + site + "limits = [\"l\"]\n"
	}
	l := read(t, lines(0, 0, 0), Options{}, load(t, text("1/s")), load(t, text("2/s")))
	var reports [2]*Report
	for i := range reports {
		r, err := l.Run(i, nil)
		if err != nil {
			t.Fatal(err)
		}
		reports[i] = r.Report(3)
	}
	r := reports[0]
	r.Compare = reports[1]
	if a, b := r.Limits["l"].Wait.Max, r.Compare.Limits["l"].Wait.Max; a != 2 || b != 1 {
		t.Errorf("waits %v and %v", a, b)
	}
	var out bytes.Buffer
	if err := r.Text(&out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "A: l ") || !strings.Contains(s, "B: l ") {
		t.Errorf("no two sides in\n%s", s)
	}
	out.Reset()
	if err := r.HTML(&out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); strings.Contains(s, "ZgotmplZ") || strings.Contains(s, "src=") || !strings.Contains(s, "A: l") {
		t.Error("the page is not whole")
	}
	text2, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Limits map[string]struct {
			Offered  int
			Rejected map[string]int
			Wait     map[string]float64
			Depth    int `json:"peak_depth"`
		}
	}
	if err := json.Unmarshal(text2, &back); err != nil || back.Limits["l"].Offered != 3 || back.Limits["l"].Wait["p99"] != 2 || back.Limits["l"].Depth != 2 || back.Limits["l"].Rejected == nil {
		t.Errorf("%+v %v", back, err)
	}
}

func TestSuggest(t *testing.T) {
	steady := make([]float64, 40) // twice as fast as the limit for 20 s
	for i := range steady {
		steady[i] = float64(i) / 2
	}
	for _, test := range []struct {
		name, limit string
		aim         Aim
		want        []string
	}{
		{"queue", "algorithm = \"leaky-bucket\"\nrate = \"1/s\"\nqueue = 2\nmax_wait = \"10s\"", Aim{}, []string{
			`as it is: rate = "1/s", queue = 2, max_wait = "10s": 18 of 40`,
			`the smallest queue that refuses fewest: rate = "1/s", queue = 10, max_wait = "10s": 10 of 40`,
			`the lowest rate that refuses nobody: rate = "1.4/s", queue = 12, max_wait = "10s": 0 of 40`,
		}},
		{"queue, for a rate and a wait", "algorithm = \"leaky-bucket\"\nrate = \"1/s\"\nqueue = 2\nmax_wait = \"10s\"",
			Aim{Rate: limiter.Rate{Count: 2, Per: time.Second}, Wait: time.Second}, []string{
				`as it is: rate = "1/s", queue = 2, max_wait = "10s": 18 of 40`,
				`the smallest queue that refuses fewest: rate = "2/s", queue = 1, max_wait = "1s": 0 of 40`,
			}},
		{"window", "algorithm = \"sliding-window-log\"\nlimit = 5\nwindow = \"5s\"", Aim{}, []string{
			`as it is: limit = 5: 20 of 40`, `the smallest limit that refuses nobody: limit = 10: 0 of 40`,
		}},
		{"bucket", "algorithm = \"token-bucket\"\nrate = \"1/s\"\nburst = 2", Aim{}, []string{
			`as it is: rate = "1/s", burst = 2: 19 of 40`,
			`the smallest burst that refuses nobody: rate = "1/s", burst = 21: 0 of 40`,
			`the lowest rate that refuses nobody: rate = "2/s", burst = 2: 0 of 40`,
		}},
		{"places", "algorithm = \"concurrency\"\nmax_in_flight = 1", Aim{}, []string{
			`as it is: max_in_flight = 1: 20 of 40`, `the fewest places that refuse nobody: max_in_flight = 2: 0 of 40`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := load(t, "[limit.l]\n"+test.limit+site+"limits = [\"l\"]\n")
			l := read(t, lines(steady...), Options{ServiceTime: 900 * time.Millisecond}, c)
			all, err := l.Suggest(0, test.aim, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range all {
				got = append(got, fmt.Sprintf("%s: %s: %d of %d", s.What, s.Write(), s.Rejected, s.Offered))
			}
			if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// Health checks and Redis are for who runs the configuration: trying it on a log
// connects to nobody.
func TestTalksToNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came := make(chan struct{}, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
			came <- struct{}{}
		}
	}()
	at := l.Addr().String()
	c := load(t, "[redis]\naddress = [\""+at+"\"]\n[limit.l]\nalgorithm = \"token-bucket\"\nrate = \"1/s\"\nstore = \"redis\"\n"+
		"[upstream.u]\nurl = \"http://"+at+"\"\nhealth = { path = \"/\", interval = \"100ms\" }\n[[route]]\nmatch = \"/\"\nupstream = \"u\"\nlimits = [\"l\"]\n")
	if got := simulate(t, lines(0, 0, 0), Options{}, c).Limits["l"]; got.Admitted != 1 || got.Rejected["limit"] != 2 {
		t.Errorf("%+v", got)
	}
	select {
	case <-came:
		t.Error("something connects")
	case <-time.After(200 * time.Millisecond):
	}
}
