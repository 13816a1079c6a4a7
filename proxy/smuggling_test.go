package proxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	smuggled = "GET /smuggled HTTP/1.1\r\nHost: front.test\r\n\r\n"
	last     = "GET /last HTTP/1.1\r\nHost: front.test\r\nConnection: close\r\n\r\n"
)

// An attack is a connection's bytes. Where the connection must be kept, they
// end in last; its answer shows that it was.
type attack struct {
	name    string
	send    string
	answers []int    // statuses, in order, until the connection ended
	reached []string // targets that the upstream got
}

// attackWith plays attacks against one upstream and holds them to the oracle:
// what reaches the upstream as a request of its own was answered, and took its
// own turn at the limit.
func attackWith(t *testing.T, attacks []attack) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			turns := &turnstile{}
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), turns)}})
			got := statuses(t, f.wire(t, a.send))
			if !slices.Equal(got, a.answers) {
				t.Errorf("answered %v, want %v", got, a.answers)
			}
			var reached []string
			for _, line := range up.lines() {
				reached = append(reached, strings.Fields(line)[1])
			}
			if !slices.Equal(reached, a.reached) {
				t.Errorf("the upstream got %q, want %q", reached, a.reached)
			}
			if n := int(turns.turns.Load()); n < len(reached) || len(got) < len(reached) {
				t.Errorf("%d requests upstream, %d turns, %d answers", len(reached), n, len(got))
			}
			framedOnce(t, up.bytes())
		})
	}
}

// framedOnce looks at the framing of what an upstream got: one length at most
// in a head, nothing folded, no bare line feed, no control character.
func framedOnce(t *testing.T, wire string) {
	t.Helper()
	for _, head := range strings.SplitAfter(wire, "\r\n\r\n") {
		line, fields, _ := strings.Cut(head, "\r\n")
		if !strings.HasSuffix(line, " HTTP/1.1") {
			continue // a body
		}
		fields = strings.ToLower(fields)
		if n := strings.Count("\r\n"+fields, "\r\ncontent-length:") + strings.Count("\r\n"+fields, "\r\ntransfer-encoding:"); n > 1 {
			t.Errorf("%d lengths upstream: %q", n, head)
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(fields, "\r\n\r\n"), "\r\n") {
			name, _, ok := strings.Cut(line, ": ")
			if !ok || strings.ContainsAny(line, "\n\r\x00\x0b\t") || strings.TrimSpace(name) != name {
				t.Errorf("upstream got the line %q", line)
			}
		}
	}
}

func post(fields ...string) string {
	return "POST /a HTTP/1.1\r\nHost: front.test\r\n" + lines(fields) + "\r\n"
}

