package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// bodyTimeout puts another upstream of the same network on r.
func bodyTimeout(limit time.Duration) func(*Route) {
	return func(r *Route) {
		o, dial := r.Upstream.opts, r.Upstream.dial
		o.BodyTimeout = limit
		r.Upstream = NewUpstream(o)
		r.Upstream.dial = dial
	}
}

// TestStalledAnswers: an answer is cut when its body is silent for too long, to
// the nanosecond, and not before, however long it takes in all.
func TestStalledAnswers(t *testing.T) {
	eachProtocol(t, func(t *testing.T, clientH2 bool, scheme string) {
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			for range 5 {
				io.WriteString(rw, "x")
				rw.(http.Flusher).Flush()
				time.Sleep(9 * time.Second)
			}
			if r.URL.Path == "/stalls" {
				<-r.Context().Done()
			}
		}, scheme, bodyTimeout(10*time.Second))
		c := w.client(t, clientH2)
		if code, err := w.get(t.Context(), c, "/slow"); code != 200 || err != nil {
			t.Errorf("a slow one: %d, %v", code, err)
		}
		if e := w.next(t); e.Duration != 45*time.Second || e.Error != "" || e.Sent != 5 {
			t.Errorf("a slow one: told %+v", e)
		}
		if code, err := w.get(t.Context(), c, "/stalls"); code != 200 || err == nil {
			t.Errorf("a stalled one looks whole: %d", code)
		}
		// The last byte came at 36 s.
		if e := w.next(t); e.Duration != 46*time.Second || e.Error != "connection_read_timeout" || e.Status != 200 || e.UpstreamStatus != 200 {
			t.Errorf("a stalled one: told %+v", e)
		}
	})
}

// TestStalledRequests: an upstream that does not take the request is given up,
// and what the client sends slowly is not held against it.
func TestStalledRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, "http", bodyTimeout(10*time.Second))
		r := w.proxy.site.Load().Routes[0]
		var far []net.Conn
		r.Upstream.dial = func(_ context.Context, _, _ string) (net.Conn, error) {
			a, b := net.Pipe() // nobody reads from it
			far = append(far, b)
			return a, nil
		}
		c := w.client(t, false)
		res, err := c.Post("http://front.test/", "text/plain", strings.NewReader(strings.Repeat("x", 100_000)))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if ended := time.Since(w.start); res.StatusCode != 504 || errorType(t, res.Header) != "connection_write_timeout" || ended != 10*time.Second {
			t.Errorf("status %d, %q after %v", res.StatusCode, res.Header["Proxy-Status"], ended)
		}
		if e := w.next(t); e.Error != "connection_write_timeout" || e.UpstreamStatus != UpstreamError {
			t.Errorf("told %+v", e)
		}
		for _, b := range far {
			b.Close()
		}
	})
}
