package replay

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Formats of access logs, in NGINX's notation. Apache's common and combined
// formats write the same lines.
const (
	combined = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"`
	common   = `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent`
)

// A format reads lines by a log_format of NGINX's or a LogFormat of Apache's: a
// sequence of texts and, after each but the last, a field that ends where the
// next text begins.
type format struct {
	lead   string
	fields []field
	ended  bool // the time stamps are those of the ends of requests
}

type field struct {
	read  func(r *record, value string, c *clockText) bool // nil: of no interest
	until string                                           // the text behind it; empty for the last
	need  bool                                             // a line that stops before it is none
}

// errLine says of a line that it is not in the format.
var errLine = errors.New("is not in the log's format")

// errRequest says of a line that what it logs was no HTTP request.
var errRequest = errors.New("logs something that was no request")

// parse reads a line into r. A line may be cut behind the fields that matter.
func (f *format) parse(line string, r *record, c *clockText) error {
	rest, ok := strings.CutPrefix(line, f.lead)
	if !ok {
		return errLine
	}
	r.ended = f.ended
	for i := range f.fields {
		one := &f.fields[i]
		value, after, found := rest, "", false
		if one.until != "" {
			if value, after, found = cutAt(rest, one.until); !found {
				value = rest
			}
		}
		if one.until != "" && !found && slices.ContainsFunc(f.fields[i:], func(f field) bool { return f.need }) {
			return errLine
		}
		if one.read != nil && !one.read(r, unescape(value), c) {
			if one.need {
				return errLine
			}
		}
		if rest = after; !found {
			break
		}
	}
	if r.at.IsZero() {
		return errLine
	}
	if r.method == "" || r.target == "" {
		return errRequest
	}
	return nil
}

// cutAt cuts s around the first sep, but not at a quotation mark that the
// server has escaped as part of the value.
func cutAt(s, sep string) (before, after string, found bool) {
	for from := 0; ; {
		i := strings.Index(s[from:], sep)
		if i < 0 {
			return s, "", false
		}
		i += from
		slashes := 0
		for sep[0] == '"' && i-slashes > 0 && s[i-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s[:i], s[i+len(sep):], true
		}
		from = i + 1
	}
}

