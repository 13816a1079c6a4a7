package nginxconf

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// A Translation is a configuration of this proxy's, and what of the original it
// does not say.
type Translation struct {
	TOML  string
	Notes []string // FILE:LINE: directive: what became of it
}

// Translate reads an NGINX configuration with what it includes. The error tells
// of a file that cannot be read or parsed, or that proxies nothing.
func Translate(file string) (*Translation, error) {
	all, err := parse(file)
	if err != nil {
		return nil, err
	}
	return translate(all, file)
}

func translate(all []*directive, file string) (*Translation, error) {
	t := &translator{upstreams: make(map[string]*directive), zones: make(map[string]*zone)}
	main := &scope{list: all}
	for _, d := range all {
		switch d.name {
		case "http":
			d.used = true
			t.http(&scope{outer: main, list: d.block})
		case "events", "stream", "mail":
			t.note(d, "has no counterpart and is left out, with all in it")
			use(d)
		}
	}
	if len(t.routes) == 0 && !slices.ContainsFunc(all, func(d *directive) bool { return d.name == "http" }) {
		// A file of conf.d stands in the http block of another.
		t.http(main)
	}
	t.rest(all)
	if t.plain && len(t.certs) > 0 {
		t.notes = append(t.notes, file+": with [tls] every listener speaks TLS, also those that were plain: remove them, or run a second shapeproxy for them")
	}
	if len(t.routes) == 0 {
		return nil, errors.New(file + ": no location with proxy_pass could be translated; what stands in the way:\n" + strings.Join(t.notes, "\n"))
	}
	return &Translation{TOML: t.write(file), Notes: t.notes}, nil
}

// A translator gathers what will be written.
type translator struct {
	upstreams map[string]*directive // upstream blocks by name
	zones     map[string]*zone
	listen    []string
	trusted   []string
	certs     [][2]string
	plain     bool // something listens without TLS
	out       []*upstream
	limits    []*limit
	routes    []route
	notes     []string
}

// An upstream is one [upstream.NAME].
type upstream struct {
	name, host   string
	urls         []string
	dial, header string // timeouts; empty: the default
	set          [][2]string
}

// A route is one [[route]].
type route struct {
	match    string
	upstream string
	limits   []string
	strip    string
	body     string
}

// note says what became of a directive, once.
func (t *translator) note(d *directive, format string, args ...any) {
	d.used = true
	note := fmt.Sprintf("%s: %s: %s", d.place(), d, fmt.Sprintf(format, args...))
	if !slices.Contains(t.notes, note) {
		t.notes = append(t.notes, note)
	}
}

// use marks a directive and all in it as told of.
func use(d *directive) {
	d.used = true
	for _, one := range d.block {
		use(one)
	}
}

// rest notes what has not been translated.
func (t *translator) rest(all []*directive) {
	for _, d := range all {
		if d.used {
			t.rest(d.block)
			continue
		}
		if d.name == "include" {
			t.note(d, "names no file that is there")
		} else {
			t.note(d, "has no counterpart and is left out")
		}
	}
}

func (t *translator) http(s *scope) {
	for _, d := range s.list {
		switch d.name {
		case "upstream":
			if len(d.args) == 1 {
				t.upstreams[d.args[0]] = d
			}
		case "limit_req_zone":
			t.requestZone(d)
		case "limit_conn_zone":
			t.connZone(d)
		case "set_real_ip_from":
			t.realIP(d)
		}
	}
	for _, d := range s.list {
		if d.name == "server" && d.block != nil {
			d.used = true
			t.server(&scope{outer: s, list: d.block})
		}
	}
}

func (t *translator) realIP(d *directive) {
	if len(d.args) != 1 || d.args[0] == "unix:" {
		t.note(d, "has no counterpart: peers on a Unix socket are trusted as 127.0.0.1 would be, if at all")
		return
	}
	d.used = true
	if !slices.Contains(t.trusted, d.args[0]) {
		t.trusted = append(t.trusted, d.args[0])
	}
}

func (t *translator) server(s *scope) {
	for _, d := range s.list {
		if d.name == "set_real_ip_from" {
			t.realIP(d)
		}
	}
	if header := s.text("real_ip_header", "X-Forwarded-For"); !strings.EqualFold(header, "X-Forwarded-For") {
		t.note(s.all("real_ip_header")[0], "only X-Forwarded-For is believed, from trusted_proxies")
	}
	if all := s.all("real_ip_recursive"); len(all) > 0 && s.text("real_ip_recursive", "") != "on" {
		t.note(all[0], "the right-most address that is not trusted counts, as with on")
	}
	hosts := t.hosts(s)
	t.listeners(s)
	for _, d := range s.list {
		switch d.name {
		case "location":
			d.used = true
			t.location(d, &scope{outer: s, list: d.block}, hosts)
		case "proxy_pass":
			t.note(d, "proxy_pass counts in a location only")
		}
	}
}

