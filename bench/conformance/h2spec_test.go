package conformance

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// TestH2Spec plays h2spec against the proxy and against a bare net/http server
// in the same run. What only the proxy fails is a failure; what Go's server
// fails too is named with its reason.
func TestH2Spec(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("a page of some length")) })
	upstream := "http://" + serve(t, &http.Server{Handler: page})
	for name, secure := range map[string]bool{"h2c": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			bare := &http.Server{Handler: page, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)}
			bare.Protocols.SetHTTP1(true)
			bare.Protocols.SetUnencryptedHTTP2(true)
			if secure {
				bare.Protocols = nil
				bare.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate(t, t.TempDir())}}
			}
			ours := play(t, start(t, setup{upstream: upstream, tls: secure}).Addr, secure)
			theirs := play(t, serve(t, bare), secure)
			for _, id := range ours.failed {
				if goFails[id] == "" {
					t.Errorf("%s fails; by a bare net/http server too: %t: %s", id, slices.Contains(theirs.failed, id), ours.why[id])
				}
			}
			if ours.passed < theirs.passed {
				t.Error("a bare net/http server passes more")
			}
			result(t, "%d of %d pass, %d by a bare net/http server; fails: %v", ours.passed, ours.all, theirs.passed, ours.failed)
		})
	}
}

// goFails are the cases of h2spec that Go's own server fails, and why. In none
// of them does anything reach an upstream that should not.
var goFails = map[string]string{
	"http2/3.5/2":     "a listener without TLS speaks HTTP/1.1 too, and answers in it what is not HTTP/2's preface",
	"http2/6.5.3/1":   "net/http hangs up on a peer whose SETTINGS name one setting twice, on purpose (serverConn.processSettings)",
	"http2/8.1.2.2/1": "golang/go#26321: Connection in HTTP/2 is taken; it is removed before the request is sent on",
	"http2/8.1.2.2/2": "golang/go#26321: TE with another value than trailers; it is removed before the request is sent on",
	"http2/5.1/5":     "golang/go#26322: which of two frames net/http sees first is a race",
	"http2/5.1/6":     "golang/go#26322",
}

// An outcome is what h2spec found.
type outcome struct {
	all, passed int
	failed      []string // IDs
	why         map[string]string
}

func play(t *testing.T, addr string, secure bool) outcome {
	host, port := split(t, addr)
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{
		Host: host, Port: number, Path: "/", Timeout: 2 * time.Second, MaxHeaderLen: 4000,
		TLS: secure, Insecure: true,
	}
	o := outcome{why: make(map[string]string)}
	quietly(t, func() {
		for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
			group.Test(c)
			o.add(group)
		}
	})
	return o
}

func (o *outcome) add(g *spec.TestGroup) {
	for _, c := range slices.Concat(g.Tests, g.StrictTests) {
		switch r := c.Result; {
		case r == nil:
		case r.Failed:
			id := g.ID() + "/" + strconv.Itoa(r.Sequence)
			o.all++
			o.failed = append(o.failed, id)
			o.why[id] = c.Desc + ": " + r.Error.Error()
		case r.Skipped:
			o.all++
		default:
			o.all++
			o.passed++
		}
	}
	for _, sub := range g.Groups {
		o.add(sub)
	}
}

// quietly calls f while standard output, where h2spec writes as it goes, leads
// nowhere.
func quietly(t *testing.T, f func()) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	stdout := os.Stdout
	os.Stdout = null
	defer func() { os.Stdout = stdout }()
	f()
}

// serve runs a server on a loopback port until the test ends, with TLS if it
// has a configuration for it.
func serve(t *testing.T, s *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if s.TLSConfig != nil {
			s.ServeTLS(l, "", "")
		} else {
			s.Serve(l)
		}
	}()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}
