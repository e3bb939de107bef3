// SPDX-License-Identifier: Apache-2.0

package spec

import (
	_ "embed" // the table
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:generate go run ./genexplain ../../../api/cluster/v1alpha1/cluster.go explain.json

//go:embed explain.json
var explainJSON []byte

// structType and field are the table's rows: the API types with their doc comments.
type structType struct {
	Name   string  `json:"name"`
	Doc    string  `json:"doc"`
	Fields []field `json:"fields"`
}

type field struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Doc  string `json:"doc"`
}

// Description is what is known of a field.
type Description struct {
	Path    string        `json:"path"`
	Type    string        `json:"type"`
	Text    string        `json:"text,omitempty"`
	Default string        `json:"default,omitempty"`
	Fields  []Description `json:"fields,omitempty"` // by name, without those below them
}

// Flags tells of the flags of a component ("apiserver"), by name; nil where nothing is known of them.
type Flags func(component string) map[string]Description

// Explain tells what a field means: its type, its text, its default, the fields below it. The path may leave out spec and
// spec.components: Explain("pools.roles", nil). The empty path is the whole document.
func Explain(path string, flags Flags) (Description, error) {
	var types []structType
	if err := json.Unmarshal(explainJSON, &types); err != nil {
		return Description{}, fmt.Errorf("read the field table: %w", err)
	}
	keys := slices.DeleteFunc(Split(path), isDigits)
	var first error
	for _, above := range [][]string{nil, {"spec"}, {"spec", "components"}} {
		found, err := explain(types, append(above, keys...), flags)
		if err == nil {
			return found, nil
		}
		var flag flagError
		if errors.As(err, &flag) {
			return Description{}, err // the path was right so far
		}
		if first == nil || len(above) == 1 && strings.Contains(err.Error(), "did you mean") || strings.Contains(err.Error(), "has no fields") {
			first = err
		}
	}
	return Description{}, first
}

func explain(types []structType, keys []string, flags Flags) (Description, error) {
	at := field{Type: "Cluster", Doc: types[0].Doc}
	path := ""
	for i, key := range keys {
		t, ok := find(types, at.Type)
		if !ok {
			switch {
			case at.Name == "flags" && i == len(keys)-1:
				return explainFlag(keys[i-2], path, key, flags)
			case at.Name == "config", i == len(keys)-1 && strings.HasPrefix(at.Type, "map["): // names that are chosen elsewhere
				path = Child(path, key)
				continue
			}
			return Description{}, fmt.Errorf("explain %s: %s has no fields", strings.Join(keys, "."), path)
		}
		f := slices.IndexFunc(t.Fields, func(f field) bool { return f.Name == key })
		if f < 0 {
			return Description{}, unknownField(types, t, path, key)
		}
		at, path = t.Fields[f], Child(path, key)
	}
	return describe(types, at, path), nil
}

// flagError is told of a flag that its program does not have.
type flagError string

func (e flagError) Error() string { return string(e) }

func explainFlag(component, path, name string, flags Flags) (Description, error) {
	path = Child(path, name)
	var known map[string]Description
	if flags != nil {
		known = flags(component)
	}
	if known == nil {
		return Description{Path: path, Type: "text, or a list of text where a flag may be repeated"}, nil
	}
	d, ok := known[name]
	if ok {
		d.Path = path
		return d, nil
	}
	hint := ""
	if near := Nearest(name, slices.Sorted(maps.Keys(known))); near != "" {
		hint = ": did you mean " + show(near) + "?"
	}
	return Description{}, flagError("explain " + path + ": no such flag" + hint)
}

func unknownField(types []structType, t structType, path, key string) error {
	var known []string
	for _, f := range t.Fields {
		known = append(known, f.Name)
	}
	if near := Nearest(key, known); near != "" {
		return fmt.Errorf("explain %s: no such field: did you mean %s?", Child(path, key), show(Child(path, near)))
	}
	for _, other := range types {
		if slices.ContainsFunc(other.Fields, func(f field) bool { return f.Name == key }) {
			return fmt.Errorf("explain %s: no such field: a %s has one", Child(path, key), other.Name)
		}
	}
	return fmt.Errorf("explain %s: no such field: there are %s", Child(path, key), strings.Join(known, ", "))
}

func find(types []structType, goType string) (structType, bool) {
	i := slices.IndexFunc(types, func(t structType) bool { return t.Name == strings.TrimPrefix(goType, "[]") })
	if i < 0 {
		return structType{}, false
	}
	return types[i], true
}

func describe(types []structType, f field, path string) Description {
	if path == "" {
		path = Kind
	}
	d := Description{Path: path, Type: typeName(types, f.Type)}
	d.Text, d.Default = splitDefault(f.Doc)
	t, _ := find(types, f.Type)
	for _, sub := range t.Fields {
		text, standard := splitDefault(sub.Doc)
		d.Fields = append(d.Fields, Description{Path: sub.Name, Type: typeName(types, sub.Type), Text: text, Default: standard})
	}
	return d
}

// String is the description as people read it.
func (d Description) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", d.Path, d.Type)
	if d.Text != "" {
		fmt.Fprintf(&b, "  %s\n", d.Text)
	}
	if d.Default != "" {
		fmt.Fprintf(&b, "\n  Default: %s\n", d.Default)
	}
	if len(d.Fields) == 0 {
		return b.String()
	}
	b.WriteString("\nFields:\n")
	width := 0
	for _, sub := range d.Fields {
		width = max(width, len(sub.Path))
	}
	for _, sub := range d.Fields {
		text := sub.Text
		if sub.Default != "" {
			text += " Default: " + sub.Default + "."
		}
		fmt.Fprintf(&b, "  %-*s  %s. %s\n", width, sub.Path, sub.Type, text)
	}
	return b.String()
}

// splitDefault takes the sentence that begins with "Default" off a text.
func splitDefault(doc string) (text, standard string) {
	text, standard, ok := strings.Cut(" "+doc, " Default")
	if !ok {
		return doc, ""
	}
	return strings.TrimSpace(text), strings.TrimSuffix(strings.TrimLeft(standard, ": "), ".")
}

func typeName(types []structType, goType string) string {
	switch goType {
	case "string":
		return "text"
	case "*int":
		return "whole number"
	case "bool":
		return "true or false"
	case "[]string":
		return "list of text"
	case "map[string]string":
		return "text by name"
	case "map[string]bool":
		return "true or false by name"
	case "map[string]any":
		return "values by name"
	case "map[string][]string":
		return "lists of text by name"
	case "map[string]map[string]string":
		return "texts by name and name"
	}
	if _, ok := find(types, goType); ok && strings.HasPrefix(goType, "[]") {
		return "list of objects"
	}
	return "object"
}
