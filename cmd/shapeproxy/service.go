package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/admin"
	"github.com/shapeproxy/shapeproxy/internal/assemble"
	"github.com/shapeproxy/shapeproxy/internal/autotls"
	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/edge"
	"github.com/shapeproxy/shapeproxy/internal/metrics"
	"github.com/shapeproxy/shapeproxy/internal/tracing"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

// A service is all that one process runs: the proxy on its listeners, and the
// admin side on its own.
type service struct {
	load    func() (*config.Config, error)
	log     *slog.Logger
	level   *slog.LevelVar
	access  atomic.Bool // write the access log
	system  *assemble.System
	metrics *metrics.Metrics
	tally   *admin.Tally
	admin   *admin.Admin
	tls     *autotls.Source // nil: plain HTTP
	tracer  *tracing.Tracer // nil: requests are not followed

	started   *config.Config // what cannot change while it runs is that of this one
	current   atomic.Pointer[config.Config]
	reloading sync.Mutex

	server      *proxy.Server
	gate        *edge.Gate
	adminGate   *edge.Gate
	adminServer *http.Server
	plainServer *http.Server // beside TLS; nil: plain HTTP is not answered
	listeners   []net.Listener
	plainListen []net.Listener
	adminListen net.Listener
	stopSaving  chan struct{}
	saver       sync.WaitGroup          // of saveState
	cut         context.CancelCauseFunc // ends every request under way
	endAdmin    context.CancelFunc
}

