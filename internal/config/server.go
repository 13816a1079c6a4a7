package config

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// Below the one, ordinary clients fail; above the other, one client can fill the
// memory.
const (
	minHeaderBytes = 4 << 10
	maxHeaderBytes = 1 << 30
)

const minStateInterval = 100 * time.Millisecond

func defaultServer() Server {
	return Server{
		Listen:            []string{":8080"},
		IPv6Prefix:        identity.DefaultIPv6Prefix,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Bounds:            defaultBounds(),
		StateInterval:     5 * time.Second,
		ShutdownTimeout:   30 * time.Second,
		RateLimitHeaders:  []string{"ietf", "ietf-03"},
	}
}

// rateLimitHeaders are the families of headers, in the order in which they are
// documented.
var rateLimitHeaders = []string{"ietf", "ietf-03", "x-ratelimit", "github", "shopify"}

func (d *decoder) server(t *table) Server {
	s := defaultServer()
	var listen []string
	if !t.portAlone("listen", "") && t.each("listen", listenForm, true, func(entry string) error {
		a, err := parseListen(entry)
		if err == nil && slices.Contains(listen, a) && !strings.HasSuffix(a, ":0") {
			err = fmt.Errorf("%q stands twice; remove one", entry)
		}
		listen = append(listen, a)
		return err
	}) {
		s.Listen = listen
		if len(listen) == 0 {
			t.bad("listen", "is empty, so no client could come; write [\":8080\"]")
		}
	}
	t.trust("trusted_proxies", &s.TrustedProxies)
	t.int("ipv6_prefix", &s.IPv6Prefix, 1, 128)
	t.duration("read_header_timeout", &s.ReadHeaderTimeout)
	t.duration("idle_timeout", &s.IdleTimeout)
	headerBytes := int64(s.MaxHeaderBytes)
	t.size("max_header_bytes", &headerBytes, minHeaderBytes, maxHeaderBytes)
	s.MaxHeaderBytes = int(headerBytes)
	t.bounds(&s)
	t.text("state_file", "the path of a file", func(file string) error {
		s.StateFile = file
		if strings.HasSuffix(file, "/") {
			return fmt.Errorf("%q is a folder; write the path of a file in it", file)
		}
		return nil
	})
	t.duration("state_interval", &s.StateInterval)
	if s.StateInterval < minStateInterval {
		t.bad("state_interval", "must be at least %s, as the whole file is written each time", limiter.FormatDuration(minStateInterval))
	}
	t.duration("shutdown_timeout", &s.ShutdownTimeout)
	var families []string
	if t.each("ratelimit_headers", "the name of a family of headers, such as \"ietf\"", false, func(w string) error {
		if !slices.Contains(rateLimitHeaders, w) {
			return fmt.Errorf("%q is not a family of headers; %s", w, didYouMean(w, rateLimitHeaders))
		}
		if slices.Contains(families, w) {
			return fmt.Errorf("%q stands twice; remove one", w)
		}
		families = append(families, w)
		return nil
	}) {
		s.RateLimitHeaders = families
		if slices.Contains(families, "x-ratelimit") && slices.Contains(families, "github") {
			d.warn(t.at("ratelimit_headers"), "x-ratelimit and github write the same fields, so X-RateLimit-Reset is in Unix seconds, as of github; remove one of them")
		}
	}
	t.finish()
	return s
}

// trust reads a list of addresses and CIDRs.
func (t *table) trust(key string, dst *identity.Trust) {
	var entries []string
	if t.each(key, `an address or a CIDR such as "10.0.0.0/8"`, false, func(entry string) error {
		_, err := identity.ParseTrust([]string{entry})
		entries = append(entries, entry)
		return err
	}) {
		*dst, _ = identity.ParseTrust(entries)
	}
}

