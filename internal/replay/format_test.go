package replay

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// What servers write, each line in its own format.
func TestLines(t *testing.T) {
	instant := time.Date(2026, 3, 1, 12, 0, 5, 0, time.UTC)
	for _, test := range []struct {
		name, format, line string
		want               record
	}{
		{"combined", "", `198.51.100.7 - ann [01/Mar/2026:12:00:05 +0000] "GET /a?b=c HTTP/1.1" 200 512 "-" "curl/8"`,
			record{at: instant, ended: true, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: "/a?b=c"}},
		{"common, IPv6, another zone", "", `2001:db8::1 - - [01/Mar/2026:14:00:05 +0200] "POST /x HTTP/1.0" 404 -`,
			record{at: instant, ended: true, whole: true, service: -1, client: "2001:db8::1", method: "POST", target: "/x"}},
		{"cut in the fields behind", "", `198.51.100.7 - - [01/Mar/2026:12:00:05 +0000] "GET / HTTP/1.1" 200 512 "http://exam`,
			record{at: instant, ended: true, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: "/"}},
		{"escaped quotation mark", "combined", `198.51.100.7 - - [01/Mar/2026:12:00:05 +0000] "GET /\x22a\x22 HTTP/1.1" 200 1 "-" "-"`,
			record{at: instant, ended: true, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: `/"a"`}},
		{"NGINX with times and headers", `$remote_addr [$time_local] "$request" $status rt=$request_time urt="$upstream_response_time" h=$host k="$http_x_api_key"`,
			`198.51.100.7 [01/Mar/2026:12:00:05 +0000] "GET / HTTP/2.0" 200 rt=1.500 urt="0.250, 0.500" h=api.example.com k="secret"`,
			record{at: instant, ended: true, whole: true, took: 1500 * time.Millisecond, service: 750 * time.Millisecond,
				client: "198.51.100.7", method: "GET", target: "/", host: "api.example.com", header: map[string][]string{"X-Api-Key": {"secret"}}}},
		{"NGINX, milliseconds, no upstream", `${msec} $remote_addr $request_method $request_uri $upstream_response_time`,
			`1772366405.250 198.51.100.7 PUT /a/b -`,
			record{at: instant.Add(250 * time.Millisecond), ended: true, service: -1, client: "198.51.100.7", method: "PUT", target: "/a/b"}},
		{"NGINX, JSON", `{"t":"$time_iso8601","c":"$remote_addr","r":"$request","a":"$cookie_sid"}`,
			`{"t":"2026-03-01T12:00:05+00:00","c":"198.51.100.7","r":"GET /\u0022 HTTP/1.1","a":"x1"}`,
			record{at: instant, ended: true, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: `/"`, header: map[string][]string{"Cookie": {"sid=x1"}}}},
		{"NGINX, decoded path and arguments", `$remote_addr [$time_local] $request_method $uri $args|$status`,
			`198.51.100.7 [01/Mar/2026:12:00:05 +0000] GET /ä b=c|200`,
			record{at: instant, ended: true, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: "/%C3%A4?b=c"}},
		{"Apache", `%h %l %u %t \"%r\" %>s %b %D`, `198.51.100.7 - - [01/Mar/2026:12:00:05 +0000] "GET /a HTTP/1.1" 200 5 250000`,
			record{at: instant, whole: true, took: 250 * time.Millisecond, service: 250 * time.Millisecond, client: "198.51.100.7", method: "GET", target: "/a"}},
		{"Apache, escaped quotation mark before a space", `%h %t "%r" %>s "%{User-Agent}i"`, `198.51.100.7 [01/Mar/2026:12:00:05 +0000] "GET /a\" b HTTP/1.1" 200 "x"`,
			record{at: instant, whole: true, service: -1, client: "198.51.100.7", method: "GET", target: `/a" b`, header: map[string][]string{"User-Agent": {"x"}}}},
		{"Caddy", "", `{"level":"info","ts":1772366405.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"198.51.100.7","remote_port":"4","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a?b","headers":{"X-Api-Key":["k"]}},"duration":0.25,"status":200}`,
			record{at: instant.Add(500 * time.Millisecond), ended: true, took: 250 * time.Millisecond, service: 250 * time.Millisecond,
				client: "198.51.100.7", method: "GET", target: "/a?b", host: "example.com", header: map[string][]string{"X-Api-Key": {"k"}}}},
		{"our own, text", "", `time=2026-03-01T12:00:05.000Z level=INFO msg=request client=198.51.100.7 proto=HTTP/1.1 method=GET host=example.com path="/a b" status=200 route=/ duration=2.5 waited=2 upstream=u departed=2026-03-01T12:00:04.500Z upstream_status=200 upstream_duration=0.4 received=0 sent=3`,
			record{at: instant, ended: true, took: 2500 * time.Millisecond, service: 500 * time.Millisecond, client: "198.51.100.7", method: "GET", target: "/a b", host: "example.com"}},
		{"our own, JSON, refused", "", `{"time":"2026-03-01T12:00:05Z","level":"INFO","msg":"request","client":"198.51.100.7","method":"GET","host":"example.com","path":"/a","status":429,"reason":"limit","duration":0.001,"waited":0}`,
			record{at: instant, ended: true, took: time.Millisecond, service: -1, client: "198.51.100.7", method: "GET", target: "/a", host: "example.com"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got record
			var tally Tally
			var layout *format
			if test.format != "" {
				var err error
				if layout, err = newFormat(test.format); err != nil {
					t.Fatal(err)
				}
			}
			err := each([]Source{{"log", strings.NewReader(test.line + "\n")}}, layout, &tally, func(r *record) { got = *r })
			if err != nil {
				t.Fatal(err)
			}
			if !got.at.Equal(test.want.at) {
				t.Errorf("at %v, want %v", got.at, test.want.at)
			}
			for name := range test.want.header {
				if got.header.Get(name) != test.want.header.Get(name) {
					t.Errorf("%s is %q", name, got.header.Get(name))
				}
			}
			got.at, got.header, test.want.at, test.want.header = time.Time{}, nil, time.Time{}, nil
			if g, w := asText(got), asText(test.want); g != w {
				t.Errorf("read\n%s, want\n%s", g, w)
			}
		})
	}
}

