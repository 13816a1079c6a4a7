package nginxconf

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// upstream translates a proxy_pass and what it is sent with. strip is the prefix
// that the route takes off.
func (t *translator) upstream(pass, location *directive, s *scope) (name, strip string, ok bool) {
	raw := pass.args[0]
	scheme, rest, found := strings.Cut(raw, "://")
	if !found || strings.Contains(raw, "$") || scheme != "http" && scheme != "https" {
		t.note(pass, "only a fixed http:// or https:// URL can be translated; its location is left out")
		return "", "", false
	}
	place, path := rest, ""
	if socket, isUnix := strings.CutPrefix(rest, "unix:"); isUnix {
		socket, path, _ = strings.Cut(socket, ":")
		place = "unix:" + socket
	} else if i := strings.IndexByte(rest, '/'); i >= 0 {
		place, path = rest[:i], rest[i:]
	}
	u := &upstream{name: named(strings.NewReplacer(":", "-", "/", "-").Replace(place))}
	if path != "" {
		// With a path, NGINX puts it in the place of the location's.
		at := location.args[len(location.args)-1]
		if strings.HasSuffix(at, "/") != strings.HasSuffix(path, "/") {
			t.note(pass, "%s stands in the place of %s: as only one of them ends in a slash, paths at the seam may differ", path, at)
		}
		strip = strings.TrimSuffix(at, "/")
	}
	base := strings.TrimSuffix(path, "/")
	for _, server := range t.servers(place) {
		if strings.HasPrefix(server, "unix:") {
			if base != "" {
				t.note(pass, "an upstream on a Unix socket takes no path: %s is left out", base)
			}
			u.urls = append(u.urls, server)
			continue
		}
		u.urls = append(u.urls, scheme+"://"+server+base)
	}
	if len(u.urls) == 0 {
		t.note(pass, "its upstream has no server that could be translated; its location is left out")
		return "", "", false
	}
	t.headers(u, s)
	u.dial = t.timeout(s, "proxy_connect_timeout")
	u.header = t.timeout(s, "proxy_read_timeout")
	return t.addUpstream(u), strip, true
}

// servers are the addresses behind a name: those of the upstream block of that
// name, or itself.
func (t *translator) servers(place string) (servers []string) {
	block := t.upstreams[place]
	if block == nil {
		if _, err := url.Parse("http://" + place); err != nil && !strings.HasPrefix(place, "unix:") {
			return nil
		}
		return []string{place}
	}
	block.used = true
	for _, d := range block.block {
		if d.name != "server" || len(d.args) == 0 {
			continue
		}
		d.used = true
		rest := d.args[1:]
		if slices.Contains(rest, "down") || slices.Contains(rest, "backup") {
			t.note(d, "is left out: there are no servers that are down or for spare")
			continue
		}
		if len(rest) > 0 {
			t.note(d, "%s has no counterpart: of several addresses the one with the fewest requests in flight is chosen", strings.Join(rest, " "))
		}
		servers = append(servers, d.args[0])
	}
	return servers
}

// headers translates proxy_set_header. What this proxy does by itself needs no
// words.
func (t *translator) headers(u *upstream, s *scope) {
	for _, d := range s.all("proxy_set_header") {
		if d.used = true; len(d.args) != 2 {
			continue
		}
		name, value := d.args[0], d.args[1]
		switch strings.ToLower(name) {
		case "host":
			switch value {
			case "$host", "$http_host":
				u.host = "client"
			case "$proxy_host":
			default:
				if strings.Contains(value, "$") {
					t.note(d, "the Host that is sent can be the client's, the upstream's or a fixed name")
				} else {
					u.host = value
				}
			}
			continue
		case "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "connection", "upgrade":
			continue
		}
		switch {
		case strings.Contains(value, "$"):
			t.note(d, "values with variables have no counterpart; X-Forwarded-For, -Host and -Proto are always sent")
		case value == "":
			t.note(d, "a header of the client's cannot be removed")
		default:
			u.set = append(u.set, [2]string{name, value})
		}
	}
}

// timeout is one of NGINX's times in our form; empty if it is not set.
func (t *translator) timeout(s *scope, name string) string {
	text := s.text(name, "")
	if text == "" {
		return ""
	}
	if strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.note(s.all(name)[0], "is not understood; the default is kept")
		return ""
	}
	return limiter.FormatDuration(d)
}

// addUpstream returns the name of the upstream, and keeps it unless an equal
// one is there.
func (t *translator) addUpstream(u *upstream) string {
	base := u.name
	for n := 2; ; n++ {
		i := slices.IndexFunc(t.out, func(o *upstream) bool { return o.name == u.name })
		if i < 0 {
			break
		}
		o := t.out[i]
		if slices.Equal(o.urls, u.urls) && o.host == u.host && slices.Equal(o.set, u.set) && o.dial == u.dial && o.header == u.header {
			return u.name
		}
		u.name = base + "-" + strconv.Itoa(n)
	}
	t.out = append(t.out, u)
	return u.name
}
