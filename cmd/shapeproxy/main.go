// Command shapeproxy is a reverse proxy that shapes traffic: it holds requests
// back so that an upstream is never sent more than it can take.
package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit statuses.
const (
	exitOK    = 0
	exitError = 1 // the command ran and failed
	exitUsage = 2 // the command line is wrong; nothing ran
)

// run carries out one command line and returns its exit status. Errors are
// printed here and nowhere else.
func run(args []string, stdout, stderr io.Writer) int {
	root, began := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	refuseUnknown(root)
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return exitOK
	case *began:
		if errors.Is(err, errProblems) {
			return exitError
		}
		if _, ok := errors.AsType[config.Problems](err); ok {
			fmt.Fprintln(stderr, err) // each line names its file and line already
		} else {
			fmt.Fprintf(stderr, "shapeproxy: %v\n", err)
		}
		return exitError
	default:
		fmt.Fprintf(stderr, "shapeproxy: %v\nRun \"%s --help\" for what it takes.\n", err, cmd.CommandPath())
		return exitUsage
	}
}

// newRootCommand also returns whether a subcommand's own work has begun: cobra
// gives no type to the errors of a wrong command line, but gives all of them
// before it calls RunE.
func newRootCommand() (root *cobra.Command, began *bool) {
	root = &cobra.Command{
		Use:           "shapeproxy",
		Short:         "A reverse proxy that never sends an upstream more than it can take",
		Version:       versionLine(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newRunCommand(), newCheckCommand(), newSimulateCommand(), newImportCommand(), newManCommand(), newDemoCommand(), newTopCommand(), newVersionCommand())
	began = new(bool)
	for cmd := range commands(root) {
		work := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*began = true
			return work(cmd, args)
		}
	}
	return root, began
}

// refuseUnknown adds cobra's own commands to root, whose output must be set, and
// has them refuse what they do not know: by themselves they print a help for it
// and are content.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err == nil && len(rest) > 0 {
					err = fmt.Errorf("unknown command %q for %q", rest[0], found.CommandPath())
				}
				return err
			}
		case "completion":
			// Its Args refuse what is no shell, but of a command that runs only.
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// commands are those below cmd, however deep.
func commands(cmd *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		for _, sub := range cmd.Commands() {
			if !yield(sub) {
				return
			}
			for deeper := range commands(sub) {
				if !yield(deeper) {
					return
				}
			}
		}
	}
}