// newService builds everything that c asks for; it does not listen yet. load
// is what a reload reads the configuration with.
func newService(c *config.Config, load func() (*config.Config, error), stderr io.Writer) (*service, error) {
	s := &service{load: load, started: c, stopSaving: make(chan struct{})}
	s.log, s.level = newLogger(c.Log, stderr)
	s.gate, s.adminGate = edge.NewGate(s.log), edge.NewGate(s.log)
	s.adminGate.Limit(edge.Limits{Connections: adminConnections, SendTimeout: 30 * time.Second})
	s.tally = new(admin.Tally)
	s.metrics = metrics.New(metrics.Options{
		Version: versionString(), Revision: revisionString(), Log: s.log,
		// The System is made below, as it needs an Observer.
		Limits:      func() []limiter.Status { return s.system.Limits() },
		Upstreams:   func() []proxy.UpstreamStatus { return s.system.Upstreams() },
		Connections: s.connections,
		Store:       func() (up bool, proxies int) { return s.system.Store() },
		Expiries:    s.expiries,
	})
	s.system = assemble.New(proxy.Observers{s.metrics, s.tally, switchable{proxy.AccessLog{Log: s.log}, &s.access}}, s.log)
	s.system.TellStore(s.metrics.StoreAnswered)
	if err := s.system.KeepAlarms(); err != nil {
		s.log.Warn("departures may be 1 ms late, as there are no precise alarms", "error", err)
	}
	if c.Server.StateFile != "" {
		if err := s.system.KeepState(c.Server.StateFile); err != nil {
			s.log.Warn("the state file is refused", "error", err)
		}
	}
	if err := s.newTLS(c); err != nil {
		s.system.Close()
		return nil, err
	}
	if err := s.apply(c); err != nil {
		s.closeTLS()
		s.system.Close()
		return nil, err
	}
	if err := s.system.Restore(); err != nil {
		s.log.Warn("the state file was restored in part", "error", err)
	}
	if c.Tracing.Endpoint != "" {
		tracer, err := tracing.New(tracing.Options{
			Endpoint: c.Tracing.Endpoint, Sample: c.Tracing.Sample, Version: versionString(), Log: s.log,
		})
		if err != nil {
			s.system.Close()
			return nil, err
		}
		s.tracer = tracer
		s.system.Proxy.Trace(tracer)
	}
	s.metrics.Reloaded(true)

	ctx, cut := context.WithCancelCause(context.Background())
	s.cut = cut
	var clientTLS *tls.Config
	if s.tls != nil {
		clientTLS = s.tls.Config()
	}
	s.server = proxy.NewServer(ctx, s.system.Proxy, proxy.ServerOptions{
		ReadHeaderTimeout: c.Server.ReadHeaderTimeout, IdleTimeout: c.Server.IdleTimeout,
		MaxHeaderBytes: c.Server.MaxHeaderBytes, MaxStreams: c.Server.Bounds.MaxStreams, TLS: clientTLS,
	}, s.log)
	if c.Admin.Listen == "" {
		return s, nil
	}
	s.admin = admin.New(admin.Options{
		Listen: c.Admin.Listen, Hosts: c.Admin.Hosts, Token: c.Admin.Token, Pprof: c.Admin.Pprof,
		Metrics: s.metrics.Handler(), Limits: s.system.Limits, Upstreams: s.system.Upstreams,
		Tally: s.tally, Reload: s.reload, Uncertified: s.uncertified, Log: s.log,
		Change: s.change, Pause: s.system.Pause, Resume: s.system.Resume,
		Busiest: s.system.Busiest, Key: s.system.Key, Reset: s.system.Reset, Waiting: s.system.Waiting,
	})
	adminCtx, endAdmin := context.WithCancel(context.Background())
	s.endAdmin = endAdmin
	s.adminServer = &http.Server{
		Handler: s.admin.Handler(), ReadHeaderTimeout: c.Server.ReadHeaderTimeout, IdleTimeout: c.Server.IdleTimeout,
		ReadTimeout: c.Server.ReadHeaderTimeout, // also of the body of a call that is refused
		BaseContext: func(net.Listener) context.Context { return adminCtx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	go s.admin.Run(adminCtx)
	return s, nil
}

// switchable is an Observer that can be turned off.
type switchable struct {
	proxy.Observer
	on *atomic.Bool
}

func (o switchable) Done(e *proxy.Event) {
	if o.on.Load() {
		o.Observer.Done(e)
	}
}

// apply makes c count, as far as that is possible while the process runs.
func (s *service) apply(c *config.Config) error {
	var files *autotls.Files
	if s.tls != nil && c.TLS.On() {
		var err error
		if files, err = s.tls.Load(c.TLS); err != nil {
			return err
		}
	}
	// What counts must know the names before requests bear them.
	s.configureCounters(c)
	if err := s.system.Apply(c); err != nil {
		return err
	}
	if files != nil {
		s.tls.Use(files)
	}
	s.gate.Limit(clientLimits(c.Server))
	s.level.Set(logLevel(c.Log.Level))
	s.access.Store(c.Log.Access)
	// A listener that is to move to where only this machine reaches it may have
	// lost its token in the same edit, and still stands where everybody does.
	if s.admin != nil && c.Admin.Listen == s.started.Admin.Listen {
		s.admin.Admit(c.Admin.Hosts, c.Admin.Token)
	}
	s.current.Store(c)
	for _, w := range c.Warnings {
		s.log.Warn("configuration", "warning", w.String())
	}
	return nil
}

func (s *service) configureCounters(c *config.Config) {
	var routes, names, upstreams []string
	var limits []limiter.Status
	for _, r := range c.Routes {
		routes = append(routes, r.Match)
	}
	for _, l := range c.Limits {
		names = append(names, l.Name)
		limits = append(limits, limiter.Status{Name: l.Name, Queue: l.Queue, Key: l.Key.String(), StoreDown: l.StoreDown})
	}
	for _, u := range c.Upstreams {
		upstreams = append(upstreams, u.Name)
	}
	s.metrics.Configure(routes, limits, upstreams)
	s.tally.Configure(names)
}

// listen opens every listener, or none. Sockets that systemd has opened already
// are taken over.
func (s *service) listen(by *supervisor) error {
	for _, address := range s.started.Server.Listen {
		l, err := by.listen(address)
		if err != nil {
			s.closeListeners()
			return fmt.Errorf("[server] listen: %w", err)
		}
		s.listeners = append(s.listeners, s.gate.Listener(l))
	}
	if err := s.listenPlain(by); err != nil {
		s.closeListeners()
		return err
	}
	if s.admin == nil {
		return nil
	}
	l, err := by.listen(s.started.Admin.Listen)
	if err != nil {
		s.closeListeners()
		return fmt.Errorf("[admin] listen: %w", err)
	}
	s.adminListen = s.adminGate.Listener(l)
	return nil
}

func (s *service) closeListeners() {
	for _, l := range append(s.listeners, s.plainListen...) {
		_ = l.Close()
	}
	s.closeTLS()
}

// listen opens host:port or unix:/path. A socket file that nobody listens on
// any more, as a process that was killed leaves it, is replaced.
func listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return net.Listen("tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("%s is in use by another process", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", path)
}

// addressOf is where l listens, as the configuration writes it.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}

// serve begins to answer. The channel gets the error of a listener that fails.
func (s *service) serve() <-chan error {
	failed := make(chan error, len(s.listeners)+len(s.plainListen)+1)
	start := func(what string, server *http.Server, l net.Listener, secure bool) {
		s.log.Info("listening", "for", what, "address", addressOf(l), "tls", secure)
		go func() {
			var err error
			if secure {
				err = server.ServeTLS(l, "", "")
			} else {
				err = server.Serve(l)
			}
			if !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("listener %s: %w", addressOf(l), err)
			}
		}()
	}
	if s.tls != nil {
		s.tls.Start(s.listeners, s.plainListen) // connections of a CA wait until they are accepted
	}
	for _, l := range s.listeners {
		start("clients", s.server.Server, l, s.tls != nil) // s.server.TLSConfig is filled in by the first Serve
	}
	for _, l := range s.plainListen {
		start("plain HTTP", s.plainServer, l, false)
	}
	if s.started.Server.StateFile != "" {
		s.saver.Go(func() { s.saveState(s.stopSaving) })
	}
	if s.admin != nil {
		start("operators", s.adminServer, s.adminListen, false)
		s.admin.SetReady(true)
	}
	return failed
}

