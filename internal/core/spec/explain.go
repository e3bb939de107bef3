// SPDX-License-Identifier: Apache-2.0

package spec

import (
	_ "embed" // the table
	"encoding/json"
	"fmt"
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

// Explain tells what a field means: its type, its text, its default, the fields below it. The path may leave out spec and
// spec.components: Explain("pools.roles"). The empty path is the whole document.
func Explain(path string) (string, error) {
	var types []structType
	if err := json.Unmarshal(explainJSON, &types); err != nil {
		return "", fmt.Errorf("read the field table: %w", err)
	}
	keys := slices.DeleteFunc(Split(path), isDigits)
	var first error
	for _, above := range [][]string{nil, {"spec"}, {"spec", "components"}} {
		text, err := explain(types, append(above, keys...))
		if err == nil {
			return text, nil
		}
		if first == nil || len(above) == 1 && strings.Contains(err.Error(), "did you mean") {
			first = err
		}
	}
	return "", first
}

func explain(types []structType, keys []string) (string, error) {
	at := field{Type: "Cluster", Doc: types[0].Doc}
	path := ""
	for i, key := range keys {
		t, ok := find(types, at.Type)
		if !ok {
			if i == len(keys)-1 && strings.HasPrefix(at.Type, "map[") { // a name that the user chooses
				path = Child(path, key)
				break
			}
			return "", fmt.Errorf("explain %s: %s has no fields", strings.Join(keys, "."), path)
		}
		f := slices.IndexFunc(t.Fields, func(f field) bool { return f.Name == key })
		if f < 0 {
			return "", unknownField(types, t, path, key)
		}
		at, path = t.Fields[f], Child(path, key)
	}
	return render(types, at, path), nil
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

func render(types []structType, f field, path string) string {
	if path == "" {
		path = Kind
	}
	var b strings.Builder
	text, standard := splitDefault(f.Doc)
	fmt.Fprintf(&b, "%s: %s\n\n", path, typeName(types, f.Type))
	if text != "" {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	if standard != "" {
		fmt.Fprintf(&b, "\n  Default: %s\n", standard)
	}
	t, ok := find(types, f.Type)
	if !ok {
		return b.String()
	}
	b.WriteString("\nFields:\n")
	width := 0
	for _, sub := range t.Fields {
		width = max(width, len(sub.Name))
	}
	for _, sub := range t.Fields {
		text, standard := splitDefault(sub.Doc)
		if standard != "" {
			text += " Default: " + standard + "."
		}
		fmt.Fprintf(&b, "  %-*s  %s. %s\n", width, sub.Name, typeName(types, sub.Type), text)
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
	case "[]string":
		return "list of text"
	case "map[string]string":
		return "text by name"
	case "map[string]bool":
		return "true or false by name"
	case "map[string]any":
		return "values by name"
	}
	if _, ok := find(types, goType); ok && strings.HasPrefix(goType, "[]") {
		return "list of objects"
	}
	return "object"
}
