package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

func newCheckCommand() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Load a configuration and say in words what it lets through",
		Long: "Load a configuration and say in words what each limit lets through.\n" +
			"With problems, print every one of them with its line and exit with status 1.\n\n" +
			"With --format json, problems and warnings are written to standard output as\n" +
			`{"ok": false, "problems": [{"file", "line", "key", "text"}], "warnings": [...]}.`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("--format is text or json, not %q", format)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file, os.LookupEnv)
			if format == "json" {
				return checked(cmd.OutOrStdout(), c, err)
			}
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
			}
			fmt.Fprint(cmd.OutOrStdout(), c.Explain())
			return nil
		},
	}
	configFlag(cmd, &file)
	cmd.Flags().StringVar(&format, "format", "text", "how to say it: text, or json for programs")
	return cmd
}

// errProblems says that what is wrong has been written already.
var errProblems = errors.New("the configuration has problems")

// checked writes what was found for programs.
func checked(w io.Writer, c *config.Config, err error) error {
	verdict := struct {
		OK       bool            `json:"ok"`
		Problems config.Problems `json:"problems"`
		Warnings config.Problems `json:"warnings"`
	}{OK: err == nil, Problems: config.Problems{}, Warnings: config.Problems{}}
	if c != nil {
		verdict.Warnings = append(verdict.Warnings, c.Warnings...)
	}
	if problems, ok := errors.AsType[config.Problems](err); ok {
		verdict.Problems = problems
	} else if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if werr := e.Encode(verdict); werr != nil {
		return werr
	}
	if err != nil {
		return errProblems
	}
	return nil
}

// configFlag adds the flag that names the configuration file.
func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration `FILE` (TOML)")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // only for a flag that was not defined
	}
	if err := cmd.MarkFlagFilename("config", "toml"); err != nil {
		panic(err)
	}
}
