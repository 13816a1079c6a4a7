package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

func newRunCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run the proxy",
		Long: "Run the proxy.\n\n" +
			"SIGHUP loads the configuration again; with problems in it, everything stays as it was.\n" +
			"SIGTERM and SIGINT stop: waiting and running requests may finish within shutdown_timeout,\n" +
			"the rest are told to come back. A second one ends at once.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file, os.LookupEnv)
			if err != nil {
				return err
			}
			return runService(cmd, c, func() (*config.Config, error) { return config.Load(file, os.LookupEnv) })
		},
	}
	configFlag(cmd, &file)
	return cmd
}

// runService serves until a signal says to stop.
func runService(cmd *cobra.Command, c *config.Config, load func() (*config.Config, error)) error {
	tuneCollector()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	s, err := newService(c, load, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	by := newSupervisor(s.log)
	if err := s.listen(by); err != nil {
		return err
	}
	by.dropRest()
	failed := s.serve()
	by.ready()
	for {
		select {
		case err := <-failed:
			return err
		case <-by.beats():
			by.alive()
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				by.reloading()
				s.reload()
				by.ready()
				continue
			}
			by.stopping()
			return s.stopOn(sig, signals, by)
		}
	}
}

// stopOn drains the service; a second signal ends it at once.
func (s *service) stopOn(sig os.Signal, signals <-chan os.Signal, by *supervisor) error {
	s.log.Info("stopping", "signal", sig.String(), "shutdown_timeout", s.shutdownTimeout().String())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.drain(ctx)
	}()
	for {
		select {
		case <-drained:
			s.log.Info("stopped")
			return nil
		case <-by.beats():
			by.alive()
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				continue
			}
			return fmt.Errorf("ended at once by a second signal (%s); requests under way were cut", sig)
		}
	}
}

// newLogger returns the logger that [log] asks for, and its level, which a
// reload may change.
func newLogger(c config.Log, w interface{ Write([]byte) (int, error) }) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(logLevel(c.Level))
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), level
	}
	return slog.New(slog.NewTextHandler(w, o)), level
}

func logLevel(word string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(word)); err != nil {
		return slog.LevelInfo // config lets no other word through
	}
	return l
}
