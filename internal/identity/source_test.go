package identity

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

func source(target string, headers ...string) Source {
	r := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return Source{
		Request: r,
		Client:  netip.MustParseAddr("203.0.113.9"),
		Host:    r.Host,
		Route:   "GET /v1/{id}",
		PathValue: func(name string) string {
			return map[string]string{"id": "42"}[name]
		},
	}
}

func TestOf(t *testing.T) {
	s := source("http://API.example.com.:8080/v1/42?user=ann&user=bob&e=%66%C3%BC+x&%75=coded&empty=&empty=1",
		"X-Api-Key", "k1", "X-Api-Key", "k2", "X-Empty", "", "Cookie", "a=1; session=s1; session=s2", "Cookie", "b=2;c")
	for word, want := range map[string]string{
		"client-ip":        "203.0.113.9",
		"host":             "api.example.com",
		"route":            "GET /v1/{id}",
		"header:X-Api-Key": "k1", // the first line
		"header:X-Absent":  "",
		"header:X-Empty":   "", // as if absent
		"cookie:session":   "s1",
		"cookie:a":         "1",
		"cookie:b":         "2",
		"cookie:c":         "",
		"cookie:Session":   "",
		"query:user":       "ann", // the first of duplicates
		"query:e":          "fü x",
		"query:u":          "coded",
		"query:%75":        "",
		"query:empty":      "", // the first counts, and it is empty
		"query:absent":     "",
		"path:id":          "42",
		"path:name":        "",
	} {
		got, present, err := key(t, word).Of(s)
		if got != want || present != (want != "") || err != nil {
			t.Errorf("%s: got %q, %v, %v, want %q", word, got, present, err, want)
		}
	}
	if got, present, err := (Key{}).Of(s); got != "" || !present || err != nil {
		t.Errorf("global: got %q, %v, %v", got, present, err)
	}
	s.Client = netip.Addr{}
	if got, present, _ := key(t, "client-ip").Of(s); got != "unix:" || !present {
		t.Errorf("a Unix peer: got %q, %v", got, present)
	}
	s.Client, s.IPv6Prefix = netip.MustParseAddr("2001:db8:1:2::3"), 48
	if got, _, _ := key(t, "client-ip").Of(s); got != "2001:db8:1::/48" {
		t.Errorf("IPv6: got %q", got)
	}
	s.PathValue = nil
	if _, present, _ := key(t, "path:id").Of(s); present {
		t.Error("a route without wildcards has no values")
	}
}

