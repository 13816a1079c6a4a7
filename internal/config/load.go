package config

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// MaxFile bounds the size of a configuration file in bytes.
const MaxFile = 1 << 20

// Load reads and checks a configuration file. The error is a Problems with
// everything that is wrong with it. The environment is read through getenv,
// which is os.LookupEnv but in tests; the files that the configuration names
// (token_file, certificates) are read too.
func Load(file string, getenv func(string) (string, bool)) (*Config, error) {
	f, err := os.Open(file)
	if err != nil {
		text := "cannot be read: " + cause(err)
		if errors.Is(err, fs.ErrNotExist) {
			text = "does not exist; name the configuration with --config FILE, and see config.example.toml for one to start from"
		}
		return nil, Problems{{File: file, Text: text}}
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, Problems{{File: file, Text: "cannot be read: " + cause(err)}}
	}
	return Parse(file, data, getenv)
}

// Parse is Load for a text that has been read already. The file only names it
// in problems.
func Parse(file string, data []byte, getenv func(string) (string, bool)) (*Config, error) {
	whole := func(line int, text string) (*Config, error) {
		return nil, Problems{{File: file, Line: line, Text: text}}
	}
	if len(data) > MaxFile {
		return whole(0, "is larger than 1 MiB, so it is hardly a configuration")
	}
	if !utf8.Valid(data) {
		return whole(0, "is not UTF-8 text, as TOML must be; save it in that encoding")
	}
	// Some editors write a byte order mark, which only one of the decoders takes.
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var values map[string]any
	if _, err := toml.Decode(string(data), &values); err != nil {
		var syntax toml.ParseError
		if errors.As(err, &syntax) {
			return whole(syntax.Position.Line, "not TOML: "+oneLine(syntax.Message))
		}
		return whole(0, "not TOML: "+oneLine(err.Error()))
	}

	return source{file: file, values: values, lines: indexLines(data), getenv: getenv}.decode()
}

// A source is what a Config was made of.
type source struct {
	file   string
	values map[string]any
	lines  *lineIndex
	getenv func(string) (string, bool)
}

func (s source) decode() (*Config, error) {
	d := &decoder{file: s.file, lines: s.lines, getenv: s.getenv}
	c := d.config(d.table("the file", nil, s.values))
	d.problems.sort()
	d.warnings.sort()
	if len(d.problems) > 0 {
		return nil, d.problems
	}
	c.File, c.Warnings, c.source = s.file, d.warnings, s
	return c, nil
}

// config reads the whole file. The order matters: routes ask what is defined.
func (d *decoder) config(root *table) *Config {
	c := &Config{}
	server, admin := root.sub("server", "[server]"), root.sub("admin", "[admin]")
	c.Server = d.server(server)
	c.Admin = d.admin(admin, c.Server.Listen)
	c.Log = d.log(root.sub("log", "[log]"))
	c.TLS = d.tls(root.sub("tls", "[tls]"), root.has("tls"), c.Server.Listen, c.Admin.Listen)
	redis := root.sub("redis", "[redis]")
	c.Redis = d.redis(redis)
	c.Tracing = d.tracing(root.sub("tracing", "[tracing]"))
	own := c.Server.Listen
	if c.Admin.Listen != "" {
		own = append(own[:len(own):len(own)], c.Admin.Listen)
	}

	names := &defined{limits: map[string]*limitTable{}, upstreams: map[string]bool{}}
	upstreams := root.named("upstream", "an upstream")
	for _, t := range upstreams {
		c.Upstreams = append(c.Upstreams, d.upstream(t, own))
		names.upstreams[t.name()] = true
	}
	limits := root.named("limit", "a limit")
	for _, t := range limits {
		l := d.limit(t)
		t.askedFor(&l, c.TLS)
		c.Limits = append(c.Limits, l)
		names.limits[t.name()] = &limitTable{t, l}
	}
	before := len(d.problems)
	tables := root.subs("route", "a route", "[[route]] above each")
	c.Routes = d.routes(tables, names)
	if len(tables) == 0 && len(d.problems) == before {
		d.problem([]string{"route"}, "there is none, so nothing would be forwarded; add [[route]] with match = \"/\" and upstream = \"NAME\"")
	}
	root.finish()

	// While a route is not understood, what it names is not known either.
	if len(d.problems) == 0 {
		d.warnUnused(c, upstreams, limits)
		d.warnUnshared(c, redis, root.has("redis"))
		d.promotions(c, limits)
		d.warnCannotWait(c, upstreams)
		d.warnNobodyHigh(c, limits)
	}
	return c
}

func (d *decoder) warnUnused(c *Config, upstreams, limits []*table) {
	used := map[string]bool{}
	for _, r := range c.Routes {
		used["upstream "+r.Upstream] = true
		for _, l := range r.Limits {
			used["limit "+l] = true
		}
	}
	for _, t := range upstreams {
		if !used["upstream "+t.name()] {
			d.warn(t.path, "no route names this upstream; remove it, or write upstream = %q in a route", t.name())
		}
	}
	for _, t := range limits {
		if !used["limit "+t.name()] {
			d.warn(t.path, "no route names this limit, so it limits nothing; remove it, or write limits = [%q] in a route", t.name())
		}
	}
}

// promotions turns promote_after off where all who wait have one priority: to
// rise above it would only let those who wait long pass by the turns of fair_by.
func (d *decoder) promotions(c *Config, limits []*table) {
	for i, t := range limits {
		classes := map[string]bool{}
		for _, r := range c.Routes {
			if slices.Contains(r.Limits, t.name()) {
				classes[r.Priority] = true
			}
		}
		if len(classes) > 1 {
			continue
		}
		c.Limits[i].PromoteAfter = 0
		if t.has("promote_after") && len(classes) == 1 {
			d.warn(t.at("promote_after"), "has no effect, as all routes that name this limit have the same priority; write priority = \"high\" or \"low\" in some of them, or remove it")
		}
	}
}

// cause is err without the path, which its problem tells already.
func cause(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// oneLine keeps a foreign message from breaking the form of one line a problem.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
