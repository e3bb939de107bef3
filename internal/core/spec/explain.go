// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// structType and docField are the API types with their doc comments, read from their own source.
type structType struct {
	name, doc string
	fields    []docField
}

type docField struct{ name, goType, doc string }

// structTypes reads the API types. It panics on source that does not compile.
func structTypes() []structType {
	file, err := parser.ParseFile(token.NewFileSet(), "cluster.go", v1alpha1.Source, parser.ParseComments)
	if err != nil {
		panic("spec: " + err.Error())
	}
	var out []structType
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		for _, s := range decl.Specs {
			spec, _ := s.(*ast.TypeSpec)
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			t := structType{name: spec.Name.Name, doc: oneLine(decl.Doc)}
			for _, f := range body.Fields.List {
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				doc := oneLine(f.Doc)
				if rest, ok := strings.CutPrefix(doc, f.Names[0].Name+" "); ok && name != strings.ToLower(name) {
					doc = name + " " + rest // users know the field by its name in YAML
				}
				t.fields = append(t.fields, docField{name: name, goType: types.ExprString(f.Type), doc: doc})
			}
			out = append(out, t)
		}
	}
	return out
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

// Description documents a field.
type Description struct {
	Path    string        `json:"path"`
	Type    string        `json:"type"`
	Text    string        `json:"text,omitempty"`
	Default string        `json:"default,omitempty"`
	Fields  []Description `json:"fields,omitempty"` // by name, without those below them
}

// Flags returns the flags of a component ("apiserver") by name; nil: unknown.
type Flags func(component string) map[string]Description

// Explain documents a field: its type, its text, its default, the fields below it. The path may omit spec and
// spec.components: Explain("pools.roles", nil). The empty path is the whole document.
func Explain(path string, flags Flags) (Description, error) {
	known := structTypes()
	keys := slices.DeleteFunc(Split(path), isDigits)
	var first error
	for _, above := range [][]string{nil, {"spec"}, {"spec", "components"}} {
		found, err := explain(known, append(above, keys...), flags)
		if err == nil {
			return found, nil
		}
		var flag flagError
		if errors.As(err, &flag) {
			return Description{}, err // the path was right up to here
		}
		if first == nil || len(above) == 1 && strings.Contains(err.Error(), "did you mean") || strings.Contains(err.Error(), "has no fields") {
			first = err
		}
	}
	return Description{}, first
}

func explain(known []structType, keys []string, flags Flags) (Description, error) {
	at := docField{goType: "Cluster", doc: known[0].doc}
	path := ""
	for i, key := range keys {
		t, ok := find(known, at.goType)
		if !ok {
			switch {
			case at.name == "flags" && i == len(keys)-1:
				return explainFlag(keys[i-2], path, key, flags)
			case at.name == "config", i == len(keys)-1 && strings.HasPrefix(at.goType, "map["): // names that no Go type lists
				path = Child(path, key)
				continue
			}
			return Description{}, fmt.Errorf("explain %s: %s has no fields", strings.Join(keys, "."), path)
		}
		f := slices.IndexFunc(t.fields, func(f docField) bool { return f.name == key })
		if f < 0 {
			return Description{}, unknownField(known, t, path, key)
		}
		at, path = t.fields[f], Child(path, key)
	}
	return describe(known, at, path), nil
}

// flagError reports a flag that its program does not have.
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

func unknownField(known []structType, t structType, path, key string) error {
	var names []string
	for _, f := range t.fields {
		names = append(names, f.name)
	}
	if near := Nearest(key, names); near != "" {
		return fmt.Errorf("explain %s: no such field: did you mean %s?", Child(path, key), show(Child(path, near)))
	}
	for _, other := range known {
		if slices.ContainsFunc(other.fields, func(f docField) bool { return f.name == key }) {
			return fmt.Errorf("explain %s: no such field: a %s has one", Child(path, key), other.name)
		}
	}
	return fmt.Errorf("explain %s: no such field: the fields are %s", Child(path, key), strings.Join(names, ", "))
}

func find(known []structType, goType string) (structType, bool) {
	i := slices.IndexFunc(known, func(t structType) bool { return t.name == strings.TrimPrefix(goType, "[]") })
	if i < 0 {
		return structType{}, false
	}
	return known[i], true
}

func describe(known []structType, f docField, path string) Description {
	if path == "" {
		path = Kind
	}
	d := Description{Path: path, Type: typeName(known, f.goType)}
	d.Text, d.Default = splitDefault(f.doc)
	t, _ := find(known, f.goType)
	for _, sub := range t.fields {
		text, standard := splitDefault(sub.doc)
		d.Fields = append(d.Fields, Description{Path: sub.name, Type: typeName(known, sub.goType), Text: text, Default: standard})
	}
	return d
}

// String formats the description for people.
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

// splitDefault separates the sentence that begins with "Default" from a text.
func splitDefault(doc string) (text, standard string) {
	text, standard, ok := strings.Cut(" "+doc, " Default")
	if !ok {
		return doc, ""
	}
	return strings.TrimSpace(text), strings.TrimSuffix(strings.TrimLeft(standard, ": "), ".")
}

func typeName(known []structType, goType string) string {
	switch goType {
	case "string":
		return "text"
	case "int":
		return "whole number"
	case "bool":
		return "true or false"
	case "netip.Prefix":
		return "address range"
	case "netip.Addr":
		return "address"
	case "endpoint.Endpoint":
		return "host:port"
	case "endpoint.Jump":
		return "text"
	case "fs.FileMode":
		return "octal digits"
	case "time.Duration":
		return "duration"
	case "[]string":
		return "list of text"
	case "[]endpoint.Host":
		return "list of names and addresses"
	case "map[string]string":
		return "text by name"
	case "map[string]bool":
		return "true or false by name"
	case "map[string]any", "map[string]Values":
		return "values by name"
	case "map[string][]string":
		return "lists of text by name"
	case "map[string]map[string]string":
		return "texts by name and name"
	}
	if _, ok := find(known, goType); ok && strings.HasPrefix(goType, "[]") {
		return "list of objects"
	}
	return "object"
}