func (s *service) shutdownTimeout() time.Duration {
	return s.current.Load().Server.ShutdownTimeout
}

// lastAnswers is how long it may take to tell everybody who is still here at the
// end of shutdown_timeout: of ten thousand, a busy machine tells some two
// thousand a second.
func (s *service) lastAnswers() time.Duration {
	waiting := 0
	for _, l := range s.system.Limits() {
		waiting += l.Depth
	}
	return 2*time.Second + time.Duration(waiting)*time.Millisecond/2
}

// drain stops taking connections, lets waiting and running requests finish
// within shutdown_timeout, tells the rest to come back, and closes everything.
// It returns sooner when ctx ends.
func (s *service) drain(ctx context.Context) {
	if s.admin != nil {
		s.admin.SetReady(false)
	}
	s.closeTLS()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		_ = s.server.Shutdown(ctx) // its error is that ctx has ended
	}()
	select {
	case <-finished:
	case <-ctx.Done():
	case <-time.After(s.shutdownTimeout()):
		s.log.Warn("shutdown_timeout is over; the requests still here are told to come back")
		atMost := s.lastAnswers()
		s.cut(limiter.ErrShutdown)
		select {
		case <-finished:
		case <-ctx.Done():
		case <-time.After(atMost):
		}
	}
	s.close()
}

// close cuts what is left.
func (s *service) close() {
	s.cut(limiter.ErrShutdown)
	_ = s.server.Close() // listeners are closed already
	close(s.stopSaving)
	s.saver.Wait()
	s.system.Close()
	if s.tracer != nil {
		if err := s.tracer.Close(); err != nil {
			s.log.Warn("the last spans could not be sent", "error", err)
		}
	}
	if s.admin != nil {
		s.endAdmin()
		_ = s.adminServer.Close()
	}
}
