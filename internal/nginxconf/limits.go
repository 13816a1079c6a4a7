package nginxconf

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A zone is what limit_req_zone or limit_conn_zone declares.
type zone struct {
	key     []string // in our words
	rate    string   // empty: of limit_conn_zone
	maxKeys int
}

// A limit is one [limit.NAME].
type limit struct {
	name      string
	zone      *zone
	algorithm string
	burst     int
	queue     int
	wait      time.Duration // 0: the default
	places    int
	status    int
	dryRun    bool
}

// statesPerMegabyte is how many keys a zone holds by NGINX's documentation of
// limit_req_zone, on a 64-bit machine.
const statesPerMegabyte = 8000

var variable = regexp.MustCompile(`\$\{?([a-z0-9_]+)\}?`)

// keyOf says the key of a zone in our words.
func (t *translator) keyOf(d *directive, text string) (words []string, ok bool) {
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		name := m[1]
		word, known := map[string]string{
			"binary_remote_addr": "client-ip", "remote_addr": "client-ip", "realip_remote_addr": "client-ip",
			"host": "host", "http_host": "host", "server_name": "host",
		}[name]
		for prefix, kind := range map[string]string{"http_": "header:", "cookie_": "cookie:", "arg_": "query:"} {
			if rest, found := strings.CutPrefix(name, prefix); found && !known {
				if word, known = kind+rest, true; kind == "header:" {
					word = kind + strings.ReplaceAll(rest, "_", "-")
				}
			}
		}
		if !known {
			t.note(d, "its key reads $%s, which has no counterpart; the limit is left out. Count by client-ip, a header, a cookie or a query parameter, and name whom it spares in exempt", name)
			return nil, false
		}
		words = append(words, word)
	}
	return words, true
}

var zoneForm = regexp.MustCompile(`^zone=([^:]+)(?::(\d+)([kKmM]?))?$`)

// zone reads what both kinds of zones have in common.
func (t *translator) zone(d *directive) (name string, z *zone, ok bool) {
	for _, arg := range d.args {
		m := zoneForm.FindStringSubmatch(arg)
		if m == nil {
			continue
		}
		z = &zone{}
		if name = m[1]; m[2] != "" {
			size, _ := strconv.Atoi(m[2])
			switch strings.ToLower(m[3]) {
			case "":
				size /= 1 << 10
			case "m":
				size *= 1 << 10
			}
			z.maxKeys = max(1, size*statesPerMegabyte/1024)
		}
	}
	if z == nil || len(d.args) < 2 {
		t.note(d, "is not understood: it has no key or no zone=")
		return "", nil, false
	}
	z.key, ok = t.keyOf(d, d.args[0])
	return name, z, ok
}

func (t *translator) requestZone(d *directive) {
	name, z, ok := t.zone(d)
	if !ok {
		return
	}
	for _, arg := range d.args[1:] {
		if rate, found := strings.CutPrefix(arg, "rate="); found {
			z.rate = strings.Replace(rate, "r/", "/", 1)
		} else if arg == "sync" {
			t.note(d, "sync: several machines share a limit by store = \"redis\"")
		}
	}
	if _, err := limiter.ParseRate(z.rate); err != nil {
		t.note(d, "its rate is not understood; the limit is left out")
		return
	}
	d.used = true
	t.zones["req "+name] = z
}

func (t *translator) connZone(d *directive) {
	if name, z, ok := t.zone(d); ok {
		d.used = true
		t.zones["conn "+name] = z
	}
}

// limitsOf are the names of the limits that count in a location: NGINX asks
// limit_req before limit_conn.
func (t *translator) limitsOf(s *scope) (names []string) {
	status := t.status(s, "limit_req_status")
	dry := s.text("limit_req_dry_run", "off") == "on"
	for _, d := range s.all("limit_req") {
		l, ok := t.request(d)
		if !ok {
			continue
		}
		l.status, l.dryRun = status, dry
		names = append(names, t.add(d, l))
	}
	status = t.status(s, "limit_conn_status")
	dry = s.text("limit_conn_dry_run", "off") == "on"
	for _, d := range s.all("limit_conn") {
		if d.used = true; len(d.args) != 2 {
			t.note(d, "is not understood")
			continue
		}
		z := t.zones["conn "+d.args[0]]
		places, err := strconv.Atoi(d.args[1])
		if z == nil || err != nil || places < 1 {
			t.note(d, "its zone was left out, or it bounds nothing")
			continue
		}
		names = append(names, t.add(d, &limit{
			name: named(d.args[0]), zone: z, algorithm: "concurrency", places: places, status: status, dryRun: dry,
		}))
	}
	return names
}

func (t *translator) status(s *scope, directive string) int {
	n, err := strconv.Atoi(s.text(directive, "503"))
	if err != nil || n < 400 || n > 599 {
		t.note(s.all(directive)[0], "is no status of a refusal; 503 is kept")
		return 503
	}
	return n
}

// request translates one limit_req: NGINX's burst counts what is beyond the
// first request, so that one without is a bucket that holds one, as ours is by
// itself.
func (t *translator) request(d *directive) (*limit, bool) {
	d.used = true
	var name string
	burst, delay, nodelay := 0, 0, false
	for _, arg := range d.args {
		k, v, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(v)
		switch {
		case k == "zone":
			name = v
		case k == "burst" && err == nil && n > 0:
			burst = n
		case k == "delay" && err == nil && n >= 0:
			delay = n
		case arg == "nodelay":
			nodelay = true
		default:
			t.note(d, "%s is not understood", arg)
		}
	}
	z := t.zones["req "+name]
	if z == nil {
		t.note(d, "its zone was left out, or is not declared")
		return nil, false
	}
	l := &limit{name: named(name), zone: z}
	switch {
	case burst == 0:
		l.algorithm = "leaky-bucket"
	case nodelay || delay >= burst:
		l.algorithm, l.burst = "token-bucket", burst+1
	case delay > 0:
		l.algorithm, l.burst, l.queue = "token-bucket", delay+1, burst-delay
	default:
		l.algorithm, l.queue = "leaky-bucket", burst
	}
	if rate, err := limiter.ParseRate(z.rate); err == nil && l.queue > 0 {
		// NGINX lets wait whoever has a place, however long.
		if most := rate.Interval() * time.Duration(l.queue); most > 30*time.Second {
			l.wait = (most + time.Second - 1).Truncate(time.Second)
		}
	}
	return l, true
}

var strange = regexp.MustCompile(`[^A-Za-z0-9_.-]`)

// named is a name as ours may be written.
func named(s string) string { return strange.ReplaceAllString(s, "-") }

// add returns the name of the limit, and keeps it unless an equal one is there.
func (t *translator) add(d *directive, l *limit) string {
	base, taken := l.name, false
	for n := 2; ; n++ {
		i := slices.IndexFunc(t.limits, func(o *limit) bool { return o.name == l.name })
		if i < 0 {
			break
		}
		if *t.limits[i] == *l {
			return l.name
		}
		taken = taken || t.limits[i].zone == l.zone
		l.name = fmt.Sprintf("%s-%d", base, n)
	}
	if taken {
		t.note(d, "limit %s counts for itself: in NGINX all that name the zone share its counters, whatever their bounds", l.name)
	}
	t.limits = append(t.limits, l)
	return l.name
}
