package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the Go version it was built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}

// versionLine is what the command and the flag --version print.
func versionLine() string {
	return fmt.Sprintf("shapeproxy %s %s %s/%s", versionString(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionString is the module's version, or what the build knows of its commit:
// "v0.1.0", "devel-2a45a9b1c0de", "devel-2a45a9b1c0de-modified", "devel".
func versionString() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	version := "devel"
	if commit := buildSetting(info, "vcs.revision"); commit != "" {
		version += "-" + commit[:min(12, len(commit))]
	}
	if buildSetting(info, "vcs.modified") == "true" {
		version += "-modified"
	}
	return version
}

// revisionString is the commit that the program was built from, or empty.
func revisionString() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return buildSetting(info, "vcs.revision")
}

// revisionTime is when that commit was made; nil if it is not known.
func revisionTime() *time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	at, err := time.Parse(time.RFC3339, buildSetting(info, "vcs.time"))
	if err != nil {
		return nil
	}
	return &at
}

func buildSetting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