// hosts are the server's names as patterns write them; one that is empty for
// every name.
func (t *translator) hosts(s *scope) (hosts []string) {
	for _, d := range s.all("server_name") {
		d.used = true
		for _, name := range d.args {
			switch {
			case name == "_" || name == "":
				hosts = append(hosts, "")
			case strings.HasPrefix(name, "."):
				hosts = append(hosts, name[1:])
				t.note(d, "%s: names below %s are left out; name each of them", name, name[1:])
			case strings.ContainsAny(name, "*~$"):
				t.note(d, "%s: patterns of names have no counterpart; name each host", name)
			default:
				hosts = append(hosts, strings.ToLower(name))
			}
		}
	}
	for _, d := range s.list {
		if d.name == "listen" && slices.Contains(d.args, "default_server") {
			hosts = append(hosts, "")
		}
	}
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func (t *translator) listeners(s *scope) {
	listens := 0
	for _, d := range s.list {
		if d.name != "listen" || len(d.args) == 0 {
			continue
		}
		listens++
		d.used = true
		at := d.args[0]
		switch {
		case strings.HasPrefix(at, "unix:"):
		case strings.Trim(at, "0123456789") == "":
			at = ":" + at
		default:
			host, port, err := net.SplitHostPort(at)
			if err != nil {
				host, port = strings.Trim(at, "[]"), "80"
			}
			if host == "*" || host == "::" || host == "0.0.0.0" {
				host = ""
			}
			at = net.JoinHostPort(host, port)
		}
		if !slices.Contains(t.listen, at) {
			t.listen = append(t.listen, at)
		}
		tls := slices.Contains(d.args, "ssl")
		t.plain = t.plain || !tls
		for _, arg := range d.args[1:] {
			switch arg {
			case "ssl", "http2", "default_server":
			case "proxy_protocol":
				t.note(d, "set proxy_protocol in [server] to the addresses of the load balancer")
			default:
				t.note(d, "%s has no counterpart", arg)
			}
		}
		if tls {
			cert, key := s.text("ssl_certificate", ""), s.text("ssl_certificate_key", "")
			pair := [2]string{cert, key}
			if cert != "" && key != "" && !slices.Contains(t.certs, pair) {
				t.certs = append(t.certs, pair)
			}
		}
	}
	if listens == 0 {
		t.plain = true
		if !slices.Contains(t.listen, ":80") {
			t.listen = append(t.listen, ":80")
		}
	}
}

// location translates one location, and those within it.
func (t *translator) location(d *directive, s *scope, hosts []string) {
	for _, inner := range s.list {
		if inner.name == "location" {
			inner.used = true
			t.location(inner, &scope{outer: s, list: inner.block}, hosts)
		}
	}
	var pass *directive
	for _, one := range s.list {
		if one.name == "proxy_pass" {
			pass = one
		}
	}
	if pass == nil || len(pass.args) == 0 {
		t.note(d, "has no proxy_pass, so there is nothing to forward to; requests for it get what the routes around it say, or 404")
		for _, one := range s.list {
			if one.name != "location" {
				use(one)
			}
		}
		return
	}
	paths, ok := t.paths(d)
	if !ok {
		for _, one := range s.list {
			use(one)
		}
		return
	}
	pass.used = true
	name, strip, ok := t.upstream(pass, d, s)
	if !ok {
		return
	}
	limits := t.limitsOf(s)
	body := s.text("client_max_body_size", "1m")
	size, ok := sizeOf(body)
	if !ok {
		t.note(s.all("client_max_body_size")[0], "is no size; max_body_bytes is left out")
	}
	for _, host := range hosts {
		for _, path := range paths {
			match := host + path
			if slices.ContainsFunc(t.routes, func(r route) bool { return r.match == match }) {
				t.note(d, "%s is served by another server block already; this one is left out", match)
				continue
			}
			t.routes = append(t.routes, route{match: match, upstream: name, limits: limits, strip: strip, body: size})
		}
	}
}

// paths are the patterns of a location's path.
func (t *translator) paths(d *directive) ([]string, bool) {
	modifier, path := "", ""
	switch len(d.args) {
	case 1:
		path = d.args[0]
	case 2:
		modifier, path = d.args[0], d.args[1]
	}
	switch {
	case modifier == "~" || modifier == "~*":
		t.note(d, "regular expressions have no counterpart; write routes with wildcards such as /files/{name}")
		return nil, false
	case strings.HasPrefix(path, "@") || !strings.HasPrefix(path, "/"):
		t.note(d, "named locations have no counterpart")
		return nil, false
	case strings.ContainsAny(path, "{}"):
		t.note(d, "braces in a path have no counterpart")
		return nil, false
	case modifier == "=" && strings.HasSuffix(path, "/"):
		return []string{path + "{$}"}, true
	case modifier == "=":
		return []string{path}, true
	case strings.HasSuffix(path, "/"):
		return []string{path}, true
	}
	t.note(d, "translated as %s and %s/: that other paths begin with it (as %sx) is not matched", path, path, path)
	return []string{path, path + "/"}, true
}

// sizeOf turns NGINX's size into ours: empty for no bound.
func sizeOf(s string) (string, bool) {
	n := strings.TrimRight(strings.ToLower(s), "kmg")
	if _, err := strconv.ParseUint(n, 10, 62); err != nil {
		return "", false
	}
	unit, ok := map[string]string{"": "B", "k": "KiB", "m": "MiB", "g": "GiB"}[strings.ToLower(s[len(n):])]
	switch {
	case !ok:
		return "", false
	case n == "0":
		return "", true
	}
	return n + unit, true
}
