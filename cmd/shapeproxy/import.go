package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shapeproxy/shapeproxy/internal/nginxconf"
)

func newImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Translate the configuration of another proxy",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "nginx FILE",
		Short: "Translate limit_req, limit_conn and proxy_pass of an NGINX configuration",
		Long: "Write a configuration to standard output that limits and proxies as the NGINX\n" +
			"configuration FILE does. What has no counterpart is said on standard error, a\n" +
			"directive a line. Let the result be read back by \"shapeproxy check\".",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := nginxconf.Translate(args[0])
			if err != nil {
				return err
			}
			for _, note := range t.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), note)
			}
			fmt.Fprint(cmd.OutOrStdout(), t.TOML)
			return nil
		},
	})
	return cmd
}
