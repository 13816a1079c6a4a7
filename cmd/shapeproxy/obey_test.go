package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// One client is throttled, with the upstream's own words, and those who come
// meanwhile are not: they wait until the upstream may be asked again.
func TestThrottledUpstreamIsLeftAlone(t *testing.T) {
	var mu sync.Mutex
	var said time.Time   // when the upstream throttled
	var came []time.Time // when others came to it
	upstream := serveUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if said.IsZero() {
			said = time.Now()
			w.Header().Set("Retry-After", "1.5")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		came = append(came, time.Now())
	})
	p := start(t, configOf(upstream, ""))
	if r := post(t, "http://"+p.addr+"/"); r.status != 429 || r.header.Get("Retry-After") != "1.5" || r.header.Get("Proxy-Status") != "" {
		t.Fatalf("the answer is %+v", r)
	}
	p.waitLog(t, `msg="an upstream is paused" upstream=u why=throttled`)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if r := get(t, "http://"+p.addr+"/"); r.status != 200 {
				t.Errorf("who waits gets %+v", r)
			}
		})
	}
	all.Wait()
	p.waitLog(t, `msg="an upstream is asked again" upstream=u`)
	p.metric(t, `shapeproxy_upstream_throttled_total{upstream="u"} 1`)
	p.metric(t, `shapeproxy_paused{limit="q"} 0`)
	p.metric(t, `shapeproxy_effective_rate{limit="q"} 20`)
	mu.Lock()
	defer mu.Unlock()
	if len(came) != 5 || came[0].Sub(said) < 1500*time.Millisecond {
		t.Errorf("it throttled at %v, and then requests came at %v", said, came)
	}
	if n := strings.Count(p.logged(), "an upstream is"); n != 2 {
		t.Errorf("%d lines tell of it:\n%s", n, p.logged())
	}
}
