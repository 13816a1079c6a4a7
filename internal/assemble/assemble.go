// Package assemble makes routes and limiters of a configuration, and on a
// reload carries the state of limits and the connections of upstreams over.
package assemble

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/internal/redisstore"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A System is a running Proxy and what stands behind it, by the configuration
// that was applied last. Its methods are safe for concurrent use.
type System struct {
	Proxy *proxy.Proxy
	// Misdirected is every Site's; it must be set before the first Apply.
	Misdirected func(*tls.ConnectionState) bool

	store  *limiter.Memory
	log    *slog.Logger
	alarms *shaping.Alarms // nil: timers of the runtime
	state  stateFile
	left   leftovers
	apply  sync.Mutex // held while a configuration is applied
	now    atomic.Pointer[generation]

	answered func(time.Duration) // by the store of shared limits; may be nil
}

// KeepAlarms has the queues that are made from now on be woken as exactly as the
// machine allows, which takes a descriptor and a goroutine until Close. It must
// be called before the first Apply.
func (s *System) KeepAlarms() error {
	alarms, err := shaping.NewAlarms()
	if err != nil {
		return err
	}
	s.alarms = alarms
	return nil
}

// A generation is what one configuration made.
type generation struct {
	limits    []*limit
	shared    *redisstore.Store // nil: no limit is shared
	redis     config.Redis      // where that is
	upstreams []*upstream
}

// An upstream is one upstream of the configuration with its connections.
type upstream struct {
	*proxy.Upstream
	conf  config.Upstream
	gates *shaping.Gates // before it; nil: none
	ear   *ear           // nil: it is not obeyed
}

// A limit is one limit of the configuration with its live state.
type limit struct {
	conf       config.Limit
	def        redisstore.Definition // of one that is shared
	link       shaping.Link
	departures *redisstore.Departures // of a queue whose rate is shared
	leases     *redisstore.Leases     // of a queue that is shared, for its places
	routes     []string
	gates      []*shaping.Gates // behind it, those of each route; nil: none
}

// New returns a System that serves nothing yet. It must be closed.
func New(observe proxy.Observer, log *slog.Logger) *System {
	s := &System{Proxy: proxy.New(observe, log), log: log, store: limiter.NewMemory()}
	s.now.Store(&generation{})
	return s
}

// Apply makes c what requests see. It builds everything first, so that an
// error leaves all as it was. A limit that keeps its name, form, algorithm and
// key keeps its state and its waiters; any other starts anew, and waiters of
// the old one leave by the old rules. An upstream that did not change keeps
// its connections.
func (s *System) Apply(c *config.Config) (err error) {
	s.apply.Lock()
	defer s.apply.Unlock()
	old := s.now.Load()
	next := &generation{}
	s.sharing(c, old, next)
	defer func() {
		if err != nil {
			endSharing(next, old)
		}
	}()
	defs := definitions(c)

	limits := make(map[string]*limit, len(c.Limits))
	var adopt []func() error
	for _, conf := range c.Limits {
		l := &limit{conf: conf, def: defs[conf.Name]}
		before := old.limit(conf.Name)
		if before != nil && sameState(before.conf, conf) && (!conf.Shared || old.shared == next.shared) {
			l.link, l.departures, l.leases = before.link, before.departures, before.leases
			adopt = append(adopt, l.adopt)
		} else if err := l.build(s, next.shared); err != nil {
			return err
		}
		next.limits = append(next.limits, l)
		limits[conf.Name] = l
	}

	upstreams := make(map[string]*upstream, len(c.Upstreams))
	for _, conf := range c.Upstreams {
		u, err := newUpstream(conf, old, s.log)
		if err != nil {
			return err
		}
		next.upstreams = append(next.upstreams, u)
		upstreams[conf.Name] = u
	}

	resolver := identity.Resolver{Trusted: c.Server.TrustedProxies, IPv6Prefix: c.Server.IPv6Prefix}
	site := &proxy.Site{Misdirected: s.Misdirected, Client: func(remoteAddr string, xff []string) (netip.Addr, bool) {
		return resolver.Client(remoteAddr, xff)
	}}
	b := &c.Server.Bounds
	site.Bounds = proxy.Bounds{
		Headers: b.MaxHeaders, BodyTimeout: b.BodyTimeout, MinBodyRate: b.MinBodyRate, SendTimeout: b.SendTimeout, MinSendRate: b.MinSendRate,
		Resets: b.MaxResets, Waiting: b.MaxWaiting, TunnelIdle: b.WebSocketIdleTime,
	}
	for _, d := range c.Server.RateLimitHeaders {
		site.RateLimitHeaders = append(site.RateLimitHeaders, proxy.Dialect(d))
	}
	for _, conf := range c.Routes {
		var of []*limit
		for _, name := range conf.Limits {
			l := limits[name]
			l.routes = append(l.routes, conf.Match)
			l.gates = append(l.gates, upstreams[conf.Upstream].gates)
			of = append(of, l)
		}
		site.Routes = append(site.Routes, s.route(conf, upstreams[conf.Upstream], setHeaders(c, conf.Upstream), of, c.Server.IPv6Prefix, c.Server.TrustedProxies, next.shared))
	}
	if err := site.Check(); err != nil {
		return err
	}

	for _, f := range adopt {
		if err := f(); err != nil {
			return err
		}
	}
	for _, l := range old.limits {
		if after := limits[l.conf.Name]; l.link.Queue != nil && (after == nil || after.link != l.link) {
			s.left.add(l.conf.Name, l.link.Queue)
		}
	}
	for _, u := range next.upstreams {
		if u.ear != nil {
			u.ear.obey.Store(&u.conf.Obey)
		}
	}
	s.now.Store(next)
	s.Proxy.Serve(site)
	endSharing(old, next)
	for _, u := range next.upstreams {
		if !slices.ContainsFunc(old.upstreams, func(before *upstream) bool { return before.Upstream == u.Upstream }) {
			u.Start()
		}
	}
	for _, u := range old.upstreams {
		now := upstreams[u.conf.Name]
		if now == nil || now.Upstream != u.Upstream {
			u.Close()
		}
		if now == nil || now.ear != u.ear {
			u.ear.close()
		}
	}
	return nil
}

