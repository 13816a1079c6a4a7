package nginxconf

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tufanbarisyildirim/gonginx/parser"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
)

var update = flag.Bool("update", false, "write the golden files anew")

// A configuration with most that people write: what comes out, and what is said
// of the rest. The result must load.
func TestTranslate(t *testing.T) {
	got, err := Translate("testdata/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range got.Notes {
		notes = append(notes, strings.ReplaceAll(strings.ReplaceAll(n, dir, "testdata"), "testdata/", ""))
	}
	golden(t, "testdata/nginx.toml", got.TOML)
	golden(t, "testdata/nginx.notes", strings.Join(notes, "\n")+"\n")
	loads(t, got.TOML)
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("not as %s has it (run with -update, and look at the difference):\n%s", file, got)
	}
}

// loads has the configuration read as run would; certificates need not be there.
func loads(t *testing.T, toml string) *config.Config {
	t.Helper()
	if i := strings.Index(toml, "[tls]"); i >= 0 {
		j := i + strings.Index(toml[i:], "\n[upstream")
		toml = toml[:i] + toml[j:]
	}
	file := filepath.Join(t.TempDir(), "shapeproxy.toml")
	if err := os.WriteFile(file, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("%v in\n%s", err, toml)
	}
	return c
}

func translated(t *testing.T, text string) *Translation {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nginx.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Translate(file)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The table for NGINX users: burst counts what is beyond the first request.
func TestBursts(t *testing.T) {
	for args, want := range map[string]string{
		"":                       "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nkey",
		"burst=5":                "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nqueue = 5\nkey",
		"burst=5 nodelay":        "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 6\nkey",
		"burst=5 delay=3":        "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 4\nqueue = 2\nkey",
		"burst=5 delay=5":        "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 6\nkey",
		"burst=200":              "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nqueue = 200\nmax_wait = \"1m40s\"\nkey",
		"burst=5 delay=0":        "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nqueue = 5\nkey",
		"nodelay":                "algorithm = \"leaky-bucket\"\nrate = \"2/s\"\nkey",
		"burst=5 nodelay what=2": "algorithm = \"token-bucket\"\nrate = \"2/s\"\nburst = 6\nkey",
	} {
		got := translated(t, `http { limit_req_zone $remote_addr zone=a:1m rate=2r/s;
			server { location / { limit_req zone=a `+args+`; proxy_pass http://127.0.0.1:1; } } }`)
		if !strings.Contains(got.TOML, want) {
			t.Errorf("%q becomes\n%s", args, got.TOML)
		}
		if strings.Contains(args, "what") != (len(got.Notes) > 0) {
			t.Errorf("%q: %q", args, got.Notes)
		}
		loads(t, got.TOML)
	}
}

// TestDecidesAsNGINX: what NGINX refuses at once by its own arithmetic, in
// thousandths of a request and whole milliseconds, the translation refuses at the
// same instants, and nothing else.
func TestDecidesAsNGINX(t *testing.T) {
	for args, burst := range map[string]int64{"": 0, "nodelay": 0, "burst=1 nodelay": 1, "burst=5 nodelay": 5, "burst=3 delay=3": 3} {
		for _, rate := range []int64{1, 2, 10, 50} {
			toml := translated(t, fmt.Sprintf(`http { limit_req_zone $remote_addr zone=a:1m rate=%dr/s;
				server { location / { limit_req zone=a %s; proxy_pass http://127.0.0.1:1; } } }`, rate, args)).TOML
			c := loads(t, toml).Limits[0]
			synctest.Test(t, func(t *testing.T) {
				l, err := limiter.NewSingle(limiter.Policy{Name: c.Name, Algorithm: c.Algorithm, Rate: c.Rate, Burst: c.Burst})
				if err != nil || c.Queue != 0 {
					t.Fatalf("%v in\n%s", err, toml)
				}
				random := rand.New(rand.NewPCG(uint64(rate), uint64(burst)))
				excess, last := int64(-1), time.Now()
				passed := 0
				for i := range 2000 {
					// Often at the very instant at which a request may pass again.
					gap := random.Int64N(1600 / rate)
					if i%3 == 0 {
						gap = random.Int64N(3) * 1000 / rate
					}
					time.Sleep(time.Duration(gap) * time.Millisecond)
					next := int64(0)
					if excess >= 0 {
						next = max(0, excess-rate*time.Since(last).Milliseconds()+1000)
					}
					allowed := next <= burst*1000
					if allowed {
						excess, last = next, time.Now()
						passed++
					}
					if got := l.Allow(); got != allowed {
						t.Fatalf("limit_req %s at %dr/s: request %d passes: %t, NGINX says %t", args, rate, i, got, allowed)
					}
				}
				if passed < 500 || passed > 1900 {
					t.Errorf("limit_req %s at %dr/s: %d of 2000 passed, which tells little", args, rate, passed)
				}
			})
		}
	}
}

// A server block alone, as conf.d has them.
func TestServerAlone(t *testing.T) {
	got := translated(t, `server { server_name _; location /a/ { location = /a/b { proxy_pass http://127.0.0.1:1; } proxy_pass http://127.0.0.1:2/; } }`)
	c := loads(t, got.TOML)
	if len(c.Routes) != 2 || c.Routes[0].Match != "/a/b" || c.Routes[1].StripPrefix != "/a" {
		t.Errorf("%+v", c.Routes)
	}
}

func TestNothingToForward(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nginx.conf")
	for text, want := range map[string]string{
		`http { server { location / { root /srv; } } }`:                  "has no proxy_pass",
		`http { server { location / { proxy_pass http://$backend; } } }`: "only a fixed http:// or https:// URL",
		`http { server {`: "unexpected eof",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Translate(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	text, err := os.ReadFile("testdata/nginx.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`server { listen; location { proxy_pass; } location = { proxy_pass http://a; limit_req; limit_conn a; } }`)
	f.Add(`limit_req_zone zone=a:9999999m rate=1r/s; upstream a { server; } server { location / { proxy_pass http://a/; limit_req zone=a burst=999999999999; } }`)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "lua") {
			return // blocks of Lua are formatted by a library of its own
		}
		c, err := parser.NewStringParser(text, parser.WithSkipValidDirectivesErr()).Parse()
		if err != nil {
			return
		}
		_, _ = translate(directives(c.Block, "nginx.conf"), "nginx.conf")
	})
}