// TestS01ContentLengthAndTransferEncoding: two lengths in one request end the
// connection behind the answer (RFC 9112, section 6.1).
func TestS01ContentLengthAndTransferEncoding(t *testing.T) {
	attackWith(t, []attack{
		{"chunks end first", post("Content-Length: 60", "Transfer-Encoding: chunked") + "0\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
		{"order turned", post("Transfer-Encoding: chunked", "Content-Length: 4") + fmt.Sprintf("%x\r\n", len(smuggled)) + smuggled + "\r\n0\r\n\r\n" + last, []int{200}, []string{"/a"}},
		{"a lone chunked body too, as it looks the same", post("Transfer-Encoding: chunked") + "1\r\nx\r\n0\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
		{"a plain body keeps the connection", post("Content-Length: 1") + "x" + last, []int{200, 200}, []string{"/a", "/last"}},
	})
}

func TestS02TwoContentLengths(t *testing.T) {
	var attacks []attack
	for _, bad := range []string{"+3", "-1", "0x3", "3_0", "18446744073709551619", "", "3 x", "3,4", "3,", "\xb3"} {
		attacks = append(attacks, attack{fmt.Sprintf("%q", bad), post("Content-Length: "+bad) + "xxx" + smuggled, []int{400}, nil})
	}
	attackWith(t, append(attacks,
		attack{"two that differ", post("Content-Length: 3", "Content-Length: 0") + smuggled, []int{400}, nil},
		attack{"two that agree", post("Content-Length: 3", "Content-Length: 3") + "xxx" + last, []int{200, 200}, []string{"/a", "/last"}},
	))
}

func TestS03TransferEncodingDisguised(t *testing.T) {
	var attacks []attack
	for te, status := range map[string]int{
		": xchunked": 501, ": chunked, identity": 501, ": gzip, chunked": 501, ": chunked\r\nTransfer-Encoding: chunked": 501,
		": chunked\r\nTransfer-Encoding: identity": 501, ": \x0bchunked": 400, ": chunked\x00": 400, " : chunked": 400, ": identity": 501,
		": \"chunked\"": 501, ":": 501, ": chunked,": 501, "\t: chunked": 400,
	} {
		attacks = append(attacks, attack{fmt.Sprintf("%q", te), post("Transfer-Encoding"+te) + "0\r\n\r\n" + smuggled, []int{status}, nil})
	}
	attackWith(t, attacks)
}

// TestS04Folding: net/http joins a folded line, so it is never forwarded raw,
// and the connection ends.
func TestS04Folding(t *testing.T) {
	attackWith(t, []attack{
		{"folded", post("Transfer-Encoding:\r\n chunked") + "0\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
		{"folded under another", post("X: y\r\n Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n" + last, []int{200, 200}, []string{"/a", "/last"}},
		{"tab before the value", post("Transfer-Encoding:\tchunked") + "0\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
		{"bare line feeds", "POST /a HTTP/1.1\nHost: front.test\nTransfer-Encoding: chunked\n\n0\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
	})
}

// TestS05TransferEncodingInHTTP10: net/http ignores it there and does not tell,
// so no HTTP/1.0 connection is kept.
func TestS05TransferEncodingInHTTP10(t *testing.T) {
	attackWith(t, []attack{
		{"kept alive", "POST /a HTTP/1.0\r\nHost: front.test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
		{"with a length", "POST /a HTTP/1.0\r\nHost: front.test\r\nConnection: keep-alive\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nxxx" + smuggled, []int{200}, []string{"/a"}},
		{"on GET", "GET /a HTTP/1.0\r\nHost: front.test\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, []int{200}, []string{"/a"}},
	})
}

// TestS06BrokenChunks: the client's fault is 400 and the end of the connection;
// what the upstream got of the body has no end.
func TestS06BrokenChunks(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"hexadecimal prefix", "0x3\r\nxxx\r\n0\r\n\r\n"},
		{"negative", "-3\r\nxxx\r\n0\r\n\r\n"},
		{"huge", "fffffffffffffffff\r\nxxx\r\n0\r\n\r\n"},
		{"data without CRLF", "3\r\nxxxx\r\n0\r\n\r\n"},
		{"no size", "\r\nxxx\r\n0\r\n\r\n"},
		{"words", "3\r\nxxx\r\nGET /smuggled HTTP/1.1\r\n\r\n"},
		{"size line without end", strings.Repeat("0", 10_000)},
		{"one large extension", "3;" + strings.Repeat("a", 20_000) + "\r\nxxx\r\n0\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			turns := &turnstile{}
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), turns)}})
			wire := f.wire(t, post("Transfer-Encoding: chunked")+c.body+smuggled)
			if got := statuses(t, wire); !slices.Equal(got, []int{400}) {
				t.Errorf("answered %v", got)
			}
			if !strings.Contains(wire, "error=http_request_error") {
				t.Errorf("the answer does not blame the request: %q", wire)
			}
			if got := up.bytes(); strings.Contains(got, "0\r\n\r\n") || strings.Contains(got, "/smuggled") {
				t.Errorf("the upstream got a body with an end: %q", got)
			}
			e := f.next(t)
			if e.Status != 400 || e.UpstreamStatus == UpstreamError || turns.turns.Load() != 1 {
				t.Errorf("status %d, upstream's %d, %d turns: the fault is the client's and its turn is spent", e.Status, e.UpstreamStatus, turns.turns.Load())
			}
		})
	}
}

// TestS06LineFeedsInChunks: net/http reads a bare line feed as the end of a
// size line or of an extension. What an upstream gets is written anew, and the
// connection ends, so that nobody can disagree.
func TestS06LineFeedsInChunks(t *testing.T) {
	for _, body := range []string{"3\nxxx\r\n0\r\n\r\n", "3;\nxxx\r\n0\r\n\r\n", "3 \r\nxxx\r\n0\r\n\r\n", "3;a=b\r\nxxx\r\n0\r\n\r\n"} {
		up := newRawUpstream(t, always(ok200))
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		got := statuses(t, f.wire(t, post("Transfer-Encoding: chunked")+body+smuggled))
		if len(got) != 1 || got[0] != 200 && got[0] != 400 {
			t.Errorf("%q: answered %v", body, got)
		}
		if got[0] == 200 && !strings.HasSuffix(up.bytes(), "\r\n\r\n3\r\nxxx\r\n0\r\n\r\n") {
			t.Errorf("%q: the upstream got %q", body, up.bytes())
		}
	}
}

