package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A preset is a limit that is known under a name.
type preset struct {
	name   string
	fields []presetField
	// headers is the family of headers that clients of the service know.
	headers string
}

// A presetField is a field and its value as the TOML decoder gives it.
type presetField struct {
	name  string
	value any
}

// presets are what the services publish about themselves, in the order of the
// documentation.
var presets = []preset{
	// https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api:
	// 5000 an hour for each user who is signed in.
	{"github", []presetField{
		{"algorithm", "fixed-window"}, {"limit", int64(5000)}, {"window", "1h"}, {"key", "header:Authorization"},
	}, "github"},
	// https://shopify.dev/docs/api/usage/limits: of the REST Admin API, for each
	// app and shop, which an access token stands for.
	{"shopify", []presetField{
		{"algorithm", "leaky-bucket"}, {"rate", "2/s"}, {"burst", int64(40)}, {"key", "header:X-Shopify-Access-Token"},
	}, "shopify"},
	// https://docs.stripe.com/rate-limits: 100 a second in live mode; by a token
	// bucket, as https://stripe.com/blog/rate-limiters tells.
	{"stripe", []presetField{
		{"algorithm", "token-bucket"}, {"rate", "100/s"}, {"burst", int64(100)}, {"key", "header:Authorization"},
	}, ""},
	// https://nginx.org/en/docs/http/ngx_http_limit_req_module.html: its first
	// example, and the status that it has by default.
	{"nginx", []presetField{
		{"algorithm", "leaky-bucket"}, {"rate", "1/s"}, {"queue", int64(5)}, {"key", "client-ip"}, {"status", int64(503)},
	}, ""},
	{"login", []presetField{
		{"algorithm", "sliding-window-log"}, {"limit", int64(5)}, {"window", "1m"}, {"key", "client-ip"},
	}, ""},
}

func findPreset(name string) (p preset, ok bool) {
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == name })
	if i < 0 {
		return preset{}, false
	}
	return presets[i], true
}

// preset reads the preset and fills its fields in where the file has none.
func (t *table) preset(l *Limit) {
	var names []string
	for _, p := range presets {
		names = append(names, p.name)
	}
	t.word("preset", &l.Preset, names...)
	p, ok := findPreset(l.Preset)
	if !ok {
		return
	}
	l.fromPreset = p.missing(t.values)
	t.values = maps.Clone(t.values)
	for _, f := range l.fromPreset {
		t.values[f.name] = f.value
	}
}

// missing are the fields that the preset adds to those of the file. An algorithm
// of the file's that takes none of them leaves them out.
func (p preset) missing(file map[string]any) (list []presetField) {
	algorithm, own := file["algorithm"].(string)
	for _, f := range p.fields {
		if _, has := file[f.name]; has || own && !takes(limiter.Algorithm(algorithm), f.name) {
			continue
		}
		list = append(list, f)
	}
	return list
}

// takes reports whether a limit with that algorithm may have the field of a
// preset.
func takes(a limiter.Algorithm, field string) bool {
	switch {
	case slices.Contains(windowFields, field):
		return a.Windowed()
	case field == "queue":
		return !a.Windowed()
	case slices.Contains(bucketFields, field):
		return !a.Windowed() && a != limiter.Concurrency
	}
	return true
}

// explain says what the preset expands to, and what its clients look for.
func (p preset) explain(l *Limit, headers []string) []string {
	var words []string
	for _, f := range l.fromPreset {
		word := fmt.Sprintf("%s = %v", f.name, f.value)
		if s, ok := f.value.(string); ok {
			word = fmt.Sprintf("%s = %q", f.name, s)
		}
		words = append(words, word)
	}
	lines := []string{fmt.Sprintf("preset %q adds nothing, as every field of it is set", p.name)}
	if len(words) > 0 {
		lines[0] = fmt.Sprintf("preset %q adds %s", p.name, strings.Join(words, ", "))
	}
	if p.headers != "" && !slices.Contains(headers, p.headers) {
		lines = append(lines, fmt.Sprintf("clients of %s look for its headers: these are sent if ratelimit_headers in [server] names %q", p.name, p.headers))
	}
	return lines
}