func (g *generation) limit(name string) *limit {
	for _, l := range g.limits {
		if l.conf.Name == name {
			return l
		}
	}
	return nil
}

// sameState reports whether the state under a still means the same under b.
func sameState(a, b config.Limit) bool {
	return a.Shared == b.Shared && a.Algorithm == b.Algorithm && (a.Queue > 0) == (b.Queue > 0) && a.Key.String() == b.Key.String()
}

func (l *limit) build(s *System, shared *redisstore.Store) (err error) {
	switch {
	case l.conf.Shared && l.conf.Queue > 0:
		return l.buildShared(s, shared)
	case l.conf.Shared && l.conf.Algorithm == limiter.Concurrency:
		l.link.Places, err = shared.NewPlaces(QueuePolicy(l.conf), l.def)
	case Queues(l.conf):
		l.link.Queue, err = shaping.New(QueuePolicy(l.conf), shaping.WithAlarms(s.alarms))
	case l.conf.Shared:
		l.link.Shared, err = shared.NewLimit(RejectPolicy(l.conf), l.def)
	default:
		l.link.Reject, err = s.store.NewLimit(RejectPolicy(l.conf))
	}
	return err
}

// buildShared makes a queue whose rate and places are shared.
func (l *limit) buildShared(s *System, shared *redisstore.Store) (err error) {
	p := QueuePolicy(l.conf)
	if l.leases, err = shared.NewLeases(p, l.def); err != nil {
		return err
	}
	options := []shaping.Option{shaping.WithAlarms(s.alarms), shaping.WithLeases(l.leases)}
	if p.Rate.Count > 0 {
		if l.departures, err = shared.NewDepartures(p, l.def); err != nil {
			return err
		}
		options = append(options, shaping.WithPace(l.departures))
	}
	if l.link.Queue, err = shaping.New(p, options...); err != nil {
		return err
	}
	l.leases.Watch(l.link.Queue)
	if l.departures != nil {
		l.departures.Watch(l.link.Queue)
	}
	return nil
}

func (l *limit) adopt() error {
	switch {
	case l.leases != nil:
		p := QueuePolicy(l.conf)
		if err := l.leases.Adopt(p, l.def); err != nil {
			return err
		}
		if l.departures != nil {
			if err := l.departures.Adopt(p, l.def); err != nil {
				return err
			}
		}
		return l.link.Queue.Adopt(p)
	case l.link.Queue != nil:
		return l.link.Queue.Adopt(QueuePolicy(l.conf))
	case l.link.Places != nil:
		return l.link.Places.(*redisstore.Places).Adopt(QueuePolicy(l.conf), l.def)
	case l.link.Shared != nil:
		return l.link.Shared.(*redisstore.Limit).Adopt(RejectPolicy(l.conf), l.def)
	}
	return l.link.Reject.Adopt(RejectPolicy(l.conf))
}

// Queues reports whether the limit is a shaping.Shaper: a queue, or places that
// are held while a request is unfinished.
func Queues(c config.Limit) bool { return c.Queue > 0 || c.Algorithm == limiter.Concurrency }

// QueuePolicy is what the configuration asks of a limit that Queues.
func QueuePolicy(c config.Limit) shaping.Policy {
	return shaping.Policy{
		Name: c.Name, Rate: c.Rate, Burst: c.Burst, MaxInFlight: c.MaxInFlight, Queue: c.Queue, MaxWait: c.MaxWait,
		MinRate: c.MinRate, MinInFlight: c.MinInFlight, PromoteAfter: c.PromoteAfter, ShedAbove: c.ShedAbove, ReserveHigh: c.ReserveHigh,
		MaxKeys: c.MaxKeys, Status: c.Status, DryRun: c.DryRun,
	}
}

