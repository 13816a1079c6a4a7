package conformance

import (
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// scanned starts the program with TLS, for scanners.
func scanned(t *testing.T) front {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	t.Cleanup(upstream.Close)
	return start(t, setup{upstream: upstream.URL, tls: true})
}

// testssl.sh finds nothing above LOW, but that nobody vouches for the test's
// certificate and that it cannot be revoked.
func TestTestSSL(t *testing.T) {
	program := testdeps.Need(t, "testssl")
	f := scanned(t)
	_, port := split(t, f.Addr)
	file := filepath.Join(t.TempDir(), "findings.json")
	out, err := exec.Command(program, "--quiet", "--color", "0", "--warnings", "off", "--nodns", "none", "--ip", "127.0.0.1",
		// protocols, ciphers, forward secrecy, the server's preference, its
		// defaults and certificate, and all vulnerabilities
		"-p", "-s", "-f", "-P", "-S", "-U", "--jsonfile", file, "localhost:"+port).CombinedOutput()
	data, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", err, readErr, out)
	}
	var findings []struct{ ID, Severity, Finding string }
	if err := json.Unmarshal(data, &findings); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	ofTheCertificate := []string{"cert_chain_of_trust", "cert_revocation"}
	harmless := []string{"OK", "INFO", "LOW", "DEBUG"}
	low := 0
	for _, found := range findings {
		switch {
		case found.Severity == "LOW":
			low++
		case !slices.Contains(harmless, found.Severity) && !slices.Contains(ofTheCertificate, found.ID):
			t.Errorf("%s %s: %s", found.Severity, found.ID, found.Finding)
		}
	}
	// Of a server that it cannot talk to it finds next to nothing.
	if len(findings) < 60 {
		t.Errorf("%d findings; it has not looked at all\n%s", len(findings), out)
	}
	result(t, "%d findings, %d LOW, none above but for the test's own certificate", len(findings), low)
}

// sslscan finds TLS 1.2 and 1.3 alone, without weak ciphers, and none of what
// was broken before.
func TestSSLScan(t *testing.T) {
	program := testdeps.Need(t, "sslscan")
	f := scanned(t)
	out, err := exec.Command(program, "--xml=-", "--sni-name=localhost", f.Addr).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Protocols []struct {
			Type    string `xml:"type,attr"`
			Version string `xml:"version,attr"`
			Enabled int    `xml:"enabled,attr"`
		} `xml:"ssltest>protocol"`
		Renegotiation struct {
			Supported int `xml:"supported,attr"`
		} `xml:"ssltest>renegotiation"`
		Heartbleed []struct {
			Vulnerable int `xml:"vulnerable,attr"`
		} `xml:"ssltest>heartbleed"`
		Ciphers []struct {
			Name     string `xml:"cipher,attr"`
			Strength string `xml:"strength,attr"`
		} `xml:"ssltest>cipher"`
	}
	if err := xml.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var enabled []string
	for _, p := range found.Protocols {
		if p.Enabled == 1 {
			enabled = append(enabled, p.Type+" "+p.Version)
		}
	}
	if !slices.Equal(enabled, []string{"tls 1.2", "tls 1.3"}) {
		t.Errorf("enabled: %v", enabled)
	}
	if found.Renegotiation.Supported != 0 {
		t.Error("it renegotiates")
	}
	for _, h := range found.Heartbleed {
		if h.Vulnerable != 0 {
			t.Error("it has Heartbleed")
		}
	}
	for _, c := range found.Ciphers {
		if c.Strength != "strong" && c.Strength != "acceptable" {
			t.Errorf("%s is %s", c.Name, c.Strength)
		}
	}
	if len(found.Ciphers) < 5 || len(found.Heartbleed) == 0 {
		t.Errorf("it has not looked at all\n%s", out)
	}
	result(t, "%v, %d ciphers, none weak", enabled, len(found.Ciphers))
}
