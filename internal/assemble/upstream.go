package assemble

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// newUpstream makes an upstream of its table, or takes the connections of the
// old one over where it would be the same. What its files hold is a part of the
// table, so a new certificate makes a new upstream.
func newUpstream(c config.Upstream, old *generation, log *slog.Logger) (*upstream, error) {
	u := &upstream{conf: c, gates: gates(c, old)}
	u.ear = newEar(u, old, log)
	for _, before := range old.upstreams {
		if sameUpstream(before.conf, c) {
			u.Upstream = before.Upstream
			return u, nil
		}
	}
	secure, err := clientTLS(c)
	if err != nil {
		return nil, err
	}
	o := proxy.UpstreamOptions{
		Name: c.Name, Scheme: c.Scheme, BasePath: c.BasePath, SendHost: c.SendHost,
		ResolveInterval: c.ResolveInterval, DialTimeout: c.DialTimeout, TLSHandshakeTimeout: c.TLSHandshakeTimeout,
		ResponseHeaderTimeout: c.ResponseHeaderTimeout, BodyTimeout: c.BodyTimeout,
		MaxIdleConns: c.MaxIdleConns, IdleConnTimeout: c.IdleConnTimeout, TLS: secure,
		Health: proxy.HealthPolicy(c.Health), Log: log,
	}
	if b := c.Breaker; b != nil {
		o.Breaker = &proxy.BreakerPolicy{
			FailureRatio: b.FailureRatio, Window: b.Window, MinRequests: int64(b.MinRequests), OpenFor: b.OpenFor,
			Probes: b.Probes, Statuses: b.Statuses,
		}
		if b.WhenOpen == "wait" {
			o.Gate = u.gates.Of("")
		}
	}
	for _, p := range c.Places {
		o.Places = append(o.Places, proxy.Place(p))
	}
	u.Upstream = proxy.NewUpstream(o)
	return u, nil
}

// gates are those before an upstream of that table, or the old ones, before which
// those stand who wait: nil, if nothing would close them.
func gates(c config.Upstream, old *generation) *shaping.Gates {
	if !c.Obey.On && (c.Breaker == nil || c.Breaker.WhenOpen != "wait") {
		return nil
	}
	for _, before := range old.upstreams {
		if before.conf.Name == c.Name && before.gates != nil && before.conf.Obey.By.String() == c.Obey.By.String() {
			return before.gates
		}
	}
	if len(c.Obey.By.Parts()) > 0 {
		return shaping.NewKeyedGates(limiter.DefaultMaxKeys)
	}
	return shaping.NewGates()
}

// sameUpstream reports whether connections of a serve b: what is set on
// requests and which are sent again belongs to the route, and what is heard of it
// to its ear.
func sameUpstream(a, b config.Upstream) bool {
	a.SetHeaders, b.SetHeaders = nil, nil
	a.Obey, b.Obey = config.Obey{}, config.Obey{}
	a.Retry, b.Retry = config.Retry{}, config.Retry{}
	return reflect.DeepEqual(a, b)
}

func clientTLS(c config.Upstream) (*tls.Config, error) {
	if c.Scheme != "https" {
		return nil, nil
	}
	t := &tls.Config{ServerName: c.TLS.ServerName}
	if c.TLS.CA != "" {
		t.RootCAs = x509.NewCertPool()
		t.RootCAs.AppendCertsFromPEM([]byte(c.TLS.CA))
	}
	if c.TLS.ClientCert != "" {
		pair, err := tls.X509KeyPair([]byte(c.TLS.ClientCert), []byte(c.TLS.ClientKey))
		if err != nil {
			return nil, fmt.Errorf("the client certificate for the upstream %s: %w", c.Name, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// holds reports whether requests under these limits wait before the gate of
// their upstream.
func holds(limits []*limit) bool {
	return slices.ContainsFunc(limits, func(l *limit) bool { return l.conf.Queue > 0 && !l.conf.DryRun })
}
