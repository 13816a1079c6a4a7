package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
	}{
		{"0B", 0}, {"1B", 1}, {"64KiB", 65536}, {"64kib", 65536}, {"10MB", 10_000_000}, {"1.5GiB", 3 << 29}, {"2 GB", 2_000_000_000}, {"1kB", 1000},
		{"8388608GiB", 1 << 53},
		{"64", -1}, {"", -1}, {"KiB", -1}, {"-1B", -1}, {"1e3B", -1}, {"0x10B", -1}, {"1.5B", -1}, {"1TiB", -1}, {"8388609GiB", -1},
		{strings.Repeat("9", 400) + "B", -1}, {"1 000B", -1}, {"64KiB ", -1},
	} {
		got, err := parseSize(tt.text)
		if tt.want < 0 && err == nil || tt.want >= 0 && (err != nil || got != tt.want) {
			t.Errorf("%q: got %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
	for n, want := range map[int64]string{1: "1B", 1024: "1KiB", 1025: "1025B", 10_000_000: "10MB", 5000: "5KB", 3 << 29: "1536MiB", 1 << 30: "1GiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestNear(t *testing.T) {
	fields := []string{"algorithm", "rate", "burst", "queue", "max_wait", "max_keys", "window", "key"}
	for word, want := range map[string]string{
		"max_wiat": "max_wait", "maxWait": "max_wait", "MAX-WAIT": "max_wait", "Rate": "rate", "rates": "rate", "brust": "burst",
		"algo": "algorithm", "windows": "window", "keys": "key", "queued": "queue",
		"priority": "", "store": "", "ky": "key", "kz": "", "": "", "x": "", strings.Repeat("rate", 1000): "",
	} {
		if got := near(word, fields); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
}

// The position of everything that a problem can be about.
func TestLines(t *testing.T) {
	text := `a = 1
[server]
listen = [
  ":1", # a comment
  ":2",
]
"b.c" = 2

[x.y]
[[route]]
match = "/"
[route.sub]
z = 1
[[route]]
match = "/b"
in = { p = 1, q = { r = [ 1,
 2 ] } }
`
	x := indexLines([]byte(text))
	for _, tt := range []struct {
		path string
		want int
	}{
		{"a", 1}, {"server", 2}, {"server listen", 3}, {"server listen [0]", 4}, {"server listen [1]", 5}, {"server b.c", 7},
		{"x", 9}, {"x y", 9}, {"route", 10}, {"route [0]", 10}, {"route [0] match", 11}, {"route [0] sub z", 13},
		{"route [1]", 14}, {"route [1] match", 15}, {"route [1] in q", 16}, {"route [1] in q r [1]", 17},
		{"route [1] absent", 14}, {"x y z", 9}, {"absent", 1},
	} {
		if got := x.line(strings.Fields(tt.path)); got != tt.want {
			t.Errorf("%s: line %d, want %d", tt.path, got, tt.want)
		}
	}
}

// A byte order mark and line ends of another system move nothing.
func TestLinesOfWindows(t *testing.T) {
	_, err := Parse("x.toml", []byte("\ufeff[server]\r\n\r\nlisten = 1\r\n"+"[x]\r\n"), environment(""))
	var lines []int
	for _, p := range err.(Problems) {
		lines = append(lines, p.Line)
	}
	if want := []int{1, 3, 4}; !slices.Equal(lines, want) {
		t.Errorf("problems at lines %v, want %v:\n%v", lines, want, err)
	}
}

// A file of brackets is not followed down: what lies deep has the line of what
// encloses it.
func TestLinesOfDeepLists(t *testing.T) {
	depth := 2000
	text := "\na = " + strings.Repeat("[\n", depth) + strings.Repeat("]", depth) + "\n"
	x := indexLines([]byte(text))
	if len(x.offsets) > 20 {
		t.Errorf("%d places noted", len(x.offsets))
	}
	path := []string{"a"}
	for range depth {
		path = append(path, element(0))
	}
	if got := x.line(path); got < 2 || got > 10 {
		t.Errorf("line %d", got)
	}
}

// FuzzLoad looks for a text that crashes the reading, or a problem that is not
// one line with a place.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "=", "[server]\nlisten = 8080\n", "[[route]]\nmatch = \"/{\"\n", "limit.a = { rate = 1 }", "route = [[[{}]], 1, {}]",
		"[limit]\n\"a\\nb\" = { \"c\\u001b\" = 1 }\n", "a = { b = [ { c = 1 } ] }\n", "[[limit.a]]\n[limit.a.b]\n", "x = \"${\"\ny = \"${A}${B\"\n",
		"[[a.b]]\n[a.b.c]\n[[a.b]]\n[a.b.c]\n", "server.listen = [\n1,\n\"a\"]\n[admin]\nlisten = \"${A}\"\n",
		"[upstream.app]\nurl = \"http://${A}@x/\"\nset_headers.\"X\\n\" = \"\\r\"\n", "\xef\xbb\xbf[server]\n", "a = " + strings.Repeat("[", 500),
		"x = [[[[[[[[[[[[1]]]]]]]]]]]]\n", "[limit.a]\nalgorithm = \"leaky-bucket\"\nrate = \"1/36500d\"\nburst = 9223372036854775807\nqueue = inf\nwindow = 1979-05-27\n",
		"[limit.a]\nalgorithm = \"concurrency\"\nmax_in_flight = -1\nqueue = [1]\nfair_by = [\"global\", \"${A}\"]\ndeadline_header = \"${A}\\n\"\npromote_after = \"-1d\"\n",
		"limit.a = { algorithm = \"leaky-bucket\", rate = \"1/s\", queue = 2, max_in_flight = 1, key = \"host\", fair_by = \"path:${A}\", deadline_header = \"x-${A}\", promote_after = \"1s\" }\n" +
			"upstream.u.url = \"http://a\"\nroute = [ { match = \"/{v4lue}\", upstream = \"u\", limits = [\"a\"], priority = \"low\", server_timing = true }, { match = \"/\", upstream = \"u\", limits = [\"a\"], priority = 1 } ]\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// Files are not looked for: their names would be made up.
		if strings.Contains(text, "file") || strings.Contains(text, "cert") {
			t.Skip()
		}
		c, err := Parse("fuzz.toml", []byte(text), func(name string) (string, bool) { return "v4lue", name == "A" })
		if err == nil {
			c.Explain()
			return
		}
		for _, p := range err.(Problems) {
			switch {
			case p.Line < 0 || p.Line > 1+strings.Count(text, "\n"):
				t.Errorf("no such line: %q", p)
			case p.Text == "" || strings.ContainsAny(p.String(), "\n\r\x1b"):
				t.Errorf("not one line: %q", p)
			case strings.Contains(p.String(), "v4lue") && !strings.Contains(text, "v4lue"):
				t.Errorf("a variable's value: %q", p)
			}
		}
	})
}
