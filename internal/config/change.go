package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Changeable are the fields of a limit that can be changed while it runs, with
// its state and its waiters kept.
var Changeable = []string{"rate", "burst", "queue", "max_wait", "limit", "dry_run"}

// Change returns the configuration with some fields of one limit changed, as if
// the file had said so. Values are as TOML would give them: string, int64,
// float64, bool. The error is a Problems without files and lines.
func (c *Config) Change(limit string, fields map[string]any) (*Config, error) {
	i := slices.IndexFunc(c.Limits, func(l Limit) bool { return l.Name == limit })
	if i < 0 {
		return nil, Problems{{Key: "limit." + limit, Text: "there is no limit of this name"}}
	}
	var wrong Problems
	for name := range fields {
		if !slices.Contains(Changeable, name) {
			wrong = append(wrong, Problem{Key: name, Text: "cannot be changed while the limit runs; " + allOf(Changeable) + " can, everything else by editing the file and a reload"})
		}
	}
	if len(wrong) > 0 {
		wrong.sort()
		return nil, wrong
	}

	s := c.source
	s.values = maps.Clone(s.values)
	tables, _ := s.values["limit"].(map[string]any)
	tables = maps.Clone(tables)
	table, _ := tables[limit].(map[string]any)
	table = maps.Clone(table)
	maps.Copy(table, fields)
	if rate, ok := fields["rate"]; ok && rate != any(auto) {
		// Whoever knows the rate needs no bounds for a search.
		delete(table, "min_rate")
		delete(table, "max_rate")
	}
	tables[limit], s.values["limit"] = table, tables

	changed, err := s.decode()
	if problems, ok := err.(Problems); ok {
		for i := range problems {
			problems[i].File, problems[i].Line = "", 0
			problems[i].Key = strings.TrimPrefix(problems[i].Key, "limit."+limit+".")
		}
		return nil, problems
	}
	if err != nil {
		return nil, err
	}
	if was, is := c.Limits[i].Queue, changed.Limits[i].Queue; (was > 0) != (is > 0) {
		return nil, Problems{{Key: "queue", Text: fmt.Sprintf("a limit with a queue and one without are two kinds, and %d makes another of this one; edit the file and reload, and it starts anew", is)}}
	}
	return changed, nil
}
