package redisstore

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/redis/rueidis"
)

// Options say where the server is and how it is talked to. They can be compared.
type Options struct {
	Address        []string    // host:port of the server, of Sentinels, or of some nodes of a cluster
	SentinelMaster string      // set: the addresses are Sentinels, and this is the name of the master
	Cluster        bool        // the addresses are nodes of a cluster
	DB             int         // the database; a cluster has only 0
	Prefix         string      // stands before every key
	Username       string      // empty: the default user
	Password       string      // empty: none
	TLS            *tls.Config // nil: none
	HashKey        []byte      // the secret under which clients' keys are hashed; empty: derived from Prefix
	Timeout        time.Duration

	// Answered, unless nil, is told how long each call took that the server
	// answered in time. It is called by many goroutines at once.
	Answered func(time.Duration)
	Log      *slog.Logger
}

const (
	// dialTimeout is how long a connection may take that is made in the
	// background, and how long a connection may be silent that owes an answer.
	dialTimeout = 500 * time.Millisecond

	// inFlight bounds the calls that are under way at once, and ringScale makes
	// the client's buffer hold twice as many: it waits without regard to
	// deadlines when that is full.
	inFlight  = 1024
	ringScale = 11
)

// dial makes a client, which needs the server to answer.
func dial(o *Options) (rueidis.Client, error) {
	opt := rueidis.ClientOption{
		InitAddress:       o.Address,
		Username:          o.Username,
		Password:          o.Password,
		SelectDB:          o.DB,
		TLSConfig:         o.TLS,
		ClientName:        "shapeproxy",
		ClientSetInfo:     rueidis.DisableClientSetInfo,
		Dialer:            net.Dialer{Timeout: dialTimeout},
		ConnWriteTimeout:  dialTimeout,
		RingScaleEachConn: ringScale,
		DisableCache:      true,
		// A decision that may have been taken is not asked for twice.
		DisableRetry:      true,
		ForceSingleClient: !o.Cluster && o.SentinelMaster == "",
	}
	if o.SentinelMaster != "" {
		opt.Sentinel = rueidis.SentinelOption{
			MasterSet: o.SentinelMaster, Dialer: opt.Dialer, TLSConfig: o.TLS, ClientName: opt.ClientName,
		}
	}
	return rueidis.NewClient(opt)
}

// harmless reports whether the error is about one key, and says nothing about
// the server: something else lies where a state should.
func harmless(err error) bool {
	if errors.Is(err, errAnswer) {
		return true
	}
	answered, ok := rueidis.IsRedisErr(err)
	return ok && (prefixed(answered.Error(), "WRONGTYPE") || prefixed(answered.Error(), "ERR user_script") || prefixed(answered.Error(), "ERR Error running script"))
}

func prefixed(s, with string) bool { return len(s) >= len(with) && s[:len(with)] == with }
