package proxy

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// TestVarnishtest plays the scripts in testdata/vtc: raw bytes from clients and
// from upstreams, by a program that has its own reading of HTTP. Their upstreams
// fail on a request that they do not expect, such as one for /smuggled.
func TestVarnishtest(t *testing.T) {
	varnishtest := testdeps.Need(t, "varnishtest")
	scripts, err := filepath.Glob("testdata/vtc/*.vtc")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			up, broken := free(t), free(t)
			turns := &turnstile{}
			f := newFront(t, &Site{Routes: []*Route{
				limited(route("/", up), turns), limited(route("/broken/", broken), turns),
				limited(route("/refused/", up), refuses(limiterRefusal)),
			}})
			out, err := exec.Command(varnishtest, "-t", "60", "-Dproxy="+f.addr, "-Dupstream="+up, "-Dbroken="+broken, script).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			f.proxy.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, e := range f.events {
				if e.Path == "/smuggled" && e.UpstreamStatus != 0 {
					t.Errorf("answered by the upstream: %+v", e)
				}
			}
		})
	}
	fmt.Printf("conformance: TestVarnishtest: %d scripts\n", len(scripts))
}

// free is an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
