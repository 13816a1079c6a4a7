package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	l := r.Log
	fmt.Fprintf(&b, "%d requests in %d lines, %s to %s (%s)\n", l.Requests, l.Lines,
		l.First.Format(time.RFC3339), l.Last.Format(time.RFC3339), l.Last.Sub(l.First).Round(time.Second))
	all := []*Report{r}
	if r.Compare != nil {
		all = append(all, r.Compare)
		fmt.Fprintf(&b, "A is %s, B is %s\n", r.File, r.Compare.File)
	}
	b.WriteByte('\n')
	r.limitTable(&b, all)
	r.routeTable(&b, all)
	r.upstreamTable(&b, all)
	r.busiestTable(&b)
	r.suggestions(&b)
	for i, one := range all {
		for _, note := range one.Notes {
			if i == 0 || !slices.Contains(r.Notes, note) {
				fmt.Fprintf(&b, "note: %s%s\n", side(all, i), note)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// side names a report where there are two.
func side(all []*Report, i int) string {
	if len(all) == 1 {
		return ""
	}
	return string(rune('A'+i)) + ": "
}

// A table lines columns up.
func table(b *strings.Builder, head string, rows func(row func(cells ...any))) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(head, " | ", "\t"))
	rows(func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	})
	w.Flush() // to memory
	b.WriteByte('\n')
}

// order is the names of the first report as its configuration has them, then
// those that only the other has.
func order(all []*Report, names func(*Report) []string) []string {
	var merged []string
	for _, r := range all {
		for _, name := range names(r) {
			if !slices.Contains(merged, name) {
				merged = append(merged, name)
			}
		}
	}
	return merged
}

func (r *Report) limitTable(b *strings.Builder, all []*Report) {
	names := order(all, func(r *Report) (names []string) {
		for _, l := range r.result.stats.limits {
			names = append(names, l.conf.Name)
		}
		return names
	})
	if len(names) == 0 {
		return
	}
	table(b, "LIMIT | offered | admitted | queued | rejected | wait p50 | p90 | p99 | max | peak depth", func(row func(...any)) {
		for _, name := range names {
			for i, one := range all {
				l, ok := one.Limits[name]
				if !ok {
					row(side(all, i)+name, "-")
					continue
				}
				label := side(all, i) + name
				if l.DryRun {
					label += " (dry run)"
				}
				row(label, l.Offered, l.Admitted, l.Queued, reasons(l.Rejected),
					wait(l.Wait.P50), wait(l.Wait.P90), wait(l.Wait.P99), wait(l.Wait.Max), l.PeakDepth)
			}
		}
	})
}

func (r *Report) routeTable(b *strings.Builder, all []*Report) {
	names := order(all, func(r *Report) (names []string) {
		for _, one := range r.result.stats.routes {
			names = append(names, one.Match)
		}
		return names
	})
	table(b, "ROUTE | offered | forwarded | rejected | wait p50 | p90 | p99 | max", func(row func(...any)) {
		for _, name := range names {
			for i, one := range all {
				if x, ok := one.Routes[name]; ok {
					row(side(all, i)+name, x.Offered, x.Forwarded, reasons(x.Rejected),
						wait(x.Wait.P50), wait(x.Wait.P90), wait(x.Wait.P99), wait(x.Wait.Max))
				}
			}
		}
	})
}

func (r *Report) upstreamTable(b *strings.Builder, all []*Report) {
	names := order(all, func(r *Report) (names []string) {
		for _, u := range r.result.stats.upstreams {
			names = append(names, u.name)
		}
		return names
	})
	table(b, "UPSTREAM | requests | most within a second", func(row func(...any)) {
		for _, name := range names {
			for i, one := range all {
				if u, ok := one.Upstreams[name]; ok {
					row(side(all, i)+name, u.Requests, u.PeakSecond)
				}
			}
		}
	})
}

func (r *Report) busiestTable(b *strings.Builder) {
	for _, l := range r.result.stats.limits {
		keys := r.Limits[l.conf.Name].Busiest
		if len(keys) == 0 {
			continue
		}
		table(b, fmt.Sprintf("BUSIEST OF %s (%d keys) | offered | rejected", l.conf.Name, r.Limits[l.conf.Name].Keys), func(row func(...any)) {
			for _, k := range keys {
				row(fmt.Sprintf("%q", clip(k.Key)), k.Offered, k.Rejected)
			}
		})
	}
}

// clip shortens what would break the lines of a table.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func reasons(by map[string]int) string {
	if len(by) == 0 {
		return "0"
	}
	sum := 0
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		sum += by[reason]
		parts = append(parts, fmt.Sprintf("%s %d", reason, by[reason]))
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(parts, ", "))
}

// wait writes seconds in three or four digits.
func wait(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d == 0:
		return "0"
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
