package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/config"
)

func newCheckCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Load a configuration and say in words what it lets through",
		Long: "Load a configuration and say in words what each limit lets through.\n" +
			"With problems, print every one of them with its line and exit with status 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(file, os.LookupEnv)
			if err != nil {
				return err
			}
			for _, w := range c.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", w)
			}
			fmt.Fprint(cmd.OutOrStdout(), c.Explain())
			return nil
		},
	}
	configFlag(cmd, &file)
	return cmd
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
