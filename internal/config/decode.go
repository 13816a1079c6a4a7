package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A decoder holds what all tables of one file share.
type decoder struct {
	file     string
	lines    *lineIndex
	getenv   func(string) (string, bool)
	problems Problems
	warnings Problems
	schema   bool // the tables are described; see Schema
}

func (d *decoder) problem(path []string, format string, args ...any) {
	d.problems = append(d.problems, d.place(path, fmt.Sprintf(format, args...)))
}

func (d *decoder) warn(path []string, format string, args ...any) {
	d.warnings = append(d.warnings, d.place(path, fmt.Sprintf(format, args...)))
}

func (d *decoder) place(path []string, text string) Problem {
	var key toml.Key
	for _, part := range path {
		if !strings.HasPrefix(part, "[") {
			key = append(key, part)
		}
	}
	return Problem{File: d.file, Line: d.lines.line(path), Key: key.String(), Text: text}
}

// A table is read field by field. Its methods leave the destination as it is,
// with its default, when the field is absent, and note a problem when the
// value does not fit.
type table struct {
	d      *decoder
	what   string // "a limit", for what it takes
	path   []string
	values map[string]any
	fields []string        // every field asked for, so every field there is
	masked map[string]bool // fields that hold an environment variable's value
	node   *node           // its description; nil: none is made
}

func (d *decoder) table(what string, path []string, values map[string]any) *table {
	t := &table{d: d, what: what, path: path, values: values, masked: map[string]bool{}}
	if d.schema {
		t.node = object(what)
	}
	return t
}

func (t *table) at(key string, more ...string) []string {
	return append(append(t.path[:len(t.path):len(t.path)], key), more...)
}

func (t *table) bad(key, format string, args ...any) { t.d.problem(t.at(key), format, args...) }

func (t *table) has(key string) bool { _, ok := t.values[key]; return ok }

func (t *table) take(key string) (any, bool) {
	t.fields = append(t.fields, key)
	t.describe(key, anything)
	v, ok := t.values[key]
	return v, ok
}

// finish notes the keys that nobody asked for.
func (t *table) finish() {
	for key, v := range t.values {
		if slices.Contains(t.fields, key) {
			continue
		}
		_, isTable := v.(map[string]any)
		switch meant := near(key, t.fields); {
		case meant != "" && t.has(meant):
			t.bad(key, "unknown key beside %q; remove it", meant)
		case meant != "":
			t.bad(key, "unknown key; did you mean %q?", meant)
		case isTable && len(t.path) == 2 && !strings.HasPrefix(t.path[1], "["):
			t.bad(key, "unknown table; for a name with a dot write [%s.%q]", t.path[0], t.path[1]+"."+key)
		default:
			t.bad(key, "unknown key; %s takes %s", t.what, allOf(t.fields))
		}
	}
}

// text reads a string. The form says what is meant, with an example.
func (t *table) text(key, form string, use func(string) error) {
	t.describe(key, &node{Type: "string", Description: form})
	v, ok := t.take(key)
	if !ok {
		return
	}
	s, isString := v.(string)
	if !isString {
		t.bad(key, "must be %s, not %s", form, kindOf(v))
		return
	}
	x, ok := t.d.expand(s, t.at(key))
	if !ok {
		return
	}
	t.masked[key] = x.value != x.raw
	if err := use(x.value); err != nil {
		t.d.invalid(x, form, err)
	}
}

// texts reads a list of strings, or one string alone where that is accepted. It
// reports whether the field is there and holds nothing else.
func (t *table) texts(key, form string, alone bool) (list []text, ok bool) {
	several := &node{Type: "array", Items: &node{Type: "string", Description: form}}
	if alone {
		several = &node{AnyOf: []*node{several, {Type: "string", Description: form}}}
	}
	t.describe(key, several)
	v, ok := t.take(key)
	if !ok {
		return nil, false
	}
	if s, isString := v.(string); isString && alone {
		x, set := t.d.expand(s, t.at(key))
		if !set {
			return nil, false
		}
		t.masked[key] = x.value != x.raw
		return []text{x}, true
	} else if isString {
		t.bad(key, "must be a list; write %s = [%q]", key, s)
		return nil, false
	}
	values, isList := v.([]any)
	if !isList {
		t.bad(key, "must be a list of strings, each %s, not %s", form, kindOf(v))
		return nil, false
	}
	for i, v := range values {
		path := t.at(key, element(i))
		s, isString := v.(string)
		if !isString {
			t.d.problem(path, "must be a list of strings, each %s, and holds %s", form, kindOf(v))
			ok = false
			continue
		}
		x, set := t.d.expand(s, path)
		if !set {
			ok = false
			continue
		}
		t.masked[key] = t.masked[key] || x.value != x.raw
		list = append(list, x)
	}
	return list, ok
}

// each hands over every element of a list of strings. It reports whether the
// field is there and all of them are in order.
func (t *table) each(key, form string, alone bool, use func(string) error) bool {
	list, ok := t.texts(key, form, alone)
	for _, x := range list {
		if err := use(x.value); err != nil {
			t.d.invalid(x, form, err)
			ok = false
		}
	}
	return ok
}

func (t *table) word(key string, dst *string, words ...string) {
	t.describe(key, &node{Type: "string", Enum: words})
	t.text(key, oneOf(quoted(words)), func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is not known here; %s", s, didYouMean(s, words))
		}
		*dst = s
		return nil
	})
}

func (t *table) flag(key string, dst *bool) {
	t.describe(key, &node{Type: "boolean"})
	v, ok := t.take(key)
	if !ok {
		return
	}
	b, isBool := v.(bool)
	if !isBool {
		t.bad(key, "must be true or false without quotes, not %s", kindOf(v))
		return
	}
	*dst = b
}

