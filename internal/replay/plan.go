package replay

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/internal/assemble"
	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A plan finds for every request what a configuration asks about it. Requests
// that are asked the same share one ask.
type plan struct {
	config *config.Config
	system *assemble.System
	routes map[string]*config.Route
	asks   map[string]*ask
	named  []byte // of the ask that is looked up

	request http.Request // reused
	url     url.URL
	seen    fields
}

// An ask is a route and whose budgets of its limits are used.
type ask struct {
	route *config.Route // nil: none
	keys  []limiter.Key
	bad   bool // answered with 400
}

// fields are what of requests the logs have told.
type fields struct {
	host, service bool
	header        map[string]bool
}

func newPlan(c *config.Config) (*plan, error) {
	p := &plan{config: c, routes: make(map[string]*config.Route), asks: make(map[string]*ask)}
	p.system = assemble.New(proxy.Observers{}, slog.New(slog.DiscardHandler))
	if err := p.system.Apply(alone(c)); err != nil {
		p.system.Close()
		return nil, err
	}
	for i := range c.Routes {
		p.routes[c.Routes[i].Match] = &c.Routes[i]
	}
	p.request = http.Request{ProtoMajor: 1, ProtoMinor: 1, URL: &p.url}
	p.seen.header = make(map[string]bool)
	return p, nil
}

// alone is the configuration without what would talk to anybody: a System of it
// only says which routes and keys requests have. What the log of one proxy tells is
// decided by that one alone.
func alone(c *config.Config) *config.Config {
	quiet := *c
	quiet.Limits, quiet.Upstreams = slices.Clone(c.Limits), slices.Clone(c.Upstreams)
	for i := range quiet.Limits {
		quiet.Limits[i].Shared, quiet.Limits[i].StoreDown = false, ""
	}
	for i := range quiet.Upstreams {
		quiet.Upstreams[i].Health.Path = ""
	}
	return &quiet
}

func (p *plan) close() { p.system.Close() }

// of is the ask of a logged request. Where the log does not tell the host it is
// the given one.
func (p *plan) of(r *record, host string) *ask {
	p.seen.host = p.seen.host || r.host != ""
	p.seen.service = p.seen.service || r.service >= 0
	for name := range r.header {
		if !p.seen.header[name] {
			p.seen.header[strings.Clone(name)] = true
		}
	}
	q := &p.request
	q.Method, q.RequestURI, q.Host, q.Header = r.method, r.target, r.host, r.header
	if q.Host == "" {
		q.Host = host
	}
	q.RemoteAddr = r.client
	if strings.Count(r.client, ":") != 1 && !strings.HasPrefix(r.client, "[") {
		if strings.Contains(r.client, ":") {
			q.RemoteAddr = "[" + r.client + "]:0"
		} else {
			q.RemoteAddr = r.client + ":0"
		}
	}
	p.url = url.URL{}
	if strings.HasPrefix(r.target, "/") {
		_, p.url.RawQuery, _ = strings.Cut(r.target, "?")
	} else if u, err := url.Parse(r.target); err == nil { // absolute-form names its host
		p.url = *u
		if u.Host != "" {
			q.Host = u.Host
		}
	}
	route, keys, err := p.system.Proxy.Find(q)
	return p.intern(route, keys, err)
}

// intern returns the one ask for what was found.
func (p *plan) intern(route *proxy.Route, keys []limiter.Key, err error) *ask {
	b := p.named[:0]
	switch {
	case route != nil:
		b = append(b, route.Match...)
	case errors.Is(err, proxy.ErrNoRoute):
		b = append(b, "none"...)
	}
	if err != nil && !errors.Is(err, proxy.ErrNoRoute) {
		b, keys = append(b, "\x00bad"...), nil
	}
	for i := range keys {
		k := &keys[i]
		b = append(b, 0)
		b = strconv.AppendQuote(b, k.Value)
		b = strconv.AppendQuote(b, k.Flow)
		b = strconv.AppendBool(strconv.AppendBool(strconv.AppendBool(b, k.Skip), k.Missing), k.Free)
		b = strconv.AppendInt(append(strconv.AppendInt(b, k.Cost, 10), ','), int64(k.MaxWait), 10)
	}
	p.named = b
	if a, ok := p.asks[string(b)]; ok {
		return a
	}
	a := &ask{keys: slices.Clone(keys), bad: err != nil && !errors.Is(err, proxy.ErrNoRoute)}
	for i := range a.keys { // or they would keep whole lines of the log
		a.keys[i].Value, a.keys[i].Flow = strings.Clone(a.keys[i].Value), strings.Clone(a.keys[i].Flow)
	}
	if route != nil {
		a.route = p.routes[route.Match]
	}
	p.asks[string(b)] = a
	return a
}

// doubts are what the configuration asks of requests and the logs do not tell.
func (p *plan) doubts(service bool) (notes []string) {
	say := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	used := make(map[string]bool)
	for _, r := range p.config.Routes {
		if !p.seen.host && !strings.HasPrefix(r.Match[strings.IndexByte(r.Match, ' ')+1:], "/") {
			say("route %q names a host, and the log has none: give it with --host", r.Match)
		}
		for _, name := range r.Limits {
			used[name] = true
		}
	}
	for _, l := range p.config.Limits {
		if !used[l.Name] {
			continue
		}
		for _, part := range slices.Concat(l.Key.Parts(), l.FairBy.Parts()) {
			switch part.Kind {
			case identity.Header:
				if !p.seen.header[part.Name] {
					say("limit %q counts by %s, which the log does not have", l.Name, part)
				}
			case identity.Cookie:
				if !p.seen.header["Cookie"] {
					say("limit %q counts by %s, which the log does not have", l.Name, part)
				}
			}
		}
		if l.CostHeader != "" && !p.seen.header[l.CostHeader] {
			say("limit %q takes its cost from a header that the log does not have: every request costs 1", l.Name)
		}
		if l.MinRate.Count > 0 {
			say("limit %q searches for its rate, and the log cannot tell what would have been found: it goes at max_rate = %q", l.Name, l.Rate)
		}
		if l.MinInFlight > 0 {
			say("limit %q searches for max_in_flight, and the log cannot tell what would have been found: it is max_in_flight_limit = %d", l.Name, l.MaxInFlight)
		}
		if l.MaxInFlight > 0 && !p.seen.service && !service {
			say("limit %q bounds the requests in flight, and the log does not say how long they took: give it with --service-time, or nothing is ever in flight", l.Name)
		}
	}
	return notes
}
