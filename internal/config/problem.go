package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Problem is one thing that is wrong with a file, and what to write instead.
// Its text never holds the value of an environment variable, a password or
// what a token_file holds.
type Problem struct {
	File string `json:"file"`
	Line int    `json:"line"` // 0: the file as a whole
	Key  string `json:"key"`  // such as limit.fragile.rate; empty for what is no key's fault
	Text string `json:"text"`
}

// String is the problem in one line, "FILE:LINE: key: text".
func (p Problem) String() string {
	place := p.File
	if p.Line > 0 {
		place += fmt.Sprintf(":%d", p.Line)
	}
	parts := slices.DeleteFunc([]string{place, p.Key, p.Text}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Problems is everything that is wrong with a file, ordered by line.
type Problems []Problem

// Error is every problem, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, one := range p {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sort() {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Text, b.Text))
	})
}
