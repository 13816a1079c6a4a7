package autotls

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// Where a redirect leads.
func TestPortAfter(t *testing.T) {
	for _, tt := range []struct {
		tls, plain int
		host, want string
	}{
		{443, 80, "a.test", ""},
		{443, 80, "a.test:80", ""},
		{8443, 80, "a.test", ":8443"},
		{8443, 8080, "a.test:8080", ":8443"},
		{8443, 8080, "a.test", ""},      // somebody maps 80 to 8080
		{8443, 8080, "a.test:9000", ""}, // and 9000, and who knows what for https
		{8443, 8080, "[::1]:8080", ":8443"},
		{0, 80, "a.test", ""}, // TLS on Unix sockets alone
	} {
		s := &Source{tlsPort: tt.tls, plainPort: tt.plain}
		if got := s.portAfter(tt.host); got != tt.want {
			t.Errorf("%d, %d, %s: %q, want %q", tt.tls, tt.plain, tt.host, got, tt.want)
		}
	}
}

// Whatever is asked, nobody is sent to another name, nor by another scheme, nor
// to another target than the one asked for.
func FuzzPlain(f *testing.F) {
	for _, request := range []string{
		"GET /a%2Fb?q=1 HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"HEAD //evil.test HTTP/1.1\r\nHost: A.TEST.:8080\r\n\r\n",
		"GET http://a.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET http://evil.test\\@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET a.test:@evil.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"GET /?\xff\" HTTP/1.1\r\nHost: a.test:8080/@evil.test\r\n\r\n",
		"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: api.test\r\n\r\n",
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\n\r\n",
	} {
		f.Add(request)
	}
	dir := f.TempDir()
	c := config.TLS{ACME: config.ACME{Domains: []string{"api.test"}, CA: "https://127.0.0.1:1/directory", Storage: dir}}
	a := newAuthority(f, "ca")
	c.Certificates = []config.Certificate{a.stored(dir, "one", "a.test", "*.b.test")}
	s, err := New(c, quiet)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	s.tlsPort, s.plainPort = 8443, 8080
	f.Fuzz(func(t *testing.T, request string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request)))
		if err != nil {
			return // net/http answers 400
		}
		w := httptest.NewRecorder()
		s.Plain().ServeHTTP(w, r)
		location := w.Header().Get("Location")
		if (location != "") != (w.Code == http.StatusPermanentRedirect) {
			t.Fatalf("%d to %q", w.Code, location)
		}
		if location == "" {
			return
		}
		u, err := url.Parse(location)
		if err != nil {
			t.Fatalf("%q: %v", location, err)
		}
		name := u.Hostname()
		if u.Scheme != "https" || u.User != nil || name != "a.test" && name != "api.test" && !strings.HasSuffix(name, ".b.test") || u.RequestURI() != r.URL.RequestURI() {
			t.Errorf("%q leads to %q", request, location)
		}
	})
}
