package config

import (
	"regexp"
	"strings"
)

// A text is a string of the file with its environment variables put in.
type text struct {
	value string
	raw   string // as the file has it
	path  []string
}

var (
	variable     = regexp.MustCompile(`\$\{([^}]*)\}?`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// expand puts in environment variables. What a variable's value holds is not
// looked at again.
func (d *decoder) expand(raw string, path []string) (text, bool) {
	ok := true
	value := variable.ReplaceAllStringFunc(raw, func(found string) string {
		name := variable.FindStringSubmatch(found)[1]
		if !strings.HasSuffix(found, "}") || !variableName.MatchString(name) {
			d.problem(path, "%q does not name an environment variable; write ${NAME}", found)
			ok = false
			return ""
		}
		v, set := d.getenv(name)
		if !set {
			d.problem(path, "the environment variable %s is not set; set it, or write the value instead of ${%s}", name, name)
			ok = false
		}
		return v
	})
	return text{value, raw, path}, ok
}

// A discreet error quotes nothing of the value it is about.
type discreet string

func (e discreet) Error() string { return string(e) }

// invalid notes that x is not a form, such as "a duration". An error that may
// quote the value is kept back when the value came from the environment.
func (d *decoder) invalid(x text, form string, err error) {
	if _, safe := err.(discreet); x.value != x.raw && !safe {
		d.problem(x.path, "what %q stands for cannot be used; it must be %s", x.raw, form)
		return
	}
	d.problem(x.path, "%v", err)
}
