package main

import (
	"fmt"
	"io"
	"iter"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// demoAddresses are the host:port on which the three parts of the demo listen.
type demoAddresses struct{ Upstream, Proxy, Admin string }

// byFlag are the addresses with the flags that they are set by, in the order in
// which they are listened on.
func (at *demoAddresses) byFlag() iter.Seq2[string, *string] {
	return func(yield func(string, *string) bool) {
		_ = yield("listen", &at.Proxy) && yield("upstream", &at.Upstream) && yield("admin", &at.Admin)
	}
}

// lookup is the environment of the demo's configuration.
func (at demoAddresses) lookup(name string) (string, bool) {
	address, ok := map[string]string{"UPSTREAM": at.Upstream, "PROXY": at.Proxy, "ADMIN": at.Admin}[name]
	return address, ok
}

// printDemo tells what runs where, and three things to try with what they will
// show. Each of them prints one line a request as its answer comes.
func printDemo(w io.Writer, at demoAddresses, limit config.Limit) {
	interval := limit.Rate.Interval()
	part := func(name, address, does string) {
		fmt.Fprintf(w, "  %-10s %-24s %s\n", name, "http://"+address, does)
	}
	fmt.Fprintln(w)
	part("upstream", at.Upstream+"/", fmt.Sprintf("made for %d requests a second; at more than %d in a second it breaks,\n%37s and answers 503 for %s",
		fragileRate, fragileMost, "", fragileOutage))
	part("proxy", at.Proxy+"/", fmt.Sprintf("in front of it: lets one through each %s, %d may wait", interval, limit.Queue))
	part("live page", at.Admin+"/", "the queue as it fills and drains")
	part("playground", at.Proxy+"/play", "press a button, and see the five algorithms decide side by side")
	fmt.Fprintf(w, "\nThree things to try in another terminal, with the live page in view:\n\n")

	burst := func(address string) string {
		return fmt.Sprintf(`seq 30 | xargs -P 30 -I{} curl -s -o /dev/null -w '%%{http_code} after %%{time_total} s\n' http://%s/`, address)
	}
	fmt.Fprintf(w, `1. 30 requests at once to the upstream itself: %d get 200, then it breaks, and the rest get 503.

   %s

2. The same through the proxy, %s later: all 30 get 200, one each %s, the last after %s.

   %s

3. Six calls to a limit of 5 that lets through at once or not at all: five times 200, then 429
   with the seconds until the next. Also leaky-bucket, fixed-window, sliding-window-log and
   sliding-window-counter.

   for i in 1 2 3 4 5 6; do curl -s -w '%%{http_code}\n' 'http://%s/check?algo=token-bucket'; done

`, fragileMost, burst(at.Upstream), fragileOutage, interval, 29*interval, burst(at.Proxy), at.Proxy)
}

func printSummary(w io.Writer, c fragileCounts) {
	broke := fmt.Sprintf("broke %d times", c.Broke)
	switch c.Broke {
	case 0:
		broke = "never broke"
	case 1:
		broke = "broke once"
	}
	fmt.Fprintf(w, "the upstream was sent %d requests, served %d, answered 503 to %d, and %s\n", c.Sent, c.Served, c.Failed, broke)
}
