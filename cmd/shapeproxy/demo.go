package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

//go:embed demo.toml
var demoConfig []byte

func newDemoCommand() *cobra.Command {
	var (
		length time.Duration
		at     demoAddresses
		like   string
		as     *likeness // like, understood
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the proxy before an upstream that breaks when it is sent too much",
		Args:  cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if length < 0 {
				return fmt.Errorf("--for must not be negative, as %s is", length)
			}
			for flag, address := range at.byFlag() {
				if _, _, err := net.SplitHostPort(*address); err != nil {
					return fmt.Errorf("--%s: %q is no address; write host:port, such as %s", flag, *address, cmd.Flag(flag).DefValue)
				}
			}
			as, err = findLikeness(like)
			return err
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&length, "for", 0, "end after this time; 0 runs until Ctrl-C")
	flags.StringVar(&like, "upstream-like", "", "how the upstream behaves: github, shopify, llm, banning or slots; default: it breaks")
	flags.StringVar(&at.Proxy, "listen", "127.0.0.1:8080", "address of the proxy")
	flags.StringVar(&at.Upstream, "upstream", "127.0.0.1:8081", "address of the fragile upstream")
	flags.StringVar(&at.Admin, "admin", "127.0.0.1:9090", "address of the live page")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		out := cmd.OutOrStdout()
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		d, err := newDemo(at, as, cmd.ErrOrStderr(), func(flag, address string) (net.Listener, error) {
			return listenNear(out, "--"+flag, address, flags.Changed(flag))
		})
		if err != nil {
			return err
		}
		if length > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, length)
			defer cancel()
		}
		if as != nil {
			as.print(out, d.at)
			err = d.run(ctx)
			d.like.summary(out)
			return err
		}
		printDemo(out, d.at, d.proxy.started.Limits[0])
		err = d.run(ctx)
		printSummary(out, d.upstream.Counts())
		return err
	}
	return cmd
}

// A demo is a fragile upstream and the proxy before it, which is that of
// "shapeproxy run" with two more paths, /check and /play.
type demo struct {
	at       demoAddresses
	upstream fragileUpstream
	like     *likeUpstream // nil: it is upstream that serves
	proxy    *service

	upstreamListen net.Listener
}

// newDemo listens, by the function given, and serves nothing yet. With as, the
// upstream is like that.
func newDemo(at demoAddresses, as *likeness, stderr io.Writer, listen func(flag, address string) (net.Listener, error)) (_ *demo, err error) {
	var listeners []net.Listener
	defer func() {
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
		}
	}()
	for flag, address := range at.byFlag() {
		l, err := listen(flag, *address)
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
		*address = l.Addr().String()
	}

	text := demoConfig
	var like *likeUpstream
	if as != nil {
		text, like = as.config(), as.upstream()
	}
	load := func() (*config.Config, error) { return config.Parse("demo.toml", text, at.lookup) }
	c, err := load()
	if err != nil {
		return nil, err
	}
	check, err := newCheckHandler()
	if err != nil {
		return nil, err
	}
	play, err := newPlayground()
	if err != nil {
		return nil, err
	}
	s, err := newService(c, load, stderr)
	if err != nil {
		return nil, err
	}
	s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/check":
			check.ServeHTTP(w, r)
		case r.URL.Path == "/play" || strings.HasPrefix(r.URL.Path, "/play/"):
			play.ServeHTTP(w, r)
		default:
			s.system.Proxy.ServeHTTP(w, r)
		}
	})
	s.listeners, s.adminListen = listeners[:1], listeners[2]
	return &demo{at: at, like: like, proxy: s, upstreamListen: listeners[1]}, nil
}

// run serves until ctx ends or a listener fails.
func (d *demo) run(ctx context.Context) error {
	var handler http.Handler = &d.upstream
	if d.like != nil {
		handler = d.like
	}
	upstream := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	broken := make(chan error, 1)
	go func() { broken <- upstream.Serve(d.upstreamListen) }()
	failed := d.proxy.serve()

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	case err = <-broken:
	}
	// The upstream goes last, as the proxy still sends it who waits.
	d.proxy.drain(context.Background())
	return errors.Join(err, upstream.Close())
}