// TestS07Trailers: no trailer of a request is passed or announced, and none
// becomes a field of the head.
func TestS07Trailers(t *testing.T) {
	for _, c := range []struct {
		name, announce, trailer string
		status                  int
	}{
		{"announced", "Trailer: X-Sum", "X-Sum: 1", 200},
		{"unannounced", "X: y", "X-Forwarded-For: 6.6.6.6", 200},
		{"our own", "Trailer: X-Forwarded-For", "X-Forwarded-For: 6.6.6.6", 200},
		{"a length, announced", "Trailer: Content-Length", "Content-Length: 0", 400},
		{"a length", "X: y", "Content-Length: 0\r\nTransfer-Encoding: chunked", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
			got := statuses(t, f.wire(t, post("Transfer-Encoding: chunked", c.announce)+"1\r\nx\r\n0\r\n"+c.trailer+"\r\n\r\n"+smuggled))
			if !slices.Equal(got, []int{c.status}) {
				t.Errorf("answered %v", got)
			}
			wire := up.bytes()
			if strings.Contains(wire, "Trailer") || strings.Contains(wire, "6.6.6.6") || strings.Contains(wire, "X-Sum") {
				t.Errorf("the upstream got %q", wire)
			}
			if c.status == 200 && !strings.HasSuffix(wire, "\r\n\r\n1\r\nx\r\n0\r\n\r\n") {
				t.Errorf("the upstream got %q", wire)
			}
			framedOnce(t, wire)
		})
	}
}

// TestS08BodyOnGET: forwarded with its length, as one request, also where the
// upstream answers before it has read the body.
func TestS08BodyOnGET(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "DELETE", "OPTIONS"} {
		up := newRawUpstream(t, func(_ int, head string) string {
			if strings.HasPrefix(head, "HEAD") {
				return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			}
			return ok200
		})
		f := newFront(t, &Site{Routes: []*Route{route("/", up.addr)}})
		got := statuses(t, f.wire(t, fmt.Sprintf("%s /a HTTP/1.1\r\nHost: front.test\r\nContent-Length: %d\r\n\r\n", method, len(smuggled))+smuggled+last), method)
		if !slices.Equal(got, []int{200, 200}) {
			t.Errorf("%s: answered %v", method, got)
		}
		want := []string{method + " /a HTTP/1.1", "GET /last HTTP/1.1"}
		if !slices.Equal(up.lines(), want) {
			t.Errorf("%s: the upstream got %q", method, up.lines())
		}
		framedOnce(t, up.bytes())
	}
}

func TestS09BadHeaders(t *testing.T) {
	var attacks []attack
	for _, bad := range []string{
		" X: y", "X: a\x00b", "X: a\rb", ": y", "X y: z", "X\x00: y", "X", "X\xe9: y", "X(: y", "\"X\": y", "X: \x7f", "X:\x1b[2J",
	} {
		attacks = append(attacks, attack{fmt.Sprintf("%q", bad), post(bad, "Content-Length: 0") + smuggled, []int{400}, nil})
	}
	attackWith(t, attacks)
}

// TestUnreadBodyIsNotARequest: the rest of a body that an answer did not wait
// for is never read as the next request, however much of it there is.
func TestUnreadBodyIsNotARequest(t *testing.T) {
	for _, c := range []struct {
		name    string
		size    int
		expect  bool
		answers []int
	}{
		{"little is read and dropped", 1000, false, []int{429, 429}},
		{"more ends the connection", keptBytes + 1, false, []int{429}},
		{"what net/http would read", 256 << 10, false, []int{429}},
		{"what it would not", 256<<10 + 1, false, []int{429}},
		{"much", 4 << 20, false, []int{429}},
		{"one that waits to be asked for", 1000, true, []int{429}},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newRawUpstream(t, always(ok200))
			f := newFront(t, &Site{Routes: []*Route{limited(route("/", up.addr), refuses(limiterRefusal))}})
			body := strings.Repeat(smuggled, c.size/len(smuggled)+1)[:c.size]
			fields := []string{fmt.Sprintf("Content-Length: %d", c.size)}
			if c.expect {
				// It was told 429 and not 100, so it does not send its body.
				fields, body = append(fields, "Expect: 100-continue"), smuggled
			}
			wire := f.wire(t, post(fields...)+body+last)
			if got := statuses(t, wire); !slices.Equal(got, c.answers) {
				t.Errorf("answered %v, want %v", got, c.answers)
			}
			if ends := strings.Contains(wire, "Connection: close"); !ends {
				t.Errorf("the client is not told that the connection ends: %q", wire)
			}
			if strings.Contains(wire, "100 Continue") {
				t.Error("a refused request was asked for its body")
			}
			if up.count() != 0 {
				t.Errorf("the upstream got %q", up.lines())
			}
		})
	}
}
