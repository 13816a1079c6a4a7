package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func newTopCommand() *cobra.Command {
	var admin, tokenFile string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the limits and upstreams of a running proxy, as the live page does, in a terminal",
		Long: `Show the limits and upstreams of a running proxy, as the live page does, in a
terminal. Without a terminal it prints one table and ends.

Keys: up and down (or k and j) select a limit, p pauses its queue or lets it go on
after a question, q quits.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&admin, "admin", "http://127.0.0.1:9090", "the [admin] listener: http://…, https://… or unix:/path")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the token, as [admin] token_file")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := newTopClient(admin, tokenFile)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		out := cmd.OutOrStdout()
		if !isTerminal(out) || !term.IsTerminal(int(os.Stdin.Fd())) {
			return printTop(ctx, c, out)
		}
		return runTop(ctx, c, out)
	}
	return cmd
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printTop prints how things stand, once.
func printTop(ctx context.Context, c *topClient, w io.Writer) error {
	enough := errors.New("one is enough")
	err := c.events(ctx, func(s topSnapshot) error {
		for _, table := range [][][]string{limitRows(s.Limits), upstreamRows(s.Upstreams)} {
			for _, line := range align(table) {
				fmt.Fprintln(w, line)
			}
			fmt.Fprintln(w)
		}
		return enough
	})
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// topRetry is how long after a connection was lost another is tried.
const topRetry = time.Second

// runTop shows how things stand until the user quits.
func runTop(ctx context.Context, c *topClient, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(&topView{client: c, ctx: ctx}, tea.WithContext(ctx), tea.WithOutput(w), tea.WithoutSignalHandler())
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		for ctx.Err() == nil {
			err := c.events(ctx, func(s topSnapshot) error {
				program.Send(s)
				return nil
			})
			program.Send(topLost{err})
			select {
			case <-ctx.Done():
			case <-time.After(topRetry):
			}
		}
	}()
	_, err := program.Run()
	interrupted := ctx.Err() != nil
	cancel()
	<-listening
	if interrupted {
		return nil // that is how it is ended
	}
	return err
}