func asText(r record) string {
	return strings.Join([]string{r.client, r.method, r.target, r.host, r.took.String(), r.service.String(), map[bool]string{true: "ended"}[r.ended], map[bool]string{true: "whole"}[r.whole]}, " | ")
}

func TestCSV(t *testing.T) {
	log := "client,time,method,path,duration\n" +
		"198.51.100.7,1772366405.125,GET,/a,0.5\n" +
		"\"198.51.100.8\",2026-03-01T12:00:05Z,GET,\"/b,c\",\n" +
		"198.51.100.9,yesterday,GET,/a,\n" +
		"198.51.100.9,1772366405,,,\n"
	var tally Tally
	var got []string
	if err := each([]Source{{"log", strings.NewReader(log)}}, nil, &tally, func(r *record) { got = append(got, asText(*r)) }); err != nil {
		t.Fatal(err)
	}
	want := []string{"198.51.100.7 | GET | /a |  | 500ms | 500ms |  | ", "198.51.100.8 | GET | /b,c |  | 0s | -1ns |  | whole"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", got)
	}
	if want := (Tally{Lines: 4, Requests: 2, Unread: 1, NoRequest: 1, FirstUnread: "line 4 of log"}); tally != want {
		t.Errorf("%+v, want %+v", tally, want)
	}
}

func TestFormatProblems(t *testing.T) {
	for format, want := range map[string]string{
		"":                                  "is empty",
		"$remote_addr $request":             "no time",
		"$remote_addr $time_local":          "no request",
		"$time_local$request":               "nothing between them",
		"${time_local $request":             "not closed",
		"$time_local $request $":            "no name behind it",
		`%h %{%s}t "%r"`:                    "log the time as plain %t",
		`%h %t "%r" %{weeks}T`:              "use ms, us or s",
		`%h %t "%r" %`:                      "no letter behind it",
		`%h %t "%r" %{User-Agent`:           "not closed",
		"hello":                             "no time",
		`$remote_addr [$time_local] $uri$a`: "nothing between them",
	} {
		if _, err := newFormat(format); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want … %s …", format, err, want)
		}
	}
}

// A log in a format that is not known is told at its first line, and one that
// breaks off is read as far as it goes.
func TestLogsThatAreNone(t *testing.T) {
	none := func(*record) {}
	if err := each([]Source{{"log", strings.NewReader("hello world\n")}}, nil, new(Tally), none); err == nil || !strings.Contains(err.Error(), "--log-format") {
		t.Error(err)
	}
	if err := each([]Source{{"log", strings.NewReader("")}}, nil, new(Tally), none); err == nil || !strings.Contains(err.Error(), "no request in the log") {
		t.Error(err)
	}
	if err := each([]Source{{"log", strings.NewReader("\x1f\x8bxx")}}, nil, new(Tally), none); err == nil {
		t.Error("a broken gzip is taken")
	}
	if err := each([]Source{{"log", strings.NewReader("time,client,method\n")}}, nil, new(Tally), none); err == nil {
		t.Error("a CSV file without a path is taken")
	}
	long := `198.51.100.7 - - [01/Mar/2026:12:00:05 +0000] "GET / HTTP/1.1" 200 1` + "\n" + strings.Repeat("a", longestLine+1)
	if err := each([]Source{{"log", strings.NewReader(long)}}, nil, new(Tally), none); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Error(err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add(`198.51.100.7 - ann [01/Mar/2026:12:00:05 +0000] "GET /a?b=c HTTP/1.1" 200 512 "-" "curl/8"`, "")
	f.Add(`{"ts":1772366405.5,"request":{"remote_ip":"198.51.100.7","method":"GET","uri":"/"},"duration":0.25}`, "")
	f.Add(`time=2026-03-01T12:00:05.000Z level=INFO msg=request client=198.51.100.7 method=GET path=/ duration=2.5`, "")
	f.Add("time,client,method,path", "")
	f.Add(`a [01/Mar/2026:12:00:05 +0000] "GET /\x2 \u00" 1`, `%h %t "%r" %D`)
	f.Add(`1772366405.250 a`, `$msec $request`)
	f.Fuzz(func(t *testing.T, line, text string) {
		var layout *format
		if text != "" {
			var err error
			if layout, err = newFormat(text); err != nil {
				return
			}
		}
		var tally Tally
		err := each([]Source{{"log", strings.NewReader(line)}}, layout, &tally, func(r *record) {
			if r.method == "" || r.target == "" || r.at.Unix() < 0 || r.took < 0 || r.service < -1 {
				t.Errorf("read %+v", r)
			}
		})
		if err == nil && tally.Requests == 0 {
			t.Error("neither a request nor an error")
		}
		if tally.Requests+tally.NoRequest+tally.Unread != tally.Lines {
			t.Errorf("%+v does not add up", tally)
		}
		if errors.Is(err, errLine) {
			t.Error("a line's error is the log's")
		}
	})
}
