package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// defined is what routes may name.
type defined struct {
	limits    map[string]*limitTable
	upstreams map[string]bool
}

func (d *decoder) routes(tables []*table, names *defined) []Route {
	routes := make([]Route, len(tables))
	mux := patterns{mux: http.NewServeMux(), lines: map[string]int{}}
	for i, t := range tables {
		routes[i] = d.route(t, names)
		p := routes[i].Pattern
		if p == "" {
			continue
		}
		line := d.lines.line(t.at("match"))
		switch same, overlaps := mux.add(p, line); {
		case same > 0:
			t.bad("match", "matches the same requests as the route in line %d; remove one of the two", same)
		case overlaps > 0:
			t.bad("match", "some requests match this and the route in line %d, and neither is the more specific; narrow one of the two", overlaps)
		}
	}
	return routes
}

func (d *decoder) route(t *table, names *defined) Route {
	r := Route{Priority: "normal"}
	t.require("match", `"/"`)
	t.text("match", `a pattern such as "GET api.example.com/v1/{id}"`, func(s string) (err error) {
		r.Match = s
		r.Pattern, err = normalPattern(s)
		return err
	})
	known := slices.Sorted(maps.Keys(names.upstreams))
	t.require("upstream", `"NAME"`)
	t.text("upstream", "the name of an upstream", func(s string) error {
		r.Upstream = s
		return undefined("upstream", s, known)
	})
	wildcards := wildcardNames(r.Pattern)
	limits := slices.Sorted(maps.Keys(names.limits))
	t.each("limits", "the name of a limit", false, func(s string) error {
		if err := undefined("limit", s, limits); err != nil {
			return err
		}
		if slices.Contains(r.Limits, s) {
			return fmt.Errorf("%q stands twice; a request is counted once by each limit, so remove one", s)
		}
		r.Limits = append(r.Limits, s)
		if lacking := names.limits[s].lacking(wildcards); lacking != "" && r.Pattern != "" {
			return fmt.Errorf("%q %s; add the wildcard to match, or choose another limit", s, lacking)
		}
		return nil
	})
	t.text("strip_prefix", `the start of a path such as "/v1"`, func(s string) error {
		r.StripPrefix = strings.TrimRight(s, "/")
		switch {
		case !strings.HasPrefix(s, "/"):
			return fmt.Errorf("%q must start with \"/\"; write %q", s, "/"+s)
		case r.StripPrefix == "":
			return errors.New("would strip nothing; remove it")
		case path.Clean(r.StripPrefix) != r.StripPrefix:
			return fmt.Errorf("%q can never match, as paths are cleaned first; write %q", s, path.Clean(s))
		case r.Pattern != "" && !begins(r.Pattern, r.StripPrefix):
			return fmt.Errorf("no path that this route matches begins with %q in whole segments; write a beginning of match", s)
		}
		return nil
	})
	t.size("max_body_bytes", &r.MaxBodyBytes, 1, 1<<53)
	t.duration("timeout", &r.Timeout)
	t.word("priority", &r.Priority, "high", "normal", "low")
	if t.has("priority") && !slices.ContainsFunc(r.Limits, func(s string) bool { return names.limits[s].Queue > 0 }) {
		t.d.warn(t.at("priority"), "has no effect, as no limit of this route has a queue; write queue = N in one of them, or remove it")
	}
	t.flag("server_timing", &r.ServerTiming)
	t.finish()
	return r
}

// undefined says that a name is not among those known; nil if it is.
func undefined(what, name string, known []string) error {
	if slices.Contains(known, name) {
		return nil
	}
	if meant := near(name, known); meant != "" {
		return fmt.Errorf("no %s is called %q; did you mean %q?", what, name, meant)
	}
	return fmt.Errorf("no %s is called %q; define [%s.%s], or name another", what, name, what, cmp.Or(name, "NAME"))
}

