package faults

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/proxy"
)

// short is a timeout that a fault is to run into.
const short = 200 * time.Millisecond

const size = 64 << 10

func large(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Length", fmt.Sprint(size))
	io.WriteString(w, strings.Repeat("x", size))
}

func small(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	io.WriteString(w, "ok")
}

// TestFaults: each fault of the network has one answer, and each request comes
// to the upstream once at most and is told of once. The place in the queue comes
// back each time, or the next request would never leave.
func TestFaults(t *testing.T) {
	headTimeout := func(o *proxy.UpstreamOptions) { o.ResponseHeaderTimeout = short }
	attributes := func(pairs ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name       string
		kind       string
		stream     string
		attributes map[string]any
		change     func(*proxy.UpstreamOptions)
		handler    http.HandlerFunc

		status int
		whole  bool
		error  string // of the answer, or of the event where the answer is cut
		came   int
	}{
		{"none", "", "", nil, nil, large, 200, true, "", 1},
		{"latency within the timeout", "latency", "downstream", attributes("latency", 50, "jitter", 20), nil, large, 200, true, "", 1},
		{"latency beyond the timeout", "latency", "downstream", attributes("latency", 60_000), headTimeout, small, 504, true, "http_response_timeout", 1},
		{"a request that is swallowed", "timeout", "upstream", attributes("timeout", 0), headTimeout, small, 504, true, "http_response_timeout", 0},
		{"an answer that is swallowed", "timeout", "downstream", attributes("timeout", 0), headTimeout, small, 504, true, "http_response_timeout", 1},
		{"a swallowed answer, then closed", "timeout", "downstream", attributes("timeout", 100), nil, small, 502, true, "connection_terminated", 1},
		{"reset before the answer", "reset_peer", "downstream", attributes("timeout", 0), nil, small, 502, true, "connection_terminated", -1},
		{"cut within the head", "limit_data", "downstream", attributes("bytes", 20), nil, small, 502, true, "http_protocol_error", -1},
		{"cut within the body", "limit_data", "downstream", attributes("bytes", size/2), nil, large, 200, false, "http_response_incomplete", 1},
		{"slices", "slicer", "downstream", attributes("average_size", 512, "size_variation", 256, "delay", 100), nil, large, 200, true, "", 1},
		{"slow bytes", "bandwidth", "downstream", attributes("rate", 256), nil, large, 200, true, "", 1},
		{"slow close", "slow_close", "downstream", attributes("delay", 50), nil, large, 200, true, "", 1},
	} {
		for _, scheme := range []string{"http", "h2c"} {
			t.Run(c.name+" "+scheme, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, scheme, c.handler, c.change)
				if c.kind != "" {
					s.toxic(c.kind, c.stream, c.attributes)
				}
				for i, method := range []string{"GET", "POST"} {
					o := s.send(method, fmt.Sprint("/", i), "some body")
					kind := o.error
					if !o.whole {
						kind = o.event.Error
					}
					if broken(kind) && broken(c.error) {
						kind = c.error // by what has come of the head, or of a frame
					}
					cutWithHead := !c.whole && o.status == 0 // the head was not yet on its way
					if o.status != c.status && !cutWithHead || o.whole != c.whole || kind != c.error {
						t.Errorf("%s: status %d, whole %v, error %q, told %q", method, o.status, o.whole, o.error, o.event.Error)
					}
					if o.came > 1 || c.came >= 0 && o.came != c.came {
						t.Errorf("%s came %d times, want %d", method, o.came, c.came)
					}
					if c.whole && c.status == 200 && o.event.Sent != int64(len(o.body)) {
						t.Errorf("%d bytes came, %d are told", len(o.body), o.event.Sent)
					}
				}
				if n := s.up.Status().InFlight; n != 0 {
					t.Errorf("%d in flight at the end", n)
				}
			})
		}
	}
}

// broken reports whether an error is that of a connection that was cut.
func broken(kind string) bool {
	return kind == "connection_terminated" || kind == "http_protocol_error"
}

// TestSilenceWithinABody: an answer whose body stops coming is cut at
// body_timeout, though the connection lives.
func TestSilenceWithinABody(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		t.Run(scheme, func(t *testing.T) {
			silent := make(chan struct{})
			s := newStage(t, scheme, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", fmt.Sprint(size))
				io.WriteString(w, strings.Repeat("x", size/2))
				w.(http.Flusher).Flush()
				<-silent
				io.WriteString(w, strings.Repeat("x", size/2))
			}, func(o *proxy.UpstreamOptions) { o.BodyTimeout = time.Second })
			s.headCame = func() {
				s.toxic("timeout", "downstream", map[string]any{"timeout": 0})
				close(silent)
			}
			o := s.send("GET", "/", "")
			if o.whole || o.event.Error != "connection_read_timeout" || o.came != 1 {
				t.Errorf("status %d, whole %v, told %+v", o.status, o.whole, o.event)
			}
		})
	}
}

// TestNetworkGoesAwayAndComesBack: while nobody can be reached nothing is sent,
// and kept connections that the network lost are no error once it is back.
func TestNetworkGoesAwayAndComesBack(t *testing.T) {
	s := newStage(t, "http", small, nil)
	for i := range 3 {
		if o := s.send("GET", fmt.Sprint("/up", i), ""); o.status != 200 {
			t.Errorf("up: %d", o.status)
		}
		s.net.Stop()
		o := s.send("POST", fmt.Sprint("/down", i), "some body")
		if o.status != 502 || o.came != 0 {
			t.Errorf("down: %d, came %d times", o.status, o.came)
		}
		if err := s.net.Start(); err != nil {
			t.Fatal(err)
		}
	}
}
