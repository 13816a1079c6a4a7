// Package config turns the TOML file into validated plain data.
//
// Load reports every problem of a file at once, each with its line and with
// what to write instead. What it returns needs no further checks: defaults are
// filled in, names resolve, patterns do not conflict.
package config

import (
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Config is one configuration file, checked and with its defaults filled in.
type Config struct {
	File      string // the path it was read from
	Server    Server
	Admin     Admin
	Log       Log
	TLS       TLS
	Tracing   Tracing
	Redis     Redis
	Upstreams []Upstream // in the file's order
	Limits    []Limit    // in the file's order
	Routes    []Route    // in the file's order
	Warnings  []Problem  // what loads but is probably not meant

	source source
}

// Server is the [server] table.
type Server struct {
	Listen            []string // host:port or unix:/path
	TrustedProxies    identity.Trust
	IPv6Prefix        int
	ReadHeaderTimeout time.Duration
	IdleTimeout       time.Duration
	MaxHeaderBytes    int
	Bounds            Bounds
	StateFile         string // empty: quotas do not survive a restart
	StateInterval     time.Duration
	ShutdownTimeout   time.Duration
	RateLimitHeaders  []string // "ietf", "ietf-03", "x-ratelimit", "github", "shopify"
}

// Admin is the [admin] table.
type Admin struct {
	Listen string // host:port or unix:/path; empty: off
	Token  string // read from token_file; empty: not asked for
	Hosts  []string
	Pprof  bool // serve /debug/pprof/
}

// Log is the [log] table.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text, json
	Access bool
}

// TLS is the [tls] table; without certificates and Domains the listeners speak
// plain HTTP.
type TLS struct {
	Certificates []Certificate
	ClientCA     string // PEM file of those who may sign clients' certificates; empty: none is asked for
	ClientAuth   string // require, optional; empty without ClientCA
	HTTPPort     int    // where plain HTTP is redirected and HTTP-01 answered; 0: nowhere
	ACME         ACME
}

// On reports whether the listeners speak TLS.
func (t TLS) On() bool { return len(t.Certificates) > 0 || len(t.ACME.Domains) > 0 }

// ACME is what of [tls] says how certificates are obtained; without Domains
// there is nothing to obtain.
type ACME struct {
	Domains []string // in lower case
	Email   string   // empty: the account has none
	CA      string   // URL of the directory; empty: Let's Encrypt
	CARoot  string   // PEM file with the roots of the directory's own certificate; empty: the system's
	Storage string   // folder of the account, the certificates and their keys
}

// A Certificate names the PEM files of one certificate chain and its key.
type Certificate struct {
	Cert, Key string
}

// Tracing is the [tracing] table.
type Tracing struct {
	Endpoint string  // URL of a collector of OTLP over HTTP; empty: off
	Sample   float64 // the share of traces that is recorded
}

// An Upstream is one [upstream.NAME] table.
type Upstream struct {
	Name     string
	Scheme   string  // http, https, h2c
	Places   []Place // at least one, in the file's order
	BasePath string  // the URLs' path without its trailing slash, percent-encoded as written; put before the request's

	SendHost              string // "upstream", "client", or a literal name
	ResolveInterval       time.Duration
	DialTimeout           time.Duration
	TLSHandshakeTimeout   time.Duration
	ResponseHeaderTimeout time.Duration
	BodyTimeout           time.Duration
	TLS                   UpstreamTLS
	Health                Health
	Breaker               *Breaker // nil: none
	Obey                  Obey
	Retry                 Retry
	MaxIdleConns          int // of each address
	IdleConnTimeout       time.Duration
	SetHeaders            []Header // in order of name; values may be secret
}

// A Place is one URL of an upstream.
type Place struct {
	Host       string // host[:port] as the URL writes it; for a Unix socket "localhost"
	Address    string // host:port to dial; empty for a Unix socket
	UnixSocket string // path of the socket; empty for TCP
}

// UpstreamTLS is the tls table of an upstream. It holds what its files held
// when the configuration was loaded.
type UpstreamTLS struct {
	CA         string // PEM of the certificates that are believed; empty: the system's
	ClientCert string // PEM of the certificate chain shown to the upstream; empty: none
	ClientKey  string // PEM of its private key; secret
	ServerName string // asked for and verified; empty: the Host that is sent
}

// A Header is a name in canonical form and its value.
type Header struct {
	Name, Value string
}

// A Limit is one [limit.NAME] table. With Queue above zero it is in queue form.
// What its algorithm and form do not take is zero.
type Limit struct {
	Name      string
	Algorithm limiter.Algorithm
	Rate      limiter.Rate
	Burst     int64
	Queue     int
	MaxWait   time.Duration

	MinRate     limiter.Rate // set: the rate is searched for, from here up to Rate
	MinInFlight int          // above 0: so is MaxInFlight, from here up

	MaxInFlight    int           // 0: no bound
	DeadlineHeader string        // in canonical form; empty: none
	FairBy         identity.Key  // global: plain first in, first out
	ShedAbove      time.Duration // 0: nobody is refused for the waits of others
	ReserveHigh    float64       // share of rate, burst and places that only routes of high priority may use; 0: none
	PromoteAfter   time.Duration // 0: the routes that name the limit have one priority, so there is nothing to rise to

	Shared    bool   // counted on Redis rather than in memory
	StoreDown string // open, closed, local; empty unless Shared

	Limit      int64
	Window     time.Duration    // 0: the Calendar's
	Calendar   limiter.Calendar // empty: none
	Location   *time.Location   // whose clocks the Calendar goes by
	Key        identity.Key
	Exempt     identity.Trust // CIDRs of clients that this limit does not ask about
	MissingKey string         // shared, skip, reject
	Cost       int64          // what a request takes; in queue form and for concurrency 1
	CostHeader string         // the header that says otherwise, in canonical form; empty: none
	MaxKeys    int
	Status     int
	DryRun     bool

	Preset     string        // empty: none
	fromPreset []presetField // what it adds to the file's fields
}

// A Route is one [[route]] table.
type Route struct {
	Match        string // as written in the file: the name in metrics and logs
	Pattern      string // Match for http.ServeMux: the host in lower case
	Upstream     string
	Limits       []string
	StripPrefix  string // decoded, without a trailing slash; empty: nothing
	MaxBodyBytes int64  // 0: no bound
	Timeout      time.Duration
	Priority     string // high, normal, low
	ServerTiming bool
}
