package main

import (
	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/edge"
	"github.com/shapeproxy/shapeproxy/internal/metrics"
)

// adminConnections is far more than operators, Prometheus and live pages need.
const adminConnections = 512

// clientLimits are what the file says of clients' connections.
func clientLimits(c config.Server) edge.Limits {
	l := edge.Limits{
		Connections: c.Bounds.MaxConnections,
		PerClient:   c.Bounds.MaxPerClient,
		IPv6Prefix:  c.IPv6Prefix,
		Exempt:      c.TrustedProxies.Contains,
		SendTimeout: c.Bounds.SendTimeout,
		MinSendRate: c.Bounds.MinSendRate,

		IntroTimeout: c.ReadHeaderTimeout,
	}
	if !c.Bounds.ProxyProtocol.Empty() {
		l.Introduced = c.Bounds.ProxyProtocol.Contains
	}
	return l
}

// connections counts for the metrics, by the fields of the file.
func (s *service) connections() metrics.Connections {
	c := s.gate.Counts()
	return metrics.Connections{
		Open: c.Open,
		Refused: map[string]uint64{
			"max_connections": c.RefusedInAll, "max_connections_per_client": c.RefusedByClient, "proxy_protocol": c.RefusedIntro,
		},
		Cut: map[string]uint64{"send_timeout": c.SlowReaders, "max_resets_per_connection": s.system.Proxy.Floods()},
	}
}