// unescape undoes what servers do to bytes that would break a line: \x22 of
// NGINX and Apache, \u0022 and \" of JSON.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := 0
		switch s[i] {
		case 'x':
			digits = 2
		case 'u':
			digits = 4
		}
		if digits > 0 && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += digits
				continue
			}
		}
		switch s[i] {
		case '"', '\\', '/':
			b.WriteByte(s[i])
		default:
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// newFormat understands a log_format of NGINX's (with $) or a LogFormat of
// Apache's (with %).
func newFormat(text string) (*format, error) {
	switch text {
	case "combined":
		text = combined
	case "common":
		text = common
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the log format is empty")
	}
	read := (*formatReader).nginx
	if !strings.Contains(text, "$") {
		read = (*formatReader).apache
	}
	p := &formatReader{rest: text}
	if err := read(p); err != nil {
		return nil, err
	}
	f := &p.format
	for i := range f.fields {
		if f.fields[i].until == "" && i+1 < len(f.fields) {
			return nil, fmt.Errorf("two fields follow each other with nothing between them to tell where the first ends; put a space or another mark there")
		}
	}
	if !p.hasTime {
		return nil, errors.New("the log format has no time: it needs $time_local, $time_iso8601 or $msec (NGINX), or %t (Apache)")
	}
	if !p.hasRequest {
		return nil, errors.New(`the log format has no request: it needs "$request" or $request_method and $request_uri (NGINX), or "%r" or %m and %U (Apache)`)
	}
	return f, nil
}

// A formatReader makes a format of its text.
type formatReader struct {
	format
	rest       string
	hasTime    bool
	hasRequest bool
}

// text adds to what stands between two fields.
func (p *formatReader) text(s string) {
	if n := len(p.fields); n > 0 {
		p.fields[n-1].until += s
	} else {
		p.lead += s
	}
}

func (p *formatReader) field(f field) { p.fields = append(p.fields, f) }

func (p *formatReader) time(read func(*record, string, *clockText) bool) {
	p.hasTime = true
	p.field(field{read: read, need: true})
}

func (p *formatReader) request(read func(*record, string, *clockText) bool) {
	p.hasRequest = true
	p.field(field{read: read})
}

// nginx reads the format of ngx_http_log_module. NGINX logs when a request
// ends.
func (p *formatReader) nginx() error {
	p.ended = true
	for p.rest != "" {
		i := strings.IndexByte(p.rest, '$')
		if i < 0 {
			p.text(p.rest)
			return nil
		}
		p.text(p.rest[:i])
		p.rest = p.rest[i+1:]
		var name string
		if strings.HasPrefix(p.rest, "{") {
			end := strings.IndexByte(p.rest, '}')
			if end < 0 {
				return errors.New("a ${ in the log format is not closed")
			}
			name, p.rest = p.rest[1:end], p.rest[end+1:]
		} else {
			n := 0
			for n < len(p.rest) && isWord(p.rest[n]) {
				n++
			}
			name, p.rest = p.rest[:n], p.rest[n:]
		}
		if name == "" {
			return errors.New("a $ in the log format has no name behind it")
		}
		p.variable(name)
	}
	return nil
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// variable adds one of NGINX's variables; what is of no interest is passed over.
func (p *formatReader) variable(name string) {
	switch name {
	case "remote_addr", "realip_remote_addr":
		p.field(field{read: readClient})
	case "time_local":
		p.time(readLocal)
	case "time_iso8601":
		p.time(readISO)
	case "msec":
		p.time(readUnix)
	case "request":
		p.request(readRequest)
	case "request_method":
		p.field(field{read: readMethod})
	case "request_uri":
		p.request(readTarget)
	case "uri", "document_uri":
		p.request(readPath)
	case "args", "query_string":
		p.field(field{read: readQuery})
	case "host", "http_host", "server_name":
		p.field(field{read: readHost})
	case "request_time":
		p.field(field{read: readTook(time.Second)})
	case "upstream_response_time":
		p.field(field{read: readService})
	default:
		if header, ok := strings.CutPrefix(name, "http_"); ok {
			p.header(strings.ReplaceAll(header, "_", "-"))
		} else if cookie, ok := strings.CutPrefix(name, "cookie_"); ok {
			p.cookie(cookie)
		} else {
			p.field(field{})
		}
	}
}

func (p *formatReader) header(name string) {
	p.field(field{read: func(r *record, v string, _ *clockText) bool { r.set(name, v); return true }})
}

func (p *formatReader) cookie(name string) {
	p.field(field{read: func(r *record, v string, _ *clockText) bool {
		if v != "" && v != "-" {
			r.set("Cookie", name+"="+v)
		}
		return true
	}})
}

// apache reads the format of mod_log_config. Its %t is when the request came.
func (p *formatReader) apache() error {
	for p.rest != "" {
		i := strings.IndexByte(p.rest, '%')
		if i < 0 {
			p.text(strings.ReplaceAll(p.rest, `\"`, `"`))
			return nil
		}
		p.text(strings.ReplaceAll(p.rest[:i], `\"`, `"`))
		p.rest = strings.TrimLeft(p.rest[i+1:], "<>!,0123456789") // modifiers
		var arg string
		if strings.HasPrefix(p.rest, "{") {
			end := strings.IndexByte(p.rest, '}')
			if end < 0 {
				return errors.New("a %{ in the log format is not closed")
			}
			arg, p.rest = p.rest[1:end], p.rest[end+1:]
		}
		if p.rest == "" {
			return errors.New("a % in the log format has no letter behind it")
		}
		letter := p.rest[0]
		p.rest = p.rest[1:]
		if err := p.directive(letter, arg); err != nil {
			return err
		}
	}
	return nil
}

func (p *formatReader) directive(letter byte, arg string) error {
	switch letter {
	case '%':
		p.text("%")
	case 'h', 'a':
		p.field(field{read: readClient})
	case 't':
		if arg != "" {
			return fmt.Errorf("%%{%s}t is not understood; log the time as plain %%t", arg)
		}
		p.text("[")
		p.time(readLocal)
		p.text("]")
	case 'r':
		p.request(readRequest)
	case 'm':
		p.field(field{read: readMethod})
	case 'U':
		p.request(readPath)
	case 'q':
		p.field(field{read: readQuery})
	case 'v', 'V':
		p.field(field{read: readHost})
	case 'i':
		if strings.EqualFold(arg, "Host") {
			p.field(field{read: readHost})
		} else {
			p.header(arg)
		}
	case 'C':
		p.cookie(arg)
	case 'D':
		p.field(field{read: readTook(time.Microsecond)})
	case 'T':
		unit, ok := map[string]time.Duration{"": time.Second, "s": time.Second, "ms": time.Millisecond, "us": time.Microsecond}[arg]
		if !ok {
			return fmt.Errorf("%%{%s}T is not understood; use ms, us or s", arg)
		}
		p.field(field{read: readTook(unit)})
	default:
		p.field(field{})
	}
	return nil
}
