package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// Redis is the [redis] table: where limits with store = "redis" are counted.
type Redis struct {
	Address        []string // host:port
	SentinelMaster string   // set: the addresses are Sentinels
	Cluster        bool     // the addresses are nodes of a cluster
	DB             int
	Prefix         string
	Username       string
	Password       string // read from password_file
	TLS            bool
	CA             string // PEM of the authorities that are believed; empty: the system's
	HashKey        string // read from hash_key_file; empty: derived from Prefix
	Timeout        time.Duration
}

func defaultRedis() Redis {
	return Redis{Address: []string{"127.0.0.1:6379"}, Prefix: "shapeproxy", Timeout: 50 * time.Millisecond}
}

// minRedisTimeout is about what a busy machine takes for an answer over the
// loopback interface.
const minRedisTimeout = time.Millisecond

var redisPrefix = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

func (d *decoder) redis(t *table) Redis {
	r := defaultRedis()
	var addresses []string
	if t.each("address", `host:port such as "127.0.0.1:6379"`, true, func(s string) error {
		a, err := parseRedisAddress(s)
		if err == nil && slices.Contains(addresses, a) {
			err = fmt.Errorf("%q stands twice; remove one", s)
		}
		addresses = append(addresses, a)
		return err
	}) {
		if r.Address = addresses; len(addresses) == 0 {
			t.bad("address", `is empty; write ["127.0.0.1:6379"]`)
		}
	}
	t.text("sentinel_master", "the name that the Sentinels watch the master under", func(s string) error {
		r.SentinelMaster = s
		return nil
	})
	t.flag("cluster", &r.Cluster)
	t.int("db", &r.DB, 0, 1<<20)
	t.text("prefix", `a word such as "shapeproxy"`, func(s string) error {
		if !redisPrefix.MatchString(s) {
			return fmt.Errorf("%q must be 1 to 64 letters, digits, '.', '_', ':' and '-'", s)
		}
		r.Prefix = s
		return nil
	})
	t.text("username", "the name of an ACL user", func(s string) error { r.Username = s; return nil })
	t.text("password_file", "the path of a file", func(file string) (err error) {
		if file != "" {
			r.Password, err = d.secretFile(t, "password_file", file, 1, "the password")
		}
		return err
	})
	t.flag("tls", &r.TLS)
	t.text("ca", "the path of a PEM file", func(file string) error {
		if file == "" {
			return nil
		}
		ca, err := readPEM(file)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM([]byte(ca)) {
			err = fmt.Errorf("%q holds no certificate; name a PEM file of the authorities that sign the server's", file)
		}
		if err == nil {
			r.CA = ca
		}
		return err
	})
	t.text("hash_key_file", "the path of a file", func(file string) (err error) {
		if file != "" {
			r.HashKey, err = d.secretFile(t, "hash_key_file", file, 16, "the secret")
		}
		return err
	})
	t.duration("timeout", &r.Timeout)
	if r.Timeout < minRedisTimeout {
		t.bad("timeout", "must be at least %s, as no answer comes sooner", limiter.FormatDuration(minRedisTimeout))
	}
	t.finish()

	switch {
	case r.Cluster && r.SentinelMaster != "":
		t.bad("cluster", "a cluster has no Sentinels; remove sentinel_master, or cluster")
	case r.Cluster && r.DB != 0:
		t.bad("db", "a cluster has only database 0; remove it, or cluster")
	case len(addresses) > 1 && !r.Cluster && r.SentinelMaster == "":
		t.bad("address", "several addresses are those of a cluster or of Sentinels; write cluster = true or sentinel_master = \"NAME\", or one address")
	}
	if r.CA != "" && !r.TLS && !t.has("tls") {
		t.bad("ca", "has no effect without tls = true; write that, or remove it")
	}
	if r.Username != "" && r.Password == "" && !t.has("password_file") {
		t.bad("username", "needs a password; name the file that holds it with password_file")
	}
	return r
}

func parseRedisAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.HasPrefix(s, identity.UnixWord) {
		if checkHost(s) == nil {
			return "", fmt.Errorf("%q lacks a port; write %q", s, net.JoinHostPort(s, "6379"))
		}
		return "", fmt.Errorf("%q is not host:port; write one such as \"127.0.0.1:6379\"", s)
	}
	if _, err := netip.ParseAddr(host); err != nil && checkHost(host) != nil {
		return "", fmt.Errorf("%q is not host:port; write one such as \"127.0.0.1:6379\"", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("the port of %q must be a number up to 65535", s)
	}
	return net.JoinHostPort(strings.ToLower(host), port), nil
}

// secretFile reads a secret of at least so many bytes, without the line's end. No
// error may quote it.
func (d *decoder) secretFile(t *table, key, file string, least int, what string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", discreet("the file cannot be read: " + cause(err) + "; it must hold " + what)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4097))
	if err != nil {
		return "", discreet("the file cannot be read: " + cause(err) + "; it must hold " + what)
	}
	secret := strings.TrimRight(string(data), "\r\n")
	switch {
	case len(secret) < least:
		return "", discreet(fmt.Sprintf("the file holds %d bytes; %s must have at least %d", len(secret), what, least))
	case len(data) > 4096:
		return "", discreet("the file is longer than 4096 bytes; it must hold " + what)
	}
	d.warnReadable(t.at(key), f)
	return secret, nil
}

// store reads where a limit is counted.
func (t *table) store(l *Limit) {
	word := "memory"
	t.word("store", &word, "memory", "redis")
	down := "local"
	t.word("store_down", &down, "open", "closed", "local")
	if word != "redis" {
		if v, ok := t.values["store"]; t.has("store_down") && (!ok || v == any("memory")) {
			t.bad("store_down", "has no effect without store = \"redis\"; write that, or remove it")
		}
		return
	}
	l.Shared, l.StoreDown = true, down
}

// shareable checks that the store can count the limit.
func (t *table) shareable(l *Limit) {
	if !l.Shared {
		return
	}
	switch err := sharedLimits(l); {
	case l.ReserveHigh > 0:
		t.bad(reserveField, "redis cannot tell priorities apart; remove it, or give routes of high priority a limit of their own")
	case l.Queue > 0 && l.MinRate.Count > 0:
		t.bad("store", "redis cannot search for a rate, as each proxy sees the answers of its own requests only; remove it, or write a number for rate")
	case l.Queue > 0 && l.DryRun:
		t.bad("dry_run", "a queue with store = \"redis\" has none, as nobody would stand in it for whom to ask; try it with store = \"memory\" and a part of the rate")
	case err != nil:
		t.bad("store", "%s", err)
	}
}

// A double holds every whole number up to maxShared, and so does Redis.
const maxShared = 1<<53 - 1

func sharedLimits(l *Limit) error {
	switch {
	case l.Limit > maxShared:
		return fmt.Errorf("redis cannot count beyond %d; write a lower limit, or remove it", int64(maxShared))
	case l.Window%time.Microsecond != 0:
		return errors.New("redis counts microseconds, and the window is no whole number of them; write another, or remove it")
	}
	return nil
}

// warnUnshared warns of a [redis] that nothing is counted on.
func (d *decoder) warnUnshared(c *Config, t *table, set bool) {
	if set && !slices.ContainsFunc(c.Limits, func(l Limit) bool { return l.Shared }) {
		d.warn(t.path, "no limit has store = \"redis\", so nothing is counted there; write it in a limit, or remove [redis]")
	}
}

// words say where the store is.
func (r *Redis) words() string {
	at := strings.Join(r.Address, ", ")
	switch {
	case r.Cluster:
		at = "the Redis cluster of " + at
	case r.SentinelMaster != "":
		at = fmt.Sprintf("the Redis that the Sentinels at %s call %s", at, r.SentinelMaster)
	default:
		at = "Redis at " + at
	}
	return fmt.Sprintf("%s, which has %s to answer", at, limiter.FormatDuration(r.Timeout))
}