// count reads a whole number from least to most.
func (t *table) count(key string, dst *int64, least, most int64) {
	t.describe(key, wholeNumber(least, most))
	v, ok := t.take(key)
	if !ok {
		return
	}
	n, isInt := v.(int64)
	switch f, isFloat := v.(float64); {
	case isInt && n < least:
		t.bad(key, "must be at least %d", least)
	case isInt && n > most:
		t.bad(key, "must be at most %d", most)
	case isInt:
		*dst = n
	case isFloat && f == math.Trunc(f) && math.Abs(f) < 1<<53:
		t.bad(key, "must be a whole number, and %s is a float; write %d", formatFloat(f), int64(f))
	default:
		t.bad(key, "must be a whole number such as %d, not %s", max(least, 1), kindOf(v))
	}
}

func (t *table) int(key string, dst *int, least, most int64) {
	n := int64(*dst)
	t.count(key, &n, least, most)
	*dst = int(n)
}

// quantity reads a number with a unit. A bare number is given to use all the
// same, which must refuse it, as its error says which unit is likely meant.
func (t *table) quantity(key, form string, use func(string) error) {
	var number string
	switch v := t.values[key].(type) {
	case int64:
		number = strconv.FormatInt(v, 10)
	case float64:
		number = formatFloat(v)
	default:
		t.text(key, form, use)
		return
	}
	t.describe(key, &node{Type: "string", Description: form})
	t.take(key)
	t.bad(key, "%v", use(number))
}

func (t *table) duration(key string, dst *time.Duration) {
	t.quantity(key, `a duration such as "30s"`, func(s string) error {
		d, err := limiter.ParseDuration(s)
		if err == nil && d <= 0 {
			err = errors.New("must be above zero; write a duration such as \"30s\"")
		}
		if err == nil {
			*dst = d
		}
		return err
	})
}

func (t *table) size(key string, dst *int64, least, most int64) {
	t.quantity(key, `a size such as "64KiB"`, func(s string) error {
		n, err := parseSize(s)
		if err == nil && n < least {
			err = fmt.Errorf("must be at least %s", formatSize(least))
		}
		if err == nil && n > most {
			err = fmt.Errorf("must be at most %s", formatSize(most))
		}
		if err == nil {
			*dst = n
		}
		return err
	})
}

// require notes a missing field, at the table's own line.
func (t *table) require(key, example string) {
	if !t.has(key) {
		t.bad(key, "is missing; write %s = %s", key, example)
	}
}

// sub returns the table of that key; an empty one if it is absent.
func (t *table) sub(key, what string) *table {
	v, ok := t.take(key)
	values, isTable := v.(map[string]any)
	switch _, isList := v.([]map[string]any); {
	case isTable, !ok:
	case isList:
		t.bad(key, "is one table, not a list; write [%s]", toml.Key(t.at(key)))
	default:
		t.bad(key, "must be a table, not %s; write [%s]", kindOf(v), toml.Key(t.at(key)))
	}
	table := t.d.table(what, t.at(key), values)
	t.describe(key, table.node)
	return table
}

// subs returns the tables of a list.
func (t *table) subs(key, what, example string) []*table {
	v, ok := t.take(key)
	list := t.described(key, what)
	switch v := v.(type) {
	case []map[string]any:
		for i, values := range v {
			list = append(list, t.d.table(what, t.at(key, element(i)), values))
		}
		return list
	case []any: // a list within one key, with elements of any kind
		for i, e := range v {
			values, isTable := e.(map[string]any)
			if !isTable {
				t.d.problem(t.at(key, element(i)), "must be a list of tables, and holds %s; write %s", kindOf(e), example)
				continue
			}
			list = append(list, t.d.table(what, t.at(key, element(i)), values))
		}
		return list
	}
	if ok {
		t.bad(key, "must be a list of tables, not %s; write %s", kindOf(v), example)
	}
	return list
}

// nameForm matches the names of limits and upstreams.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// named returns the tables [key.NAME] in the file's order.
func (t *table) named(key, what string) []*table {
	parent := t.sub(key, what)
	list := parent.describedByName(what)
	for n, v := range parent.values {
		values, isTable := v.(map[string]any)
		_, isList := v.([]map[string]any)
		switch {
		case isList:
			parent.bad(n, "is one table, not a list; write [%s]", toml.Key(parent.at(n)))
			continue
		case !isTable:
			parent.bad(n, "is outside of any table; write [%s.NAME] above it, with a name of your choice", key)
			continue
		case !nameForm.MatchString(n):
			parent.bad(n, "a name is made of letters, digits, \"-\", \"_\" and \".\"; choose another")
		}
		list = append(list, t.d.table(what, parent.at(n), values))
	}
	slices.SortFunc(list, func(a, b *table) int {
		return cmp.Or(cmp.Compare(t.d.lines.offset(a.path), t.d.lines.offset(b.path)), cmp.Compare(a.name(), b.name()))
	})
	return list
}

func (t *table) name() string { return t.path[len(t.path)-1] }

func kindOf(v any) string {
	switch v.(type) {
	case nil: // of the API: TOML has none
		return "null"
	case string:
		return "a string"
	case int64:
		return "a whole number"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	}
	return "a list"
}

func quoted(words []string) []string {
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = strconv.Quote(w)
	}
	return list
}

func formatFloat(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if f == math.Trunc(f) && !math.IsInf(f, 0) {
		s += ".0"
	}
	return s
}
