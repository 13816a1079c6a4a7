package nginxconf

import (
	"fmt"
	"strings"

	"github.com/tufanbarisyildirim/gonginx/config"
	"github.com/tufanbarisyildirim/gonginx/parser"
)

// A directive is one directive of the file, with its arguments unquoted.
type directive struct {
	name  string
	args  []string
	line  int    // 0: not known, as of blocks
	file  string // where it stands
	block []*directive
	used  bool // translated, or noted
}

// String is its head as it may be shown.
func (d *directive) String() string {
	return strings.Join(append([]string{d.name}, d.args...), " ")
}

// place is where it stands, for a note.
func (d *directive) place() string {
	if d.line == 0 {
		return d.file
	}
	return fmt.Sprintf("%s:%d", d.file, d.line)
}

// parse reads a file and what it includes.
func parse(file string) ([]*directive, error) {
	p, err := parser.NewParser(file, parser.WithSkipValidDirectivesErr(), parser.WithIncludeParsing())
	if err != nil {
		return nil, err
	}
	c, err := p.Parse()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return directives(c.Block, file), nil
}

func directives(b config.IBlock, file string) (all []*directive) {
	for _, d := range b.GetDirectives() {
		if included, ok := d.(*config.Include); ok {
			all = append(all, include(included, file)...)
			continue
		}
		one := &directive{name: unquote(d.GetName()), line: d.GetLine(), file: file}
		for _, arg := range d.GetParameters() {
			one.args = append(one.args, unquote(arg.GetValue()))
		}
		if b := d.GetBlock(); b != nil {
			one.line = 0 // the parser knows the line of its end
			one.block = directives(b, file)
			if one.block == nil {
				one.block = []*directive{}
			}
		}
		all = append(all, one)
	}
	return all
}

// include is what the included files hold; without any it is a directive, to be
// noted.
func include(d *config.Include, file string) (all []*directive) {
	for _, c := range d.Configs {
		all = append(all, directives(c.Block, c.FilePath)...)
	}
	if len(d.Configs) == 0 {
		all = append(all, &directive{name: "include", args: []string{d.IncludePath}, line: d.GetLine(), file: file})
	}
	return all
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		quote := s[:1]
		return strings.ReplaceAll(s[1:len(s)-1], `\`+quote, quote)
	}
	return s
}

// A scope is a block and those around it.
type scope struct {
	outer *scope
	list  []*directive
}

// all are the directives of that name that count here: those of the innermost
// block that has any, as NGINX inherits them.
func (s *scope) all(name string) []*directive {
	for ; s != nil; s = s.outer {
		var found []*directive
		for _, d := range s.list {
			if d.name == name {
				found = append(found, d)
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// text is the first argument of the last directive of that name that counts
// here.
func (s *scope) text(name, otherwise string) string {
	all := s.all(name)
	if len(all) == 0 || len(all[len(all)-1].args) == 0 {
		return otherwise
	}
	for _, d := range all {
		d.used = true
	}
	return all[len(all)-1].args[0]
}
