package config

import (
	"encoding/json"
	"math"
)

// A node is a part of a JSON schema (draft 2020-12), as editors complete and
// check by.
type node struct {
	Schema      string           `json:"$schema,omitempty"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Type        string           `json:"type,omitempty"`
	Enum        []string         `json:"enum,omitempty"`
	Minimum     *int64           `json:"minimum,omitempty"`
	Maximum     *int64           `json:"maximum,omitempty"`
	Items       *node            `json:"items,omitempty"`
	AnyOf       []*node          `json:"anyOf,omitempty"`
	Properties  map[string]*node `json:"properties,omitempty"`
	// Additional is false for a table whose fields are all known, or what is
	// behind the names of the user's choice.
	Additional any `json:"additionalProperties,omitempty"`
}

func object(what string) *node {
	return &node{Type: "object", Description: what, Properties: map[string]*node{}, Additional: false}
}

func wholeNumber(least, most int64) *node {
	n := &node{Type: "integer"}
	if least != math.MinInt64 {
		n.Minimum = &least
	}
	if most != math.MaxInt64 {
		n.Maximum = &most
	}
	return n
}

// anything is what a field takes of which no more is said.
var anything = &node{}

// describe notes what a field takes. What was said first counts.
func (t *table) describe(key string, n *node) {
	if t.node == nil {
		return
	}
	if said := t.node.Properties[key]; said == nil || said == anything {
		t.node.Properties[key] = n
	}
}

// anyFields describes a table whose fields are names of the user's choice.
func (t *table) anyFields(n *node) {
	if t.node != nil {
		t.node.Additional = n
	}
}

// described is, while tables are described, one empty table of a list.
func (t *table) described(key, what string) []*table {
	if t.node == nil {
		return nil
	}
	one := t.d.table(what, t.at(key, element(0)), nil)
	t.describe(key, &node{Type: "array", Items: one.node})
	return []*table{one}
}

// describedByName is, while tables are described, one empty table of those that
// the user names.
func (t *table) describedByName(what string) []*table {
	if t.node == nil {
		return nil
	}
	one := t.d.table(what, t.at("NAME"), nil)
	t.anyFields(one.node)
	return []*table{one}
}

// Schema is the JSON schema of the configuration. It is made by reading an empty
// file and noting what is asked for, so it knows every field there is. What
// depends on other fields, as what an algorithm takes, only Load knows.
func Schema() []byte {
	d := &decoder{file: "schema", lines: indexLines(nil), schema: true, getenv: func(string) (string, bool) { return "", false }}
	root := d.table("the file", nil, nil)
	d.config(root)
	root.node.Schema = "https://json-schema.org/draft/2020-12/schema"
	root.node.Title = "shapeproxy"
	text, err := json.MarshalIndent(root.node, "", "  ")
	if err != nil {
		panic(err) // a node holds nothing that JSON does not have
	}
	return append(text, '\n')
}
