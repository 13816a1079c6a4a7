package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shapeproxy/shapeproxy/bench/rig"
)

// interopCases are those of gRPC's interoperability suite that need no cloud.
// The order and the words are its own.
var interopCases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response",
	"status_code_and_message", "special_status_message", "custom_metadata",
	"unimplemented_method", "unimplemented_service",
}

// interopTimes is how often each is played: what goes wrong here does so now
// and then.
const interopTimes = 20

// TestInterop plays gRPC's interoperability suite, its own client and its own
// server with the proxy between.
func TestInterop(t *testing.T) {
	dir := t.TempDir()
	client, server := build(t, dir, "google.golang.org/grpc/interop/client"), build(t, dir, "google.golang.org/grpc/interop/server")
	upstream := freeAddr(t)
	_, port := split(t, upstream)
	back, err := rig.Start(dir, upstream, server, "-port", port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { back.Cmd.Process.Kill() })
	for name, secure := range map[string]bool{"h2c": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			f := start(t, setup{upstream: "h2c://" + upstream, tls: secure})
			host, port := split(t, f.Addr)
			args := []string{"-server_host", host, "-server_port", port}
			if secure {
				args = append(args, "-use_tls", "-use_test_ca", "-ca_file", filepath.Join(f.dir, "cert.pem"), "-server_host_override", "localhost")
			}
			failed := 0
			for _, name := range interopCases {
				for i := range interopTimes {
					out, err := exec.Command(client, append(args, "-test_case", name)...).CombinedOutput()
					if err != nil {
						failed++
						t.Errorf("%s, time %d: %v\n%s", name, i+1, err, out)
						break
					}
				}
			}
			result(t, "%d cases, %d times each; %d failed", len(interopCases), interopTimes, failed)
		})
	}
}

// build compiles a program of one of this module's dependencies.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	program := filepath.Join(dir, fmt.Sprintf("interop-%s", filepath.Base(pkg)))
	cmd := exec.Command("go", "build", "-o", program, pkg)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return program
}
