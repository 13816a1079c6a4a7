package conformance

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// slowServer are the bounds of the test: as the defaults, and sooner.
const slowServer = `read_header_timeout = "3s"
body_timeout = "3s"
send_timeout = "3s"
`

// TestSlowHTTP has slowhttptest hold as many connections as it can with slow
// heads, slow bodies and slow reading. All are cut, and others are answered
// meanwhile. A slow reader sees that it was cut when it has read what came
// before, so it takes 200 bytes a second, which is too little all the same.
func TestSlowHTTP(t *testing.T) {
	slow := testdeps.Need(t, "slowhttptest")
	large := bytes.Repeat([]byte("x"), 8<<20)
	upstream := "http://" + serve(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			w.Write(large)
		}
	})})
	for _, c := range []struct {
		name string
		tls  bool
		args []string
	}{
		{"heads", false, []string{"-H"}},
		{"heads over TLS", true, []string{"-H"}},
		{"bodies", false, []string{"-B", "-s", "8192", "-t", "POST"}},
		{"bodies over TLS", true, []string{"-B", "-s", "8192", "-t", "POST"}},
		{"readers", false, []string{"-X", "-w", "1", "-y", "4", "-z", "200", "-n", "1"}},
		{"readers over TLS", true, []string{"-X", "-w", "1", "-y", "4", "-z", "200", "-n", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := start(t, setup{upstream: upstream, tls: c.tls, server: slowServer})
			scheme := "http://"
			if c.tls {
				scheme = "https://"
			}
			url := scheme + f.Addr + "/"
			if c.args[0] == "-X" {
				url += "large"
			}
			done := make(chan []byte)
			go func() {
				out, _ := exec.Command(slow, append(c.args, "-c", "50", "-r", "50", "-i", "1", "-p", "5", "-l", "60", "-u", url)...).CombinedOutput()
				done <- out
			}()
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
			t.Cleanup(transport.CloseIdleConnections)
			client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
			var out []byte
			var worst time.Duration
			served := 0
			for tick := time.NewTicker(200 * time.Millisecond); out == nil; {
				select {
				case out = <-done:
					tick.Stop()
				case <-tick.C:
					began := time.Now()
					res, err := client.Get(scheme + f.Addr + "/")
					if err != nil {
						t.Errorf("another client: %v", err)
						continue
					}
					res.Body.Close()
					served++
					worst = max(worst, time.Since(began))
				}
			}
			plain := regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]").ReplaceAllString(string(out), "")
			if !strings.Contains(plain, "No open connections left") {
				t.Errorf("connections stay open:\n%.3000s", plain[max(0, len(plain)-1500):])
			}
			result(t, "50 connections cut; %d requests of another client served, the slowest in %s", served, worst.Round(time.Millisecond))
		})
	}
}
