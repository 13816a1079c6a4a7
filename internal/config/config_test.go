package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestBad holds every file of testdata/bad to the exact problems that its
// comments announce, case 3 and case 66 of other programs' faults among them.
func TestBad(t *testing.T) {
	dir := files(t)
	list, err := filepath.Glob("testdata/bad/*.toml")
	if err != nil || len(list) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range list {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			want := comments(t, file, "want")
			if len(want) == 0 {
				t.Error("the file does not say what is wrong with it")
			}
			c, err := Load(file, environment(dir))
			if c != nil || err == nil {
				t.Fatal("it loads")
			}
			problems, ok := err.(Problems)
			if !ok {
				t.Fatalf("%T is not a list of problems", err)
			}
			check(t, file, problems, want)
			for _, hidden := range []string{secret, "hunter2", "Zq9", "wildcard7", dir, "geheim"} {
				if strings.Contains(err.Error(), hidden) {
					t.Errorf("the problems tell %q:\n%s", hidden, err)
				}
			}
		})
	}
}

// TestGood loads every file of testdata/good, with just the warnings that its
// comments announce.
func TestGood(t *testing.T) {
	dir := files(t)
	list, err := filepath.Glob("testdata/good/*.toml")
	if err != nil || len(list) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range list {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			c, err := Load(file, environment(dir))
			if err != nil {
				t.Fatal(err)
			}
			check(t, file, c.Warnings, comments(t, file, "warn"))
			// What loads can be explained, and no secret comes out with it.
			for _, hidden := range []string{"Bearer", "a-token"} {
				if strings.Contains(c.Explain(), hidden) {
					t.Errorf("the explanation tells %q", hidden)
				}
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	got := load(t, "testdata/good/smallest.toml")
	want := &Config{
		File: "testdata/good/smallest.toml",
		Server: Server{
			Listen:            []string{":8080"},
			IPv6Prefix:        64,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    65536,
			Bounds:            defaultBounds(),
			StateInterval:     5 * time.Second,
			ShutdownTimeout:   30 * time.Second,
			RateLimitHeaders:  []string{"ietf", "ietf-03"},
		},
		Admin:   Admin{Listen: "127.0.0.1:9090"},
		Log:     Log{Level: "info", Format: "text", Access: true},
		Redis:   Redis{Address: []string{"127.0.0.1:6379"}, Prefix: "shapeproxy", Timeout: 50 * time.Millisecond},
		Tracing: Tracing{Sample: 1},
		Upstreams: []Upstream{{
			Name:                  "app",
			Scheme:                "http",
			Places:                []Place{{Address: "127.0.0.1:8081", Host: "127.0.0.1:8081"}},
			SendHost:              "upstream",
			ResolveInterval:       30 * time.Second,
			DialTimeout:           5 * time.Second,
			TLSHandshakeTimeout:   5 * time.Second,
			BodyTimeout:           5 * time.Minute,
			ResponseHeaderTimeout: time.Minute,
			MaxIdleConns:          256,
			IdleConnTimeout:       90 * time.Second,
			Health:                Health{MaxFails: 3, FailTimeout: 10 * time.Second, Interval: 5 * time.Second, Timeout: 2 * time.Second, Fails: 3, Passes: 2},
			Obey:                  Obey{On: true, Trust: true, MaxPause: 5 * time.Minute},
			Retry:                 Retry{Most: 2, Of: "idempotent", Body: 64 << 10},
		}},
		Routes: []Route{{Match: "/", Pattern: "/", Upstream: "app", Priority: "normal"}},
	}
	got.source = source{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestEveryField(t *testing.T) {
	c := load(t, "testdata/good/everything.toml")
	key := func(words ...string) identity.Key {
		k, err := identity.ParseKey(words)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	trust := func(list ...string) identity.Trust {
		s, err := identity.ParseTrust(list)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if want := (Server{
		Listen:            []string{":8080", "[::1]:8443", "unix:/run/shapeproxy.sock"},
		TrustedProxies:    trust("10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "unix:"),
		IPv6Prefix:        56,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		Bounds: Bounds{
			MaxConnections: 1000, MaxPerClient: 20, ProxyProtocol: trust("10.0.0.1", "unix:"), MaxHeaders: 64,
			BodyTimeout: 5 * time.Second, MinBodyRate: 1024, SendTimeout: 20 * time.Second, MinSendRate: 512,
			MaxStreams: 250, MaxResets: 50, MaxWaiting: 30, WebSocketIdleTime: 10 * time.Minute,
		},
		StateFile:        "/var/lib/shapeproxy/state",
		StateInterval:    time.Minute,
		ShutdownTimeout:  24 * time.Hour,
		RateLimitHeaders: []string{"ietf", "ietf-03", "x-ratelimit", "github", "shopify"},
	}); !reflect.DeepEqual(c.Server, want) {
		t.Errorf("got  %+v\nwant %+v", c.Server, want)
	}
	if want := (Admin{Listen: "0.0.0.0:9090", Token: "a-token", Hosts: []string{"proxy.example.com"}, Pprof: true}); !reflect.DeepEqual(c.Admin, want) {
		t.Errorf("got  %+v\nwant %+v", c.Admin, want)
	}
	if want := (Log{Level: "debug", Format: "json"}); c.Log != want {
		t.Errorf("got %+v, want %+v", c.Log, want)
	}
	if n := len(c.TLS.Certificates); n != 1 || !strings.HasSuffix(c.TLS.Certificates[0].Cert, "/valid.pem") || !strings.HasSuffix(c.TLS.Certificates[0].Key, "/valid.key") {
		t.Errorf("certificates: %+v", c.TLS.Certificates)
	}
	c.TLS.Certificates = nil
	if want := (TLS{ClientCA: c.TLS.ClientCA, ClientAuth: "optional", HTTPPort: 8081, ACME: ACME{
		Domains: []string{"api.example.com", "b.example.com"}, Email: "ops@example.com",
		CA: "https://acme.example.com/directory", CARoot: c.TLS.ClientCA, Storage: "/var/lib/shapeproxy",
	}}); !reflect.DeepEqual(c.TLS, want) || !strings.HasSuffix(want.ClientCA, "/valid.pem") {
		t.Errorf("got  %+v\nwant %+v", c.TLS, want)
	}
	upstreams := []Upstream{
		{
			Name: "billing", Scheme: "https", Places: []Place{{Address: "Billing.internal:443", Host: "Billing.internal"}}, BasePath: "/v1",
			ResolveInterval: time.Minute, TLSHandshakeTimeout: 2 * time.Second, BodyTimeout: time.Hour, TLS: UpstreamTLS{ServerName: "billing.example.com"},
			Health:   Health{MaxFails: 1, FailTimeout: time.Minute, Path: "/up?x", Interval: time.Second, Timeout: 500 * time.Millisecond, Fails: 2, Passes: 1},
			Breaker:  &Breaker{FailureRatio: 0.2, Window: 30 * time.Second, MinRequests: 5, OpenFor: time.Minute, Probes: 1, Statuses: []int{503}, WhenOpen: "wait"},
			Obey:     Obey{On: true, MaxPause: time.Minute},
			Retry:    Retry{Most: 3, Of: "any", Body: 1 << 20},
			SendHost: "client", DialTimeout: time.Second, ResponseHeaderTimeout: 2 * time.Minute, MaxIdleConns: 16, IdleConnTimeout: 30 * time.Second,
			SetHeaders: []Header{{"Authorization", "Bearer k"}, {"X-Via", "shapeproxy"}},
		},
		defaultUpstream("socket"),
		defaultUpstream("grpc.v1"),
	}
	upstreams[1].Scheme, upstreams[1].SendHost, upstreams[1].Places = "http", "app.example.com", []Place{{UnixSocket: "/run/app.sock", Host: "localhost"}}
	upstreams[1].Obey.By = key("client-ip", "header:x-api-key")
	upstreams[2].Scheme, upstreams[2].Places = "h2c", []Place{{Address: "[::1]:8081", Host: "[::1]:8081"}}
	if !reflect.DeepEqual(c.Upstreams, upstreams) {
		t.Errorf("got  %+v\nwant %+v", c.Upstreams, upstreams)
	}
	limits := []Limit{
		{Name: "fragile", Algorithm: limiter.LeakyBucket, Rate: limiter.Rate{Count: 1, Per: 100 * time.Millisecond}, Burst: 1, Queue: 100, MaxWait: 10 * time.Second},
		{Name: "bucket", Algorithm: limiter.TokenBucket, Rate: limiter.Rate{Count: 1, Per: 100 * time.Millisecond}, Burst: 20, Queue: 5, MaxWait: 30 * time.Second},
		{
			Name: "each", Algorithm: limiter.LeakyBucket, Rate: limiter.Rate{Count: 1, Per: 2 * time.Second}, Burst: 3,
			Key: key("client-ip", "header:X-Api-Key", "path:id"), Exempt: trust("10.1.0.0/16"), MissingKey: "reject", Cost: 1, MaxKeys: 5000, Status: 503, DryRun: true,
		},
		{Name: "hour", Algorithm: limiter.SlidingWindowLog, Limit: 300, Window: time.Hour, Key: key("query:user")},
		{Name: "day", Algorithm: limiter.SlidingWindowCounter, Limit: 1000, Window: 24 * time.Hour},
	}
	for i := range limits {
		if l := &limits[i]; l.Status == 0 {
			l.MissingKey, l.Cost, l.MaxKeys, l.Status = "shared", 1, 100000, 429
		}
	}
	if !reflect.DeepEqual(c.Limits, limits) {
		t.Errorf("got  %+v\nwant %+v", c.Limits, limits)
	}
	// Case 66: routes stand in the file's order.
	routes := []Route{
		{
			Match: "GET API.example.com/v1/{id}/{rest...}", Pattern: "GET api.example.com/v1/{id}/{rest...}", Upstream: "billing",
			Limits: []string{"each", "fragile"}, StripPrefix: "/v1", MaxBodyBytes: 10_000_000, Timeout: 30 * time.Second,
		},
		{Match: "/{$}", Pattern: "/{$}", Upstream: "socket", Limits: []string{"hour", "day", "bucket"}},
		{Match: "[::1]/a%20b/", Pattern: "[::1]/a%20b/", Upstream: "grpc.v1"},
	}
	for i := range routes {
		routes[i].Priority = "normal"
	}
	if !reflect.DeepEqual(c.Routes, routes) {
		t.Errorf("got  %+v\nwant %+v", c.Routes, routes)
	}
}

func TestRedis(t *testing.T) {
	c := load(t, "testdata/good/redis.toml")
	want := Redis{
		Address: []string{"redis.internal:6380"}, DB: 3, Prefix: "edge:eu", Username: "shape", Password: "a-token", TLS: true,
		CA: c.Redis.CA, HashKey: "0123456789abcdef", Timeout: 20 * time.Millisecond,
	}
	if !reflect.DeepEqual(c.Redis, want) || !strings.Contains(c.Redis.CA, "CERTIFICATE") {
		t.Errorf("got  %+v\nwant %+v", c.Redis, want)
	}
	for i, down := range []string{"open", "closed", "local", "local", "local", "open", ""} {
		if l := c.Limits[i]; l.StoreDown != down || l.Shared != (down != "") {
			t.Errorf("%s: shared %t, store_down %q", l.Name, l.Shared, l.StoreDown)
		}
	}
	for _, text := range []string{
		"redis = { address = [\"a:7000\", \"[::1]:7001\"], cluster = true }",
		"redis = { address = [\"a:26379\", \"b:26379\"], sentinel_master = \"m\" }",
		"redis.address = \"a:6379\"",
	} {
		c, err := parse(t, text+"\nroute = [ { match = \"/\", upstream = \"app\" } ]\n")
		if err != nil || len(c.Warnings) != 1 { // that no limit is counted there
			t.Errorf("%s: %v %v", text, err, c)
		}
	}
}

func TestTOMLForms(t *testing.T) {
	c := load(t, "testdata/good/toml-forms.toml")
	if c.Server.Listen[0] != ":9000" || c.Upstreams[0].Places[0].Address != "127.0.0.1:8081" || c.Limits[0].Rate.String() != "1/s" {
		t.Errorf("got %+v", c)
	}
	if len(c.Routes) != 2 || c.Routes[0].Match != "/b" || c.Routes[1].Match != "/a" {
		t.Errorf("routes: %+v", c.Routes)
	}
}

// The file's limits and upstreams keep its order, as the map they are decoded
// into does not.
func TestOrder(t *testing.T) {
	var text strings.Builder
	var names []string
	for _, r := range "qwertyuiopasdfgh" {
		names = append(names, string(r))
		fmt.Fprintf(&text, "[limit.%c]\nalgorithm = \"token-bucket\"\nrate = \"1/s\"\n", r)
	}
	fmt.Fprintf(&text, "[[route]]\nmatch = \"/\"\nupstream = \"app\"\nlimits = [%q]\n", names[0])
	c, err := parse(t, text.String())
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range c.Limits {
		if l.Name != names[i] {
			t.Errorf("limit %d is %s, want %s", i, l.Name, names[i])
		}
	}
	if len(c.Warnings) != len(names)-1 || c.Warnings[0].Line != 4 {
		t.Errorf("warnings: %v", c.Warnings)
	}
}

func TestFilesThatCannotBe(t *testing.T) {
	for _, tt := range []struct {
		name, file, text, want string
	}{
		{"absent", "testdata/absent.toml", "", "testdata/absent.toml: does not exist; name the configuration with --config FILE, and see config.example.toml for one to start from"},
		{"a folder", "testdata", "", "testdata: cannot be read: is a directory"},
		{"too large", "x.toml", strings.Repeat("#", MaxFile+1), "x.toml: is larger than 1 MiB, so it is hardly a configuration"},
		{"not UTF-8", "x.toml", "a = \"\xff\"", "x.toml: is not UTF-8 text, as TOML must be; save it in that encoding"},
		{"binary", "x.toml", "\x00\x01", "x.toml:1: not TOML: files cannot contain NULL bytes; probably using UTF-16; TOML files must be UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			if tt.text == "" {
				_, err = Load(tt.file, environment(""))
			} else {
				_, err = Parse(tt.file, []byte(tt.text), environment(""))
			}
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// A value is put in once: what a variable holds is not read as another.
func TestVariablesAreNotNested(t *testing.T) {
	getenv := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "${B}", "B": "no"}[name]
		return v, ok
	}
	c, err := Parse("x.toml", []byte("[upstream.app]\nurl = \"http://127.0.0.1:8081\"\nset_headers = { X-A = \"1${A}2${B}\" }\n[[route]]\nmatch = \"/\"\nupstream = \"app\"\n"), getenv)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Upstreams[0].SetHeaders[0].Value; got != "1${B}2no" {
		t.Errorf("got %q", got)
	}
}

// What [tls] is filled up with.
func TestTLSDefaults(t *testing.T) {
	const rest = "upstream.a.url = \"http://127.0.0.1:9\"\nroute = [ { match = \"/\", upstream = \"a\" } ]\nadmin.listen = \"\"\n"
	home := func(vars map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	}
	const acme = "tls = { domains = [\"api.example.com\"], agree_tos = true }\n"
	for _, tt := range []struct {
		vars    map[string]string
		storage string
	}{
		{map[string]string{"HOME": "/home/a"}, "/home/a/.local/share/shapeproxy"},
		{map[string]string{"HOME": "/home/a", "XDG_DATA_HOME": "/data"}, "/data/shapeproxy"},
		{map[string]string{"HOME": "/home/a", "XDG_DATA_HOME": "data"}, "/home/a/.local/share/shapeproxy"}, // relative ones do not count
		{map[string]string{"HOME": ""}, ""},
	} {
		c, err := Parse("x.toml", []byte(acme+rest), home(tt.vars))
		if tt.storage == "" {
			if err == nil || !strings.Contains(err.Error(), "tls.storage: ") {
				t.Errorf("%v: %v", tt.vars, err)
			}
			continue
		}
		if err != nil || c.TLS.ACME.Storage != tt.storage || c.TLS.HTTPPort != 80 || c.TLS.ClientAuth != "" {
			t.Errorf("%v: %+v, %v", tt.vars, c, err)
		}
	}

	dir := files(t)
	c, err := Parse("x.toml", []byte("tls = { certificates = [ { cert = \"${DIR}/valid.pem\", key = \"${DIR}/valid.key\" } ], client_ca = \"${DIR}/valid.pem\" }\n"+rest), environment(dir))
	if err != nil || c.TLS.HTTPPort != 0 || c.TLS.ClientAuth != "require" || !c.TLS.On() {
		t.Errorf("%+v, %v", c, err)
	}
}

// Two upstreams that are not the admin listener, though near it.
func TestUpstreamBesideAdmin(t *testing.T) {
	c, err := Parse("x.toml", []byte(`
server.listen = "192.0.2.1:80"
upstream.a.url = "http://127.0.0.2:9090"
upstream.b.url = "http://192.0.2.7:9090"
upstream.c.url = "http://127.0.0.1:80"
upstream.d.url = "unix:/run/other.sock"
route = [ { match = "/a", upstream = "a" }, { match = "/b", upstream = "b" }, { match = "/c", upstream = "c" }, { match = "/d", upstream = "d" } ]
`), environment(""))
	if err != nil || len(c.Upstreams) != 4 {
		t.Error(err)
	}
}

// fieldsOf lists what each table takes, as the messages about unknown keys say.
func fieldsOf(t *testing.T) map[string][]string {
	t.Helper()
	_, err := Parse("x.toml", []byte(`
server.zzzzz = 1
admin.zzzzz = 1
log.zzzzz = 1
redis.zzzzz = 1
tls = { zzzzz = 1, certificates = [ { zzzzz = 1 } ] }
upstream.u = { zzzzz = 1, tls = { zzzzz = 1 }, health = { zzzzz = 1 }, breaker = { zzzzz = 1 } }
limit.l = { zzzzz = 1 }
route = [ { zzzzz = 1 } ]
`), environment(""))
	fields := map[string][]string{}
	for _, m := range regexp.MustCompile(`unknown key; (.+) takes (.+)`).FindAllStringSubmatch(err.Error(), -1) {
		fields[m[1]] = strings.Split(strings.ReplaceAll(m[2], " and ", ", "), ", ")
	}
	if len(fields) != 12 {
		t.Fatalf("%d tables, want 12: %v", len(fields), fields)
	}
	return fields
}

func TestExample(t *testing.T) {
	c, err := Load("../../config.example.toml", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	data, err := os.ReadFile("../../config.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	example := string(data)
	// It shows every field, and every default as it is.
	for table, fields := range fieldsOf(t) {
		for _, f := range fields {
			if !regexp.MustCompile(`(?m)(^|^# |\{ |, )` + f + ` = `).MatchString(example) {
				t.Errorf("%s: the field %s is not in it", table, f)
			}
		}
	}
	if want := defaultServer(); !reflect.DeepEqual(c.Server, want) {
		t.Errorf("server: got %+v, want %+v", c.Server, want)
	}
	if l := c.Limits[1]; l.MaxKeys != limiter.DefaultMaxKeys || l.Status != 429 || l.MissingKey != "shared" || c.Limits[0].MaxWait != DefaultMaxWait || c.Limits[0].PromoteAfter != DefaultPromoteAfter {
		t.Errorf("limit: %+v", l)
	}
	u := defaultUpstream("app")
	u.Scheme, u.Places = c.Upstreams[0].Scheme, c.Upstreams[0].Places
	if got := c.Upstreams[0]; !reflect.DeepEqual(got, u) {
		t.Errorf("upstream: %+v", got)
	}
}
