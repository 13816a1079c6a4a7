// Package deploy holds what operators install. Its tests hold that against a
// real run, by the tools that will read it.
package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shapeproxy/shapeproxy/bench/rig"
	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

var metric = regexp.MustCompile(`shapeproxy_[a-z_]+`)

// A dashboard or an alert over a metric that nobody exports stays silent for
// ever. The README's reference has all that there are.
func TestMetricsAreThere(t *testing.T) {
	reference, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"prometheus/shapeproxy.rules.yml", "grafana/shapeproxy.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := metric.FindAllString(string(text), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if base := strings.TrimSuffix(name, "_bucket"); !bytes.Contains(reference, []byte("`"+base+"`")) {
				t.Errorf("%s names %s, which the reference lacks", file, name)
			}
		}
	}
}

func promtool(t *testing.T, stdin io.Reader, args ...string) {
	t.Helper()
	cmd := exec.Command(testdeps.Need(t, "promtool"), args...)
	cmd.Stdin = stdin
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestAlertRules(t *testing.T) {
	promtool(t, nil, "check", "rules", "prometheus/shapeproxy.rules.yml")
	promtool(t, nil, "test", "rules", "prometheus/shapeproxy.rules_test.yml")
}

// Each expression of the dashboard must be one that Prometheus understands.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("grafana/shapeproxy.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "1m", "$instance", "a", "$limit", "a", "$upstream", "a", "$job", "a")
	rules := "groups:\n- name: board\n  rules:\n"
	n := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			rules += fmt.Sprintf("  - record: panel_%d\n    expr: %q\n", n, variables.Replace(target.Expr))
			n++
		}
	}
	if n < 15 {
		t.Errorf("%d expressions", n)
	}
	file := filepath.Join(t.TempDir(), "board.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, nil, "check", "rules", file)
}

// What a real run exports must please Prometheus's own check, and have what the
// alerts look at.
func TestMetricsOfARun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts the program")
	}
	dir := t.TempDir()
	program, err := rig.Build(dir, "github.com/shapeproxy/shapeproxy/cmd/shapeproxy")
	if err != nil {
		t.Fatal(err)
	}
	front, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := rig.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p, err := rig.Shapeproxy(dir, program, admin, fmt.Sprintf(`
[server]
listen = %q
[admin]
listen = %q
[upstream.u]
url = "http://127.0.0.1:1"
[limit.queue]
algorithm = "leaky-bucket"
rate = "10/s"
queue = 5
[limit.each]
algorithm = "token-bucket"
rate = "1/s"
key = "client-ip"
[[route]]
match = "/"
upstream = "u"
limits = ["each", "queue"]
`, front, admin))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for range 2 {
		res, err := http.Get("http://" + front + "/")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	res, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, bytes.NewReader(text), "check", "metrics")
	for _, series := range []string{
		`shapeproxy_limit_decisions_total{decision="rejected",limit="each",reason="limit"} 1`,
		`shapeproxy_queue_depth{limit="queue"} 0`, `shapeproxy_queue_capacity{limit="queue"} 5`,
		`shapeproxy_upstream_responses_total{code="error",upstream="u"} 1`,
		`shapeproxy_limit_keys_evicted_total{limit="each"} 0`, `shapeproxy_config_last_reload_successful 1`,
	} {
		if !bytes.Contains(text, []byte(series+"\n")) {
			t.Errorf("a run has no %s", series)
		}
	}
}

// What systemd itself has to say about the units.
func TestUnits(t *testing.T) {
	analyze := testdeps.Need(t, "systemd-analyze")
	dir := t.TempDir()
	for _, unit := range []string{"shapeproxy.service", "shapeproxy.socket"} {
		text, err := os.ReadFile("systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		// The program and its pages are not installed here.
		text = bytes.ReplaceAll(text, []byte("/usr/bin/shapeproxy"), []byte("/bin/true"))
		text = bytes.ReplaceAll(text, []byte("man:shapeproxy(1)"), []byte("https://github.com/shapeproxy/shapeproxy"))
		if err := os.WriteFile(filepath.Join(dir, unit), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, "shapeproxy.socket"), filepath.Join(dir, "shapeproxy.service"))
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "shapeproxy.") {
		t.Errorf("%v\n%s", err, out)
	}
}
