package main

import (
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func post(t *testing.T, url string) reply {
	t.Helper()
	res, err := http.Post(url, "text/plain", strings.NewReader("body"))
	if err != nil {
		return reply{err: err}
	}
	res.Body.Close()
	return reply{status: res.StatusCode, header: res.Header}
}

// What is throttled, or has its connection closed, is sent again by default where
// the method allows; a reload can change that.
func TestRequestsTakeAnotherTurn(t *testing.T) {
	var mu sync.Mutex
	var came []string
	upstream := serveUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		said := r.Method + r.URL.Path
		first := !slices.Contains(came, said)
		came = append(came, said)
		switch {
		case first && strings.HasPrefix(r.URL.Path, "/throttled"):
			w.Header().Set("Retry-After-Ms", "300")
			w.WriteHeader(http.StatusTooManyRequests)
		case first && strings.HasPrefix(r.URL.Path, "/closed"):
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			c.(*net.TCPConn).Close()
		}
	})
	config := configOf(upstream, "")
	with := func(fields string) string {
		return strings.Replace(config, "[upstream.u]\n", "[upstream.u]\n"+fields+"\n", 1)
	}
	p := start(t, config)
	ask := func(f func(*testing.T, string) reply, path string, want, times int) {
		t.Helper()
		began := time.Now()
		get(t, "http://"+p.addr+"/") // so that there is a kept connection
		mu.Lock()
		came = nil
		mu.Unlock()
		if r := f(t, "http://"+p.addr+path); r.status != want {
			t.Errorf("%s: %+v", path, r)
		}
		if d := time.Since(began); strings.HasPrefix(path, "/throttled") && times > 1 && d < 300*time.Millisecond {
			t.Errorf("%s: answered after %v", path, d)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(came) != times {
			t.Errorf("%s: the upstream got %q", path, came)
		}
	}
	ask(get, "/throttled", 200, 2)
	ask(post, "/throttled", 429, 1)
	ask(get, "/closed", 200, 2)
	ask(post, "/closed", 502, 1)
	p.waitLog(t, "path=/throttled status=200 route=/")
	p.waitLog(t, "attempt=2")
	p.metric(t, `shapeproxy_retries_total{reason="throttled"} 1`)
	p.metric(t, `shapeproxy_retries_total{reason="connection_closed"} 1`)
	p.metric(t, `shapeproxy_upstream_responses_total{code="429",upstream="u"} 2`)
	p.metric(t, `shapeproxy_upstream_in_flight{upstream="u"} 0`)

	reload := func(n int, fields string) {
		t.Helper()
		p.write(t, with(fields))
		p.signal(t, syscall.SIGHUP)
		until(t, "the reload", func() bool { return strings.Count(p.logged(), "configuration reloaded") == n })
	}
	reload(1, `retry = "any"`)
	ask(post, "/throttled2", 200, 2)
	ask(post, "/closed2", 200, 2)
	reload(2, `retry = "never"`)
	ask(get, "/throttled3", 429, 1)
	ask(get, "/closed3", 502, 1)
}
