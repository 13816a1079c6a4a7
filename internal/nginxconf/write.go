package nginxconf

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// write writes the configuration.
func (t *translator) write(file string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Translated from %s.", filepath.Base(file))
	line("")
	line("[server]")
	line("listen = %s", list(t.listen))
	if len(t.trusted) > 0 {
		line("trusted_proxies = %s", list(t.trusted))
	}
	if len(t.certs) > 0 {
		line("")
		line("[tls]")
		var pairs []string
		for _, c := range t.certs {
			pairs = append(pairs, fmt.Sprintf("{ cert = %s, key = %s }", quote(c[0]), quote(c[1])))
		}
		line("certificates = [%s]", strings.Join(pairs, ", "))
	}
	for _, u := range t.out {
		line("")
		line("[upstream.%s]", tableName(u.name))
		if len(u.urls) == 1 {
			line("url = %s", quote(u.urls[0]))
		} else {
			line("urls = %s", list(u.urls))
		}
		if u.host != "" {
			line("host = %s", quote(u.host))
		}
		if u.dial != "" {
			line("dial_timeout = %s", quote(u.dial))
		}
		if u.header != "" {
			line("response_header_timeout = %s", quote(u.header))
		}
		if len(u.set) > 0 {
			var pairs []string
			for _, h := range u.set {
				pairs = append(pairs, quote(h[0])+" = "+quote(h[1]))
			}
			line("set_headers = { %s }", strings.Join(pairs, ", "))
		}
	}
	for _, l := range t.limits {
		line("")
		l.write(line)
	}
	for _, r := range t.routes {
		line("")
		line("[[route]]")
		line("match = %s", quote(r.match))
		line("upstream = %s", quote(r.upstream))
		if len(r.limits) > 0 {
			line("limits = %s", list(r.limits))
		}
		if r.strip != "" {
			line("strip_prefix = %s", quote(r.strip))
		}
		if r.body != "" {
			line("max_body_bytes = %s", quote(r.body))
		}
	}
	return b.String()
}

func (l *limit) write(line func(string, ...any)) {
	line("[limit.%s]", tableName(l.name))
	line("algorithm = %s", quote(l.algorithm))
	if l.places > 0 {
		line("max_in_flight = %d", l.places)
	} else {
		line("rate = %s", quote(l.zone.rate))
	}
	if l.burst > 0 {
		line("burst = %d", l.burst)
	}
	if l.queue > 0 {
		line("queue = %d", l.queue)
	}
	if l.wait > 0 {
		line("max_wait = %s", quote(limiter.FormatDuration(l.wait)))
	}
	switch key := l.zone.key; len(key) {
	case 0:
	case 1:
		line("key = %s", quote(key[0]))
	default:
		line("key = %s", list(key))
	}
	for _, word := range l.zone.key {
		if strings.Contains(word, ":") { // NGINX does not count requests whose key is empty
			line("missing_key = \"skip\"")
			break
		}
	}
	if l.zone.maxKeys > 0 && len(l.zone.key) > 0 {
		line("max_keys = %d", l.zone.maxKeys)
	}
	line("status = %d", l.status)
	if l.dryRun {
		line("dry_run = true")
	}
}

// quote writes a TOML string: its escapes are those of Go for what can be in a
// configuration, and a $ is doubled nowhere, as only ${ is replaced.
func quote(s string) string {
	if strings.ContainsAny(s, "\\\"") && !strings.Contains(s, "'") {
		return "'" + s + "'"
	}
	return strconv.Quote(s)
}

func list(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// tableName writes a name as part of a table's head.
func tableName(s string) string {
	if strings.Contains(s, ".") {
		return strconv.Quote(s)
	}
	return s
}