func (d *decoder) admin(t *table, public []string) Admin {
	a := Admin{Listen: "127.0.0.1:9090"}
	if !t.portAlone("listen", "127.0.0.1") {
		t.text("listen", listenForm+" or \"\" for none", func(entry string) (err error) {
			if entry == "" {
				a.Listen = ""
				return nil
			}
			a.Listen, err = parseListen(entry)
			return err
		})
	}
	if slices.Contains(public, a.Listen) && !strings.HasSuffix(a.Listen, ":0") {
		t.bad("listen", "is a listen address of [server] too; write another, such as listen = \"127.0.0.1:9091\"")
	}
	before := len(d.problems)
	t.text("token_file", "the path of a file", func(file string) (err error) {
		if file != "" {
			a.Token, err = d.token(t, file)
		}
		return err
	})
	if a.Token == "" && len(d.problems) == before && a.Listen != "" && !localAddress(a.Listen) {
		t.bad("listen", "can be reached from other machines, so it needs a token; set token_file, or listen on 127.0.0.1 or unix:/path")
	}
	t.each("hosts", `a host name such as "proxy.example.com"`, false, func(h string) error {
		if err := checkHost(h); err != nil {
			return err
		}
		a.Hosts = append(a.Hosts, strings.ToLower(h))
		return nil
	})
	t.flag("pprof", &a.Pprof)
	t.finish()
	return a
}

// token reads the file that holds the bearer token. No error may quote it.
func (d *decoder) token(t *table, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", discreet("the file cannot be read: " + cause(err) + "; create it with one line, the token")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 4097))
	if err != nil {
		return "", discreet("the file cannot be read: " + cause(err) + "; it must hold one line, the token")
	}
	token := strings.TrimSpace(string(data))
	switch {
	case token == "":
		return "", discreet("the file is empty; write a long random token into it")
	case len(data) > 4096:
		return "", discreet("the file is longer than 4096 bytes; it must hold one line, the token")
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", discreet("the file holds more than one word of printable ASCII; it must hold one line, the token")
	}
	d.warnReadable(t.at("token_file"), f)
	return token, nil
}

// warnReadable warns of a secret that more than its owner can change, or more
// than its group can read.
func (d *decoder) warnReadable(path []string, f *os.File) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o007 != 0:
		d.warn(path, "everyone on this machine can read the file; run chmod 600 on it")
	case mode&0o020 != 0:
		d.warn(path, "the file's group can change it; run chmod 640 on it")
	}
}

func (d *decoder) log(t *table) Log {
	l := Log{Level: "info", Format: "text", Access: true}
	t.word("level", &l.Level, "debug", "info", "warn", "error")
	t.word("format", &l.Format, "text", "json")
	t.flag("access", &l.Access)
	t.finish()
	return l
}

const listenForm = `an address such as ":8080", "127.0.0.1:8080" or "unix:/run/shapeproxy.sock"`

// portAlone reports whether an address to listen at is a bare number, and says
// what to write for that port of a host.
func (t *table) portAlone(key, host string) bool {
	port, is := t.values[key].(int64)
	if is {
		t.take(key)
		t.bad(key, "must be an address in quotes; write %s = %q", key, host+":"+strconv.FormatInt(port, 10))
	}
	return is
}

// parseListen checks the address of a listener and returns it in the form that
// is compared.
func parseListen(s string) (string, error) {
	if socket, ok := strings.CutPrefix(s, identity.UnixWord); ok {
		p, err := parseSocket(socket)
		return identity.UnixWord + p, err
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 1<<16 {
			return "", fmt.Errorf("%q is no address; write %q for this port on every address", s, ":"+s)
		}
		if checkHost(s) == nil {
			return "", fmt.Errorf("%q lacks a port; write %q", s, net.JoinHostPort(s, "8080"))
		}
		return "", fmt.Errorf("%q is not %s", s, listenForm)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && checkHost(host) != nil {
		return "", fmt.Errorf("%q is not %s", s, listenForm)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("the port of %q must be a number up to 65535", s)
	}
	return net.JoinHostPort(strings.ToLower(host), strconv.FormatUint(n, 10)), nil
}

// parseSocket checks the path of a Unix socket.
func parseSocket(s string) (string, error) {
	if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || strings.HasSuffix(s, "/") {
		return "", discreet("a Unix socket needs an absolute path; write it as \"unix:/run/app.sock\"")
	}
	// sun_path of unix(7), with its closing NUL.
	if s = path.Clean(s); len(s) > 107 {
		return "", discreet("the path of a Unix socket must be at most 107 bytes long; choose a shorter one")
	}
	return s, nil
}

// localAddress reports whether only this machine can reach the listener.
func localAddress(listen string) bool {
	if strings.HasPrefix(listen, identity.UnixWord) {
		return true
	}
	host, _, _ := net.SplitHostPort(listen)
	return loopback(host)
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.Unmap().IsLoopback()
}