// normalPattern checks a pattern [METHOD ][HOST]/PATH by the rules of
// http.ServeMux and returns it in the form in which requests are matched: the
// host in lower case.
func normalPattern(s string) (string, error) {
	method, rest, hasMethod := strings.Cut(s, " ")
	if !hasMethod {
		method, rest = "", s
	}
	rest = strings.TrimLeft(rest, " \t")
	slash := strings.IndexByte(rest, '/')
	if strings.Contains(method, "/") {
		return "", fmt.Errorf("%q holds a space; write %%20 for one in a path", s)
	}
	if slash < 0 {
		return "", fmt.Errorf("%q has no path; a pattern is [METHOD ][HOST]/PATH, such as \"GET api.example.com/v1/{id}\" or \"/\"", s)
	}
	host, p := rest[:slash], rest[slash:]
	switch {
	case hasMethod && method != strings.ToUpper(method):
		return "", fmt.Errorf("methods are written in capitals; write %q", strings.ToUpper(method)+" "+rest)
	case method == http.MethodConnect || method == http.MethodTrace:
		return "", fmt.Errorf("%s is never forwarded; choose another method, or leave it out", method)
	case strings.HasSuffix(host, ":") && strings.HasPrefix(p, "//"):
		return "", fmt.Errorf("a pattern has no scheme; write %q", strings.TrimLeft(p, "/"))
	case checkPatternHost(host) != nil:
		return "", checkPatternHost(host)
	case strings.ContainsAny(p, "?#"):
		return "", errors.New("a pattern has no query or fragment; routes are chosen by method, host and path alone")
	}
	decoded, err := url.PathUnescape(p)
	if err != nil {
		return "", errors.New("its path holds a broken percent-encoding; write %25 for a percent sign")
	}
	if strings.ContainsRune(decoded, 0) || strings.Count(decoded, "/") != strings.Count(p, "/") {
		return "", errors.New("can never match, as paths are compared decoded; write \"/\" instead of %2F, and leave %00 out")
	}
	if clean := path.Clean(decoded); decoded != clean && decoded != clean+"/" {
		return "", fmt.Errorf("can never match, as \"//\", \".\" and \"..\" are removed from paths first; write %q", method+strings.Repeat(" ", min(1, len(method)))+host+clean)
	}
	pattern := strings.ToLower(host) + p
	if hasMethod {
		pattern = method + " " + pattern
	}
	if fault := register(http.NewServeMux(), pattern); fault != "" {
		if _, detail, ok := strings.Cut(fault, "at offset "); ok {
			_, fault, _ = strings.Cut(detail, ": ")
		}
		return "", fmt.Errorf("%q is not a pattern: %s; write [METHOD ][HOST]/PATH, such as \"/v1/{id}\"", s, fault)
	}
	return pattern, nil
}

// checkPatternHost wants the form of identity.NormalHost, but for letter case.
func checkPatternHost(host string) error {
	inner, bracketed := strings.CutPrefix(host, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	switch {
	case host == "":
		return nil
	case strings.Contains(host, ":") && literal(host):
		return fmt.Errorf("%q: write an IPv6 address in brackets", host)
	case bracketed && closed && strings.Contains(inner, ":") && literal(inner):
		return nil
	}
	return checkHost(host)
}

// register returns what the mux says of a pattern that it does not take.
func register(mux *http.ServeMux, pattern string) (fault string) {
	defer func() {
		if v := recover(); v != nil {
			fault = fmt.Sprint(v)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return ""
}

// patterns are the routes so far and their lines.
type patterns struct {
	mux   *http.ServeMux
	order []string
	lines map[string]int
}

// add returns the line of an earlier pattern that matches the same requests,
// or of one that matches some of them without one being more specific.
func (ps *patterns) add(pattern string, line int) (same, overlaps int) {
	if earlier, ok := ps.lines[pattern]; ok {
		return earlier, 0
	}
	if register(ps.mux, pattern) == "" {
		ps.order, ps.lines[pattern] = append(ps.order, pattern), line
		return 0, 0
	}
	for _, earlier := range ps.order {
		two := http.NewServeMux()
		register(two, earlier)
		if fault := register(two, pattern); strings.Contains(fault, "matches the same requests as") {
			return ps.lines[earlier], 0
		} else if fault != "" {
			return 0, ps.lines[earlier]
		}
	}
	return 0, 0
}

var wildcard = regexp.MustCompile(`\{([^{}.$]+)(?:\.\.\.)?\}`)

// wildcardNames lists the names of a pattern's wildcards.
func wildcardNames(pattern string) []string {
	var names []string
	for _, m := range wildcard.FindAllStringSubmatch(pattern, -1) {
		names = append(names, m[1])
	}
	return names
}

// begins reports whether a path that the pattern matches can begin with the
// decoded prefix, in whole segments.
func begins(pattern, prefix string) bool {
	_, p, _ := strings.Cut(pattern, "/")
	segments := strings.Split(p, "/")
	for i, want := range strings.Split(prefix[1:], "/") {
		if i >= len(segments) {
			return false
		}
		have := segments[i]
		switch {
		case strings.HasSuffix(have, "...}") || have == "" && i == len(segments)-1:
			return true // whatever follows
		case strings.HasPrefix(have, "{") && have != "{$}":
		default:
			if literal, _ := url.PathUnescape(have); literal != want {
				return false
			}
		}
	}
	return true
}
