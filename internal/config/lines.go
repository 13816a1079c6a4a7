package config

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// A lineIndex knows where each key, table and list element of a file stands.
// The decoder of the values does not tell, so the file is read a second time
// for its positions.
type lineIndex struct {
	text    []byte
	offsets map[string]int // by joined path
	tables  map[string]int // [[table]] headers seen, by joined path
}

// element is the part of a path that stands for the i-th element of a list.
func element(i int) string { return "[" + strconv.Itoa(i) + "]" }

func join(path []string) string { return strings.Join(path, "\x00") }

func indexLines(text []byte) *lineIndex {
	x := &lineIndex{text: text, offsets: map[string]int{}, tables: map[string]int{}}
	var p unstable.Parser
	p.Reset(text)
	var table []string
	for p.NextExpression() {
		n := p.Expression()
		switch n.Kind {
		case unstable.Table:
			table = x.keys(n, nil, false)
		case unstable.ArrayTable:
			table = x.keys(n, nil, true)
		case unstable.KeyValue:
			x.value(n.Value(), x.keys(n, table, false))
		}
	}
	// A file that the other decoder takes and this one does not has lines up
	// to where they disagree; below, line falls back on what encloses the key.
	return x
}

// keys notes the keys of a header or a key-value pair below parent and returns
// their path, in which a list of tables stands for its last element.
func (x *lineIndex) keys(n *unstable.Node, parent []string, newElement bool) []string {
	path := parent[:len(parent):len(parent)]
	at := 0
	for it := n.Key(); it.Next(); {
		key := it.Node()
		at = int(key.Raw.Offset)
		path = append(path, string(key.Data))
		x.note(path, at)
		count := x.tables[join(path)]
		if newElement && it.IsLast() {
			x.tables[join(path)]++
			count++
		}
		if count > 0 {
			path = append(path, element(count-1))
			x.note(path, at)
		}
	}
	return path
}

func (x *lineIndex) value(n *unstable.Node, path []string) {
	// No field lies deeper, and a file of brackets must not make us work for
	// each of them.
	if len(path) > 8 {
		return
	}
	i := 0
	for it := n.Children(); it.Next(); {
		switch child := it.Node(); {
		case n.Kind == unstable.InlineTable && child.Kind == unstable.KeyValue:
			x.value(child.Value(), x.keys(child, path, false))
		case n.Kind == unstable.Array && child.Kind != unstable.Comment:
			below := append(path[:len(path):len(path)], element(i))
			if child.Raw.Length > 0 {
				x.note(below, int(child.Raw.Offset))
			}
			x.value(child, below)
			i++
		}
	}
}

func (x *lineIndex) note(path []string, offset int) {
	if _, seen := x.offsets[join(path)]; !seen {
		x.offsets[join(path)] = offset
	}
}

// offset is where the path stands, or else what encloses it.
func (x *lineIndex) offset(path []string) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if at, ok := x.offsets[join(path)]; ok {
			return at
		}
	}
	return 0
}

// line is the line of offset(path), counted from 1.
func (x *lineIndex) line(path []string) int {
	return 1 + bytes.Count(x.text[:x.offset(path)], []byte("\n"))
}
