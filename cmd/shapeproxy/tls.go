package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/autotls"
	"github.com/shapeproxy/shapeproxy/internal/config"
)

// newTLS makes what [tls] asks for, if there is such a table.
func (s *service) newTLS(c *config.Config) (err error) {
	if !c.TLS.On() {
		return nil
	}
	if s.tls, err = autotls.New(c.TLS, s.log); err != nil {
		return err
	}
	s.system.Misdirected = s.tls.Misdirected
	if c.TLS.HTTPPort > 0 {
		s.plainServer = newPlainServer(s.tls.Plain(), c.Server, s.log)
	}
	return nil
}

// newPlainServer answers each connection once: who stays is somebody who could
// have followed the redirect.
func newPlainServer(h http.Handler, c config.Server, log *slog.Logger) *http.Server {
	server := &http.Server{
		Handler: h, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: c.ReadHeaderTimeout, ReadTimeout: c.ReadHeaderTimeout, WriteTimeout: 10 * time.Second,
		MaxHeaderBytes: c.MaxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// listenPlain opens the port for plain HTTP at each address that TLS listens on.
func (s *service) listenPlain(by *supervisor) error {
	if s.plainServer == nil {
		return nil
	}
	for _, host := range plainHosts(s.started.Server.Listen) {
		l, err := by.listen(net.JoinHostPort(host, strconv.Itoa(s.started.TLS.HTTPPort)))
		if err != nil {
			return fmt.Errorf("[tls] http_port: %w; write another port, or 0 for none", err)
		}
		s.plainListen = append(s.plainListen, s.gate.Listener(l))
	}
	return nil
}

// plainHosts are the hosts of listen, or every address where it has nothing but
// Unix sockets or every address itself.
func plainHosts(listen []string) (hosts []string) {
	for _, address := range listen {
		if strings.HasPrefix(address, "unix:") {
			continue
		}
		host, _, _ := net.SplitHostPort(address) // checked by config
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() && strings.Contains(host, ":") {
			return []string{""}
		}
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 {
		return []string{""}
	}
	return hosts
}

func (s *service) uncertified() []string {
	if s.tls == nil {
		return nil
	}
	return s.tls.Waiting()
}

func (s *service) expiries() map[string]time.Time {
	if s.tls == nil {
		return nil
	}
	return s.tls.Expiries()
}

// closeTLS ends what obtains certificates, while the listeners still stand that
// the CA may be asking, and then plain HTTP.
func (s *service) closeTLS() {
	if s.tls == nil {
		return
	}
	s.tls.Close()
	if s.plainServer != nil {
		_ = s.plainServer.Close()
	}
}