// RejectPolicy is what the configuration asks of any other limit.
func RejectPolicy(c config.Limit) limiter.Policy {
	return limiter.Policy{
		Name: c.Name, Algorithm: c.Algorithm, Rate: c.Rate, Burst: c.Burst, Limit: c.Limit, Window: c.Window,
		Calendar: c.Calendar, Location: c.Location, MaxKeys: c.MaxKeys, Status: c.Status, DryRun: c.DryRun,
	}
}

func setHeaders(c *config.Config, upstream string) []proxy.Field {
	var fields []proxy.Field
	for _, u := range c.Upstreams {
		if u.Name == upstream {
			for _, h := range u.SetHeaders {
				fields = append(fields, proxy.Field(h))
			}
		}
	}
	return fields
}

// route makes a route whose Chain asks its limits in order.
func (s *System) route(c config.Route, u *upstream, set []proxy.Field, limits []*limit, ipv6Prefix int, trusted identity.Trust, shared *redisstore.Store) *proxy.Route {
	r := &proxy.Route{
		Match: c.Match, Pattern: c.Pattern, Upstream: u.Upstream, Held: holds(limits), SetHeaders: set,
		StripPrefix: c.StripPrefix, MaxBodyBytes: c.MaxBodyBytes, Timeout: c.Timeout, ServerTiming: c.ServerTiming,
		Retry: proxy.RetryPolicy{Most: u.conf.Retry.Most, Any: u.conf.Retry.Of == "any", Body: u.conf.Retry.Body},
	}
	ear := u.ear
	if ear != nil {
		searched := slices.ContainsFunc(limits, func(l *limit) bool { return l.conf.MinRate.Count > 0 })
		r.Ask = func(keys []limiter.Key) func(int, http.Header) bool { return ear.ask(keys, searched) }
	} else if len(limits) == 0 {
		return r
	}
	resolver := identity.Resolver{Trusted: trusted}
	links := make([]shaping.Link, len(limits))
	confs := make([]config.Limit, len(limits))
	for i, l := range limits {
		links[i], confs[i] = l.link, l.conf
	}
	chain := shaping.NewChain(s.store, links...).Of(Classes[c.Priority]).To(u.gates)
	if shared != nil {
		chain = chain.Sharing(shared)
	}
	if len(limits) > 0 {
		r.Limiter = chain
	}
	r.Identify = func(of proxy.Identity) ([]limiter.Key, error) {
		src := identity.Source{
			Request: of.Request, Client: of.Client, IPv6Prefix: ipv6Prefix,
			Host: of.Host, Route: of.Route, PathValue: of.PathValue,
		}
		keys := make([]limiter.Key, len(confs))
		for i := range confs {
			key, err := keyOf(&confs[i], src)
			if err == nil && confs[i].CostHeader != "" && !key.Skip {
				if _, believed := resolver.Client(of.Request.RemoteAddr, nil); believed {
					err = readCost(&key, of.Request.Header[confs[i].CostHeader])
				}
			}
			if err != nil {
				return nil, err
			}
			keys[i] = key
		}
		return ear.key(keys, src), nil
	}
	return r
}

// Classes are the priorities of routes by their words.
var Classes = map[string]queue.Class{"high": queue.High, "normal": queue.Normal, "low": queue.Low}

// keyOf is whose budget of one limit a request uses.
func keyOf(c *config.Limit, src identity.Source) (limiter.Key, error) {
	value, present, err := c.Key.Of(src)
	if err != nil {
		return limiter.Key{}, err
	}
	switch {
	case c.Exempt.Contains(src.Client):
		return limiter.Key{Skip: true}, nil
	case !present && c.MissingKey == "skip":
		return limiter.Key{Skip: true}, nil
	case !present && c.MissingKey == "reject":
		return limiter.Key{Missing: true}, nil
	}
	key := limiter.Key{Value: value, Cost: c.Cost}
	if c.Queue > 0 {
		// Requests that lack what fair_by names take turns as one.
		if key.Flow, _, err = c.FairBy.Of(src); err != nil {
			return limiter.Key{}, err
		}
		key.MaxWait = patience(src.Request.Header, c.DeadlineHeader)
	}
	return key, nil
}

// Close gives idle connections to upstreams back, and ends the alarms. Requests
// that wait still must be cut by their contexts.
func (s *System) Close() {
	for _, u := range s.now.Load().upstreams {
		u.Close()
		u.ear.close()
	}
	endSharing(s.now.Load(), &generation{})
	_ = s.alarms.Close() // a descriptor of our own, which cannot fail to close
}
