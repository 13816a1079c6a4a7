package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/replay"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// A simulation is the command line of simulate.
type simulation struct {
	config, compare  string
	format, spread   string
	seed             uint64
	host             string
	service          time.Duration
	json             bool
	html             string
	suggest          bool
	forRate, forWait string
	aim              replay.Aim // of forRate and forWait
	top              uint
}

func newSimulateCommand() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate --config FILE LOG...",
		Short: "Try a configuration on access logs, in virtual time",
		Long: `Replay access logs through the limits of a configuration, by its own routes and
keys, and say what would have been admitted, queued and refused, and how long
requests would have waited. Nothing is sent anywhere.

Logs may be gzipped, and - is standard input. NGINX's and Apache's combined and
common formats, Caddy's JSON, shapeproxy's own access log and CSV with the columns
time, client, method and path (and host, duration) are found out; for any other,
give the log_format of NGINX or the LogFormat of Apache with --log-format.

Where a log has whole seconds, --spread says where in its second a request came:
even (at equal distances), random, or start (all at once: the worst case).

Clients neither retry nor give up: a log does not tell what they would have done.`,
		Args:    cobra.MinimumNArgs(1),
		PreRunE: func(*cobra.Command, []string) error { return s.check() },
		RunE: func(cmd *cobra.Command, logs []string) error {
			return s.run(logs, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	configFlag(cmd, &s.config)
	f := cmd.Flags()
	f.StringVar(&s.compare, "compare", "", "a second configuration `FILE`, side by side")
	f.StringVar(&s.format, "log-format", "", "the `FORMAT` of the lines: NGINX's log_format, Apache's LogFormat, combined or common")
	f.StringVar(&s.spread, "spread", "even", "where in a whole second its requests came: even, random or start")
	f.Uint64Var(&s.seed, "seed", 1, "seed of --spread random")
	f.StringVar(&s.host, "host", "", "the `HOST` of requests whose log does not tell it")
	f.DurationVar(&s.service, "service-time", 0, "what the upstream needs for a request whose log does not tell it")
	f.BoolVar(&s.json, "json", false, "write JSON instead of tables")
	f.StringVar(&s.html, "html", "", "write a page with plots to `FILE` too")
	f.BoolVar(&s.suggest, "suggest", false, "search for the smallest numbers that refuse fewest")
	f.StringVar(&s.forRate, "for-rate", "", "with --suggest: the `RATE` that the upstream takes, such as 20/s")
	f.StringVar(&s.forWait, "for-wait", "", "with --suggest: the longest `WAIT` that anybody is to have, such as 5s")
	f.UintVar(&s.top, "top", 10, "how many of the busiest keys to show")
	return cmd
}

func (s *simulation) run(logs []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var configs []*config.Config
	for _, file := range []string{s.config, s.compare} {
		if file == "" {
			continue
		}
		c, err := config.Load(file, os.LookupEnv)
		if err != nil {
			return err
		}
		configs = append(configs, c)
	}
	sources, size, err := replay.Open(logs, stdin)
	if err != nil {
		return err
	}
	defer replay.Close(sources)
	show := newProgress(stderr)
	sources, read := show.reading(sources, size)
	log, err := replay.Read(sources, replay.Options{
		Format: s.format, Spread: replay.Spread(s.spread), Seed: s.seed, Host: s.host, ServiceTime: s.service,
	}, configs...)
	read()
	if err != nil {
		return err
	}
	var reports []*replay.Report
	for i := range configs {
		show.step("replaying under " + configs[i].File)
		result, err := log.Run(i, nil)
		if err != nil {
			return err
		}
		reports = append(reports, result.Report(int(min(s.top, math.MaxInt32))))
	}
	report := reports[0]
	if len(reports) > 1 {
		report.Compare = reports[1]
	}
	if s.suggest {
		report.Suggest, err = log.Suggest(0, s.aim, func(limit string) { show.step("searching for limit " + limit) })
		if err != nil {
			return err
		}
	}
	show.step("")
	if s.html != "" {
		if err := writeFile(s.html, report.HTML); err != nil {
			return err
		}
	}
	if s.json {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(report)
	}
	return report.Text(stdout)
}

// check says what is wrong with the flags, and reads what --suggest is to reach.
func (s *simulation) check() (err error) {
	switch replay.Spread(s.spread) {
	case replay.Even, replay.Random, replay.Start:
	default:
		return fmt.Errorf("--spread is %s, %s or %s, not %q", replay.Even, replay.Random, replay.Start, s.spread)
	}
	if s.service < 0 {
		return fmt.Errorf("--service-time must not be negative, as %s is", s.service)
	}
	if (s.forRate != "" || s.forWait != "") && !s.suggest {
		return errors.New("--for-rate and --for-wait say what --suggest is to reach; add --suggest")
	}
	if s.forRate != "" {
		if s.aim.Rate, err = limiter.ParseRate(s.forRate); err != nil {
			return fmt.Errorf("--for-rate: %w", err)
		}
	}
	if s.forWait != "" {
		if s.aim.Wait, err = limiter.ParseDuration(s.forWait); err != nil {
			return fmt.Errorf("--for-wait: %w", err)
		}
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// A progress tells a person who waits what goes on; no one else.
type progress struct {
	w     io.Writer
	shown bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, shown: ok && term.IsTerminal(int(f.Fd()))}
}

// reading has a bar follow how much of the sources has been read, until done is
// called.
func (p *progress) reading(sources []replay.Source, size int64) (shown []replay.Source, done func()) {
	if !p.shown {
		return sources, func() {}
	}
	bar := progressbar.NewOptions64(size, progressbar.OptionSetWriter(p.w), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription("reading"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	for _, s := range sources {
		reader := progressbar.NewReader(s.Reader, bar)
		shown = append(shown, replay.Source{Name: s.Name, Reader: &reader})
	}
	return shown, func() { _ = bar.Finish() }
}

// step says what is done now; nothing is.
func (p *progress) step(what string) {
	if !p.shown {
		return
	}
	fmt.Fprint(p.w, "\r\x1b[K")
	if what != "" {
		fmt.Fprintf(p.w, "%s …", what)
	}
}