func TestNormalHost(t *testing.T) {
	for host, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.com": "example.com", "example.com:8080": "example.com", "example.com.": "example.com",
		"Example.com.:80": "example.com", "[2001:DB8::1]:80": "[2001:db8::1]", "[::1]": "[::1]", "192.0.2.1:80": "192.0.2.1", "": "", ":80": "", "]:": "]",
	} {
		if got := NormalHost(host); got != want || NormalHost(got) != got {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// A key of several parts is absent if one of them is, and S43: what a client
// writes into one part never reads as another.
func TestS43PartsAreSeparate(t *testing.T) {
	k := key(t, "header:X-A", "header:X-B")
	seen := map[string]string{}
	values := []string{"a", "b", "ab", ":", "1:a", "1:a1:b", "2:ab", "a, b", "\x00", ","}
	for _, a := range values {
		for _, b := range values {
			got, present, err := k.Of(source("/", "X-A", a, "X-B", b))
			if !present || err != nil {
				t.Fatalf("%q, %q: %v, %v", a, b, present, err)
			}
			if other, dup := seen[got]; dup {
				t.Errorf("(%q, %q) and (%s) are both %q", a, b, other, got)
			}
			seen[got] = strconv.Quote(a) + ", " + strconv.Quote(b)
		}
	}
	for _, headers := range [][]string{{"X-A", "ab"}, {"X-B", "ab"}, {"X-A", "ab", "X-B", ""}, {}} {
		if got, present, err := k.Of(source("/", headers...)); got != "" || present || err != nil {
			t.Errorf("%q: got %q, %v, %v", headers, got, present, err)
		}
	}
}

// S22: one strict rule for queries, so that there are never two readings.
func TestS22StrictQuery(t *testing.T) {
	for query, bad := range map[string]bool{
		"k=1;k=2": true, "a=1;b": true, "k=%zz": true, "k=1&x=%": true, "x=%4&k=1": true, "%G0=1": true, "k=%0": true,
		"k=%3B": false, "k=%25": false, "": false, "&&=&k": false, "k==": false, "x=\xff": false,
	} {
		s := source("/")
		s.Request.URL.RawQuery = query
		if _, present, err := key(t, "query:k").Of(s); (err != nil) != bad || bad && present {
			t.Errorf("%q: present %v, error %v", query, present, err)
		}
		// Also where another part is missing already.
		if _, _, err := key(t, "header:X-Absent", "query:k").Of(s); (err != nil) != bad {
			t.Errorf("%q behind a missing header: error %v", query, err)
		}
		if _, _, err := key(t, "header:X-Absent").Of(s); err != nil {
			t.Errorf("%q is judged though no key reads it: %v", query, err)
		}
	}
}

// S25: a client that sends another key with each request gets another budget
// with each, as documented; another limit by its address still holds, and
// nothing that it sends makes a key absent that it did send.
func TestS25KeyRotation(t *testing.T) {
	rotating, steady := map[string]bool{}, map[string]bool{}
	for i := range 1000 {
		s := source("/", "X-Api-Key", strconv.Itoa(i), "X-Forwarded-For", strconv.Itoa(i))
		v, _, _ := key(t, "header:X-Api-Key").Of(s)
		rotating[v] = true
		v, _, _ = key(t, "client-ip").Of(s)
		steady[v] = true
	}
	if len(rotating) != 1000 || len(steady) != 1 {
		t.Errorf("%d keys by header, %d by address", len(rotating), len(steady))
	}
	// net/http gives up on cookies past a number, and a client would be free.
	s := source("/", "Cookie", strings.Repeat("a=1; ", 50_000)+"session=s1")
	if v, present, _ := key(t, "cookie:session").Of(s); v != "s1" || !present {
		t.Errorf("behind many cookies: %q, %v", v, present)
	}
	s = source("/?" + strings.Repeat("a=1&", 50_000) + "user=ann")
	if v, present, _ := key(t, "query:user").Of(s); v != "ann" || !present {
		t.Errorf("behind many parameters: %q, %v", v, present)
	}
	// The header is read though the client names it as hop-by-hop.
	s = source("/", "Connection", "X-Api-Key", "X-Api-Key", "k1")
	if v, _, _ := key(t, "header:X-Api-Key").Of(s); v != "k1" {
		t.Errorf("named in Connection: %q", v)
	}
}

// FuzzQueryKey compares with url.ParseQuery, which is as strict.
func FuzzQueryKey(f *testing.F) {
	f.Add("user=ann&user=bob", "user")
	f.Add("u%73er=a%2Bb+c", "user")
	f.Add("user=1;user=2", "user")
	f.Add("a=%&user=1", "user")
	f.Add("%75ser&user=1", "user")
	f.Add("a%2Bb=1&a+b=2&a b=3", "a+b")
	f.Add("=x&&k", "k")
	f.Fuzz(func(t *testing.T, query, name string) {
		k, err := ParseKey([]string{"query:" + name})
		if err != nil {
			t.Skip()
		}
		got, present, err := k.Of(Source{Request: &http.Request{URL: &url.URL{RawQuery: query}}})
		values, wantErr := url.ParseQuery(query)
		if strings.Count(query, "&") >= 10_000 {
			t.Skip() // more than url.ParseQuery takes
		}
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%q: error %v, want %v", query, err, wantErr)
		}
		if err == nil && (got != values.Get(name) || present != (got != "")) {
			t.Errorf("%q of %q: got %q, %v, want %q", name, query, got, present, values.Get(name))
		}
	})
}

func BenchmarkOf(b *testing.B) {
	s := source("/v1/42?user=ann", "X-Api-Key", "k1")
	for _, words := range [][]string{{"global"}, {"client-ip"}, {"header:X-Api-Key"}, {"query:user"}, {"client-ip", "header:X-Api-Key"}} {
		k := key(b, words...)
		b.Run(k.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := k.Of(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzCookieKey: what counts as a cookie's value stands between semicolons
// behind its name, and in the first such place.
func FuzzCookieKey(f *testing.F) {
	f.Add("a=1; user=ann; user=bob", "x=y", "user")
	f.Add("user", "user=ann", "user")
	f.Add(`user="a;b"`, " ;;\t", "user")
	f.Add("=x; xuser=1;\tuser =2", "user==", "user")
	f.Fuzz(func(t *testing.T, first, second, name string) {
		k, err := ParseKey([]string{"cookie:" + name})
		if err != nil {
			t.Skip()
		}
		lines := []string{first, second}
		got, _, err := k.Of(Source{Request: &http.Request{Header: http.Header{"Cookie": lines}}})
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		for _, pair := range strings.Split(first+";"+second, ";") {
			pair = strings.Trim(pair, " \t")
			if rest, ok := strings.CutPrefix(pair, name); ok && (rest == "" || rest[0] == '=') {
				want = strings.TrimPrefix(rest, "=")
				break
			}
		}
		if got != want {
			t.Errorf("%q in %q: got %q, want %q", name, lines, got, want)
		}
	})
}
