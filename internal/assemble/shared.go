package assemble

import (
	"crypto/tls"
	"crypto/x509"
	"reflect"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/redisstore"
)

// TellStore has f told how long each answer of the store of shared limits took.
// It must be called before the first Apply.
func (s *System) TellStore(f func(time.Duration)) { s.answered = f }

// Store reports whether the store of shared limits answers, and how many proxies
// shared it when it did last, this one included: none if there is no store.
func (s *System) Store() (up bool, proxies int) {
	shared := s.now.Load().shared
	if shared == nil {
		return false, 0
	}
	return shared.Up(), shared.Proxies()
}

// sharing gives next the store that c asks for: that of old if it is the same.
func (s *System) sharing(c *config.Config, old, next *generation) {
	if !slices.ContainsFunc(c.Limits, func(l config.Limit) bool { return l.Shared }) {
		return
	}
	next.redis = c.Redis
	if old.shared != nil && reflect.DeepEqual(old.redis, c.Redis) {
		next.shared = old.shared
		return
	}
	r := &c.Redis
	o := redisstore.Options{
		Address: r.Address, SentinelMaster: r.SentinelMaster, Cluster: r.Cluster, DB: r.DB, Prefix: r.Prefix,
		Username: r.Username, Password: r.Password, HashKey: []byte(r.HashKey), Timeout: r.Timeout,
		Answered: s.answered, Log: s.log,
	}
	if r.TLS {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if r.CA != "" {
			o.TLS.RootCAs = x509.NewCertPool()
			o.TLS.RootCAs.AppendCertsFromPEM([]byte(r.CA))
		}
	}
	next.shared = redisstore.New(o)
}

// endSharing closes the store of one generation unless the other goes on with
// it, and what of it that one does without.
func endSharing(of, other *generation) {
	if of.shared == nil {
		return
	}
	if of.shared != other.shared {
		of.shared.Close()
		return
	}
	for _, l := range of.limits {
		if slices.ContainsFunc(other.limits, func(o *limit) bool { return o.link == l.link }) {
			continue
		}
		if l.link.Shared != nil {
			l.link.Shared.(*redisstore.Limit).Drop()
		}
		if l.departures != nil {
			l.departures.Drop()
		}
		if l.leases != nil {
			l.leases.Drop()
		}
		if l.link.Places != nil {
			l.link.Places.(*redisstore.Places).Drop()
		}
	}
}

// definitions says of each shared limit how it is kept. Limits that a route names
// together are asked in one call, so their keys must stand together: with those
// of each client if all are counted by the same, or else with those of all.
func definitions(c *config.Config) map[string]redisstore.Definition {
	group := map[string]string{} // the limit that stands for those it is asked with
	byName := map[string]*config.Limit{}
	for i := range c.Limits {
		if l := &c.Limits[i]; l.Shared {
			group[l.Name], byName[l.Name] = l.Name, l
		}
	}
	givenBack := map[string]bool{}
	for _, r := range c.Routes {
		queues := slices.ContainsFunc(c.Limits, func(l config.Limit) bool { return Queues(l) && slices.Contains(r.Limits, l.Name) })
		first := ""
		for _, name := range r.Limits {
			if byName[name] == nil || Queues(*byName[name]) {
				continue // places and departures are asked for in calls of their own
			}
			givenBack[name] = givenBack[name] || queues
			if first == "" {
				first = name
				continue
			}
			// The first of them in the alphabet, so that the order of routes and
			// limits moves no key.
			a, b := group[first], group[name]
			for l, g := range group {
				if g == a || g == b {
					group[l] = min(a, b)
				}
			}
		}
	}
	all := map[string]redisstore.Definition{}
	for name, l := range byName {
		def := redisstore.Definition{CountedBy: l.Key.String(), Down: redisstore.Down(l.StoreDown), GivenBack: givenBack[name]}
		for other, g := range group {
			if g == group[name] && byName[other].Key.String() != def.CountedBy {
				def.Together = g
			}
		}
		all[name] = def
	}
	return all
}
