package h1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

var (
	errLongHead = errors.New("the answer's head is too long")
	errNoHTTP   = errors.New("the answer is not HTTP/1")
	errFolded   = errors.New("the answer has a field that goes on in a second line")
)

// readHead reads up to the empty line, which is the last of what it returns.
// Before it waits for more, begins is asked about the first bytes.
func readHead(br *bufio.Reader, most int, begins func([]byte) bool) (string, error) {
	var long []byte // what does not fit br
	for from := 0; ; {
		b, err := br.Peek(max(1, br.Buffered()))
		if err != nil {
			if len(long) > 0 && err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		got := len(b)
		if long != nil {
			long = append(long, b...)
			b = long
		}
		if !begins(b) {
			return "", errNoHTTP
		}
		end, next := endOfHead(b, from)
		if end < 0 && len(b) > most || end > most {
			return "", errLongHead
		}
		if end >= 0 {
			text := string(b[:end])
			_, _ = br.Discard(got - (len(b) - end))
			return text, nil
		}
		from = next
		switch {
		case long != nil:
			_, _ = br.Discard(got)
		case got == br.Size():
			long = append(make([]byte, 0, 4*got), b...)
			_, _ = br.Discard(got)
		default:
			if _, err := br.Peek(got + 1); err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return "", err
			}
		}
	}
}

// endOfHead is where the empty line ends that ends a head, or -1 and from where
// to look again when there is more. Lines may end in LF alone (RFC 9112, section
// 2.2).
func endOfHead(b []byte, from int) (end, next int) {
	for i := from; ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return -1, len(b)
		}
		i += n
		rest := b[i+1:]
		switch {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 2, 0
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 3, 0
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			return -1, i
		}
		i++
	}
}

// beginsAnswer reports whether b can be the beginning of an answer.
func beginsAnswer(b []byte) bool {
	const version = "HTTP/1."
	n := min(len(b), len(version))
	return string(b[:n]) == version[:n]
}

// cutLine cuts the first line off a head.
func cutLine(text string) (line, rest string) {
	i := strings.IndexByte(text, '\n')
	return strings.TrimSuffix(text[:i], "\r"), text[i+1:]
}

// parseStatus reads a status line (RFC 9112, section 4): the minor version, and
// the status with its reason. The blank behind the status may be missing with
// the reason.
func parseStatus(line string) (minor, code int, status string, err error) {
	const form = "HTTP/1.1 200"
	bad := func() (int, int, string, error) {
		return 0, 0, "", fmt.Errorf("the answer has a bad status line: %.60q", line)
	}
	if len(line) < len(form) || !strings.HasPrefix(line, "HTTP/1.") || line[8] != ' ' || !isFieldValue(line) {
		return bad()
	}
	minor = int(line[7]) - '0'
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return bad()
		}
		code = 10*code + int(c-'0')
	}
	if minor < 0 || minor > 9 || code < 100 || len(line) > len(form) && line[len(form)] != ' ' {
		return bad()
	}
	return min(minor, 1), code, line[9:], nil
}

// parseFields adds the fields in text, whose last line is empty, to h. What is
// more than most bytes with 32 more for each of them is an error.
func parseFields(h http.Header, text string, most int) error {
	lines := strings.Count(text, "\n") - 1
	if len(text)+32*lines > most {
		return errLongHead
	}
	values := make([]string, lines)
	for i := range lines {
		var line string
		line, text = cutLine(text)
		name, value, ok := strings.Cut(line, ":")
		switch {
		case line != "" && (line[0] == ' ' || line[0] == '\t'):
			return errFolded
		case !ok || !isToken(name):
			return fmt.Errorf("the answer has a bad field: %.60q", line)
		}
		value = strings.Trim(value, " \t")
		if !isFieldValue(value) {
			return fmt.Errorf("the answer has a control character in the field %.60q", name)
		}
		name = http.CanonicalHeaderKey(name)
		if before, again := h[name]; again {
			h[name] = append(before, value)
			continue
		}
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	return nil
}

// What a byte may be part of.
const (
	inToken  = 1 << iota // RFC 9110, section 5.6.2
	inValue              // section 5.5, blanks and obs-text included
	inTarget             // what no reader takes for the end of a target
	inHost               // visible ASCII
)

var classes = func() (of [256]byte) {
	for c := range of {
		if c >= ' ' && c != 0x7f || c == '\t' {
			of[c] |= inValue
		}
		if c > ' ' && c != 0x7f {
			of[c] |= inTarget
		}
		if c > ' ' && c < 0x7f {
			of[c] |= inHost
			if !strings.ContainsRune("\"(),/:;<=>?@[\\]{}", rune(c)) {
				of[c] |= inToken
			}
		}
	}
	return of
}()

func consists(s string, class byte) bool {
	for i := range len(s) {
		if classes[s[i]]&class == 0 {
			return false
		}
	}
	return true
}

func isToken(s string) bool      { return s != "" && consists(s, inToken) }
func isFieldValue(s string) bool { return consists(s, inValue) }
func isTarget(s string) bool     { return s != "" && consists(s, inTarget) }
func isHost(s string) bool       { return s != "" && consists(s, inHost) }
