package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestUpstreams: addresses and the contents of files are where they belong, and
// check names no content.
func TestUpstreams(t *testing.T) {
	c := load(t, "testdata/good/upstreams.toml")
	pair, old := c.Upstreams[0], c.Upstreams[1]
	if want := []Place{{Host: "a.internal:8443", Address: "a.internal:8443"}, {Host: "10.0.0.2:8443", Address: "10.0.0.2:8443"}}; !reflect.DeepEqual(pair.Places, want) || pair.BasePath != "/v1" || pair.Scheme != "https" {
		t.Errorf("%+v", pair.Places)
	}
	for what, pem := range map[string]string{"CERTIFICATE": pair.TLS.CA, " CERTIFICATE": pair.TLS.ClientCert, "PRIVATE KEY": pair.TLS.ClientKey} {
		if !strings.Contains(pem, "BEGIN "+strings.TrimSpace(what)) {
			t.Errorf("%s is %q", what, pem)
		}
	}
	if want := []Place{{UnixSocket: "/run/app.sock", Host: "localhost"}, {Host: "127.0.0.1:3000", Address: "127.0.0.1:3000"}}; !reflect.DeepEqual(old.Places, want) || old.Scheme != "http" {
		t.Errorf("%+v", old.Places)
	}
	text := c.Explain()
	if want := "to pair (https://a.internal:8443, https://10.0.0.2:8443), each to the address with the least in flight\n"; !strings.Contains(text, want) || strings.Contains(text, "BEGIN") {
		t.Errorf("check says %s", text)
	}
}
