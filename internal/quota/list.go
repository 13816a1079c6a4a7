package quota

import "strings"

// list reads the RateLimit field: a list of "policy";r=50;t=30 since draft 8 of
// draft-ietf-httpapi-ratelimit-headers, and limit=100, remaining=50, reset=5 in
// draft 7. Whoever is on the way adds members of its own, so of several quotas
// that are named each counts.
//
// This is no parser of Structured Fields (RFC 9651), as what is sent often is
// none: names without quotes, and draft 7 with semicolons.
func (r *reader) list(lines []string) {
	joined := strings.Join(lines, ",")
	if joined == "" {
		return
	}
	if len(joined) > 4096 {
		r.Ignored++
		return
	}
	members := split(joined, ',')
	if params := pairs(append([]string{""}, strings.FieldsFunc(joined, func(c rune) bool { return c == ',' || c == ';' })...)); has(params, "remaining") {
		r.member(params, "remaining", "reset", "limit")
		return
	}
	for _, m := range members {
		parts := split(m, ';')
		// Without r or t it says nothing that a pace could be made of.
		if params := pairs(parts); len(parts) > 1 && has(params, "r") {
			r.member(params, "r", "t", "q")
		} else if strings.TrimSpace(m) != "" && len(parts) < 2 {
			r.Ignored++
		}
	}
}

// member reads what one quota says.
func (r *reader) member(params map[string]string, remaining, reset, limit string) {
	n, ok := count(params[remaining])
	if !ok {
		r.Ignored++
		return
	}
	if !has(params, reset) {
		return
	}
	d, fine := r.until(params[reset])
	if !fine || r.exceeds(n, params[limit]) {
		r.Ignored++
		return
	}
	r.note(Left{n, d})
}

func has(params map[string]string, name string) bool {
	_, ok := params[name]
	return ok
}

// pairs are the name=value among parts, but for the first part.
func pairs(parts []string) map[string]string {
	params := make(map[string]string)
	for _, p := range parts[1:] {
		name, value, _ := strings.Cut(p, "=")
		params[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
	}
	return params
}

// split cuts at sep, but not within quotes.
func split(s string, sep byte) (parts []string) {
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}
