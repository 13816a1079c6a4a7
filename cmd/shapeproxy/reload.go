package main

import (
	"reflect"
	"strings"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

// reload reads the configuration again and applies it, or leaves all as it was
// and says why.
func (s *service) reload() (problems, warnings []string) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	c, err := s.load()
	if err == nil {
		err = s.apply(c)
	}
	s.metrics.Reloaded(err == nil)
	if err != nil {
		problems = problemLines(err)
		for _, p := range problems {
			s.log.Error("configuration", "problem", p)
		}
		s.log.Error("the configuration was not reloaded; the one before stays in force", "problems", len(problems))
		return problems, nil
	}
	for _, w := range c.Warnings {
		warnings = append(warnings, w.String())
	}
	for _, what := range needRestart(s.started, c) {
		warning := what + " has changed and takes effect after a restart; the rest was applied"
		s.log.Warn("configuration", "warning", warning)
		warnings = append(warnings, warning)
	}
	s.log.Info("configuration reloaded", "file", c.File, "routes", len(c.Routes), "limits", len(c.Limits))
	return nil, warnings
}

// change changes fields of a limit, as if the file had said so, until the next
// reload.
func (s *service) change(limit string, fields map[string]any) (problems []string) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	c, err := s.current.Load().Change(limit, fields)
	if err == nil {
		err = s.system.Apply(c)
	}
	if err != nil {
		return problemLines(err)
	}
	s.configureCounters(c)
	s.current.Store(c)
	return nil
}

// problemLines is an error of config.Load or of apply, a problem a line.
func problemLines(err error) []string {
	return strings.Split(err.Error(), "\n")
}

// needRestart names what differs between the configuration the process began
// with and another, and cannot change while it runs.
func needRestart(began, now *config.Config) []string {
	var names []string
	differ := func(name string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			names = append(names, name)
		}
	}
	differ("server.listen", began.Server.Listen, now.Server.Listen)
	differ("server.read_header_timeout", began.Server.ReadHeaderTimeout, now.Server.ReadHeaderTimeout)
	differ("server.idle_timeout", began.Server.IdleTimeout, now.Server.IdleTimeout)
	differ("server.max_header_bytes", began.Server.MaxHeaderBytes, now.Server.MaxHeaderBytes)
	differ("server.max_streams", began.Server.Bounds.MaxStreams, now.Server.Bounds.MaxStreams)
	differ("admin", began.Admin.Listen, now.Admin.Listen)
	differ("admin.pprof", began.Admin.Pprof, now.Admin.Pprof)
	differ("server.state_file", began.Server.StateFile, now.Server.StateFile)
	differ("server.state_interval", began.Server.StateInterval, now.Server.StateInterval)
	differ("tracing", began.Tracing, now.Tracing)
	differ("log.format", began.Log.Format, now.Log.Format)
	differ("tls (on or off)", began.TLS.On(), now.TLS.On())
	differ("tls (domains, email, ca, ca_root or storage)", began.TLS.ACME, now.TLS.ACME)
	differ("tls.http_port", began.TLS.HTTPPort, now.TLS.HTTPPort)
	return names
}
