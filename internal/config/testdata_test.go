package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const secret = "hunter2-Zq9 /x"

// files makes a folder of what configurations name: tokens and certificates.
func files(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	write("empty", " \n", 0o600)
	write("long", strings.Repeat(secret[:7], 1000), 0o600)
	write("two-lines", secret+"\n"+secret+"\n", 0o600)
	write("token", "a-token\n", 0o600)
	write("hash-key", "0123456789abcdef\r\n", 0o600)
	write("readable-token", "a-token\n", 0o644)
	now := time.Now()
	for name, valid := range map[string][2]time.Time{
		"valid":   {now.Add(-time.Hour), now.Add(24 * time.Hour)},
		"expired": {time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2020, 2, 1, 0, 0, 0, 0, time.UTC)},
		"future":  {time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2201, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: valid[0], NotAfter: valid[1], DNSNames: []string{"localhost"}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o644)
		keyPEM := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
		write(name+".key", keyPEM, 0o600)
		if name == "valid" {
			write("readable.key", keyPEM, 0o644)
		}
	}
	return dir
}

// environment is what the test files may read.
func environment(dir string) func(string) (string, bool) {
	vars := map[string]string{"DIR": dir, "EMPTY": "", "SECRET": secret, "NAME": "wildcard7", "API_KEY": "k", "PORT": "8081", "RATE": "10/s"}
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// comments returns the texts of the leading comments that begin with a word.
func comments(t *testing.T, file, word string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(data)) {
		text, isComment := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# ")
		if !isComment {
			break
		}
		if want, ok := strings.CutPrefix(text, word+": "); ok {
			list = append(list, want)
		}
	}
	return list
}

// check compares problems with the lines that a file wants, "LINE: key: text".
func check(t *testing.T, file string, got Problems, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing: %s", want[i])
		case i >= len(want):
			t.Errorf("unexpected: %s", got[i])
		default:
			wanted := file + ":" + want[i]
			if rest, whole := strings.CutPrefix(want[i], "0: "); whole {
				wanted = file + ": " + rest
			}
			if got[i].String() != wanted {
				t.Errorf("got  %s\nwant %s", got[i], wanted)
			}
		}
	}
}

func load(t *testing.T, file string) *Config {
	t.Helper()
	c, err := Load(file, environment(files(t)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// parse loads a text with an upstream "app" and the environment of the test
// files.
func parse(t *testing.T, text string) (*Config, error) {
	t.Helper()
	return Parse("test.toml", []byte(text+"\n[upstream.app]\nurl = \"http://127.0.0.1:8081\"\n"), environment(t.TempDir()))
}
