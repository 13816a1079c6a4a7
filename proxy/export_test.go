package proxy

import (
	"net/http"
	"testing"
)

// Upstreams has h stand, over pipes in memory, for the upstreams of all that p
// serves, for tests from outside.
func (p *Proxy) Upstreams(t *testing.T, h http.Handler) {
	near := newPipeNet()
	s := &http.Server{Handler: h}
	go s.Serve(near)
	t.Cleanup(func() { s.Close() })
	for _, r := range p.site.Load().Routes {
		r.Upstream.dial = near.dial
	}
}

// Kept is what p keeps, in bytes, of requests and answers.
func (p *Proxy) Kept() int64 { return p.kept.Load() }
