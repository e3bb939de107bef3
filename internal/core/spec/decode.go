// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
	"github.com/slipway-project/slipway/internal/core/endpoint"
)

// decoder fills Go values from YAML nodes by the json tags of the types. It replaces yaml.v3's own decoding so that every
// problem has a position and no problem hides another.
type decoder struct {
	file      string
	problems  []Problem
	positions map[string]Position
}

// at is the decoder's current position.
type at struct {
	path    string
	node    *yaml.Node // what to point at: the key, or an element of a list
	depth   int
	literal bool // scalars keep their spelling: 1.40 stays 1.40
}

func (a at) key(key *yaml.Node) at {
	return at{path: Child(a.path, key.Value), node: key, depth: a.depth + 1, literal: a.literal}
}

func (a at) element(i int, n *yaml.Node) at {
	return at{path: Element(a.path, i), node: n, depth: a.depth + 1, literal: a.literal}
}

// problem adds p, up to a limit: a YAML bomb could cause a million.
func (d *decoder) problem(p Problem) {
	if d.full() {
		return
	}
	p.File = d.file
	if d.problems = append(d.problems, p); d.full() {
		d.problems = append(d.problems, Problem{File: d.file, Msg: "there may be more problems", Hint: "fix these first"})
	}
}

func (d *decoder) full() bool { return len(d.problems) >= maxProblems }

func (d *decoder) add(n *yaml.Node, path, hint, format string, args ...any) {
	if d.full() {
		return
	}
	d.problem(Problem{Path: path, Line: n.Line, Column: n.Column, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

func (d *decoder) wrong(a at, n *yaml.Node, want, hint string) {
	d.add(a.node, a.path, hint, "must be %s, not %s", want, kindName(n))
}

// allowed refuses the parts of YAML that a spec does not use.
func (d *decoder) allowed(n *yaml.Node, a at) bool {
	switch {
	case a.depth > maxDepth:
		d.add(a.node, clip(a.path), "", "nested more than %d deep", maxDepth)
	case len(a.path) > maxPath:
		d.add(a.node, clip(a.path), "", "the field's path is longer than %d characters", maxPath)
	case n.Kind == yaml.AliasNode:
		d.add(n, a.path, "write the value out", "alias *%s: aliases are not allowed", n.Value)
	case n.Anchor != "":
		d.add(n, a.path, "write the value out where it is needed", "anchor &%s: anchors are not allowed", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0:
		d.add(n, a.path, "use quotes for text, none for numbers", "tag %s: tags are not allowed", n.Tag)
	default:
		return true
	}
	return false
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// decode fills v, which is the zero value, from n.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, a at) {
	d.positions[a.path] = Position{Line: a.node.Line, Column: a.node.Column}
	if !d.allowed(n, a) {
		return
	}
	if v.Type() == reflect.TypeFor[Values]() {
		d.values(n, v, a)
		return
	}
	form, typed := formOf(v.Type())
	if isNull(n) {
		switch kind := v.Kind(); {
		case kind == reflect.Interface:
		case !typed && (kind == reflect.Struct || kind == reflect.Map || kind == reflect.Slice): // "labels:" with every line below it commented out
			delete(d.positions, a.path)
			return
		default:
			d.add(a.node, a.path, "set one, or remove the field", "has no value")
			return
		}
	}
	if typed {
		d.typed(n, v, a, form)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(n, v, a)
	case reflect.Map:
		d.mapping(n, v, a)
	case reflect.Slice:
		d.list(n, v, a)
	case reflect.Int:
		d.integer(n, v, a)
	case reflect.String:
		if text, ok := d.text(n, a); ok {
			v.SetString(text)
		}
	case reflect.Bool:
		d.boolean(n, v, a)
	case reflect.Interface:
		if x := d.free(n, a); x != nil {
			v.Set(reflect.ValueOf(x))
		}
	default:
		panic("spec: no rule for " + v.Type().String())
	}
}

// form is how text becomes a value of a type that is more than text.
type form struct {
	parse     func(text string) (any, error)
	msg, hint string // when it does not: "TEXT "+msg, and what to write instead
}

func parsed[T any](f func(string) (T, error)) func(string) (any, error) {
	return func(text string) (any, error) { return f(text) }
}

// formOf returns the form of the types that are written as text and are not strings.
func formOf(t reflect.Type) (form, bool) {
	switch t {
	case reflect.TypeFor[netip.Prefix]():
		return form{parsed(netip.ParsePrefix), "is not an address range", "write an address range such as 10.244.0.0/16"}, true
	case reflect.TypeFor[netip.Addr]():
		return form{parsed(netip.ParseAddr), "is not an address", "write an address such as 10.0.0.4"}, true
	case reflect.TypeFor[time.Duration]():
		return form{parsed(time.ParseDuration), "is not a duration", "write a number and a unit, such as 30s or 10m"}, true
	case reflect.TypeFor[fs.FileMode]():
		return form{parsed(parseMode), "is not a file mode", "write octal digits such as 0644, not 0000"}, true
	case reflect.TypeFor[endpoint.Host]():
		return form{parsed(func(text string) (endpoint.Host, error) { return endpoint.ParseHost(text), nil }), "", ""}, true
	case reflect.TypeFor[endpoint.Endpoint]():
		return form{parsed(endpoint.Parse), "is not host:port", "write a name or an address and a port, such as api.example.org:6443"}, true
	case reflect.TypeFor[endpoint.Jump]():
		return form{parsed(endpoint.ParseJump), "is not a jump host", "write USER@HOST:PORT, HOST:PORT, USER@HOST or HOST"}, true
	}
	return form{}, false
}

func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n == 0 || n > 0o777 || len(text) < 3 {
		return 0, fmt.Errorf("parse file mode %.20q: want octal digits from 0001 to 0777", text)
	}
	return fs.FileMode(n), nil
}

// typed decodes text that has a form.
func (d *decoder) typed(n *yaml.Node, v reflect.Value, a at, f form) {
	text, ok := d.text(n, a)
	if !ok {
		return
	}
	x, err := f.parse(text)
	if err != nil {
		d.add(a.node, a.path, f.hint, "%s %s", show(text), f.msg)
		return
	}
	v.Set(reflect.ValueOf(x))
}

// pairs calls f for each key of an object. It refuses duplicate keys and keys that are not text.
func (d *decoder) pairs(n *yaml.Node, a at, f func(key, value *yaml.Node, b at)) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content) && !d.full(); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		b := a.key(key)
		line, duplicate := seen[key.Value]
		switch {
		case key.Kind == yaml.ScalarNode && key.Tag == "!!merge":
			d.add(key, a.path, "write the values out", "merge key <<: merges are not allowed")
		case !d.allowed(key, at{path: a.path, node: key}):
		case key.Kind != yaml.ScalarNode:
			d.add(key, a.path, "write text before the colon", "a key is %s, not text", kindName(key))
		case key.Tag != "!!str" && key.Tag != "!!timestamp":
			d.add(key, a.path, "put the key in quotes", "key %s is %s, not text", show(key.Value), kindName(key))
		case duplicate:
			d.add(key, b.path, "remove one", "is given twice, first in line %d", line)
		default:
			seen[key.Value] = key.Line
			f(key, value, b)
		}
	}
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, a at) {
	if n.Kind != yaml.MappingNode {
		d.wrong(a, n, "an object", "its fields: "+strings.Join(fieldNames(v.Type()), ", "))
		return
	}
	d.pairs(n, a, func(key, value *yaml.Node, b at) {
		f, ok := fieldOf(v.Type(), key.Value)
		if !ok {
			d.add(key, b.path, hintField(v.Type(), key.Value), "unknown field")
			return
		}
		b.literal = f.Tag.Get("scalar") == "literal"
		d.decode(value, v.FieldByIndex(f.Index), b)
	})
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, a at) {
	if n.Kind != yaml.MappingNode {
		d.wrong(a, n, "an object", "write name: value, one per line")
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, a, func(key, value *yaml.Node, b at) {
		e := reflect.New(v.Type().Elem()).Elem()
		d.decode(value, e, b)
		v.SetMapIndex(reflect.ValueOf(key.Value), e)
	})
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, a at) {
	if n.Kind != yaml.SequenceNode {
		hint := "start each element with a dash"
		if n.Kind == yaml.ScalarNode {
			hint = "write [" + clip(n.Value) + "]"
		}
		d.wrong(a, n, "a list", hint)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, e := range n.Content {
		d.decode(e, v.Index(i), a.element(i, e))
	}
}

// values decodes a scalar, a list of scalars, or null.
func (d *decoder) values(n *yaml.Node, v reflect.Value, a at) {
	switch {
	case isNull(n):
	case n.Kind == yaml.MappingNode:
		d.wrong(a, n, "text, a number, true, false, a list or null", "")
	case n.Kind == yaml.ScalarNode:
		if !d.ambiguous(n, a) {
			v.Set(reflect.ValueOf(Values{n.Value}))
		}
	default:
		out := Values{}
		for i, e := range n.Content {
			b := a.element(i, e)
			d.positions[b.path] = Position{Line: e.Line, Column: e.Column}
			switch {
			case !d.allowed(e, b):
			case e.Kind != yaml.ScalarNode || isNull(e):
				d.wrong(b, e, "text, a number, true or false", "")
			case !d.ambiguous(e, b):
				out = append(out, e.Value)
			}
		}
		v.Set(reflect.ValueOf(out))
	}
}

func (d *decoder) integer(n *yaml.Node, v reflect.Value, a at) {
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || strconv.Itoa(i) != n.Value || n.Tag != "!!int" {
		hint := "write decimal digits"
		if err == nil && n.Tag == "!!str" {
			hint = "remove the quotes"
		}
		d.wrong(a, n, "a whole number", hint)
		return
	}
	v.SetInt(int64(i))
}

func (d *decoder) boolean(n *yaml.Node, v reflect.Value, a at) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return
	}
	hint := "write true or false"
	if b, ok := oldBoolean(n); ok {
		hint = "write " + b
	} else if n.Kind == yaml.ScalarNode && (n.Value == "true" || n.Value == "false") {
		hint = "remove the quotes"
	}
	d.wrong(a, n, "true or false", hint)
}

func (d *decoder) text(n *yaml.Node, a at) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.wrong(a, n, "text", "")
	case a.literal && d.ambiguous(n, a):
	case n.Tag == "!!str", n.Tag == "!!timestamp", a.literal:
		return n.Value, true
	default:
		d.wrong(a, n, "text", "put it in quotes: "+strconv.Quote(clip(n.Value)))
	}
	return "", false
}

// free decodes a value of any shape: nil, bool, int64, float64, string, []any or map[string]any. Whole floats become
// int64, because JSON does not distinguish them.
func (d *decoder) free(n *yaml.Node, a at) any {
	below := func(n *yaml.Node, b at) any {
		d.positions[b.path] = Position{Line: b.node.Line, Column: b.node.Column}
		if !d.allowed(n, b) {
			return nil
		}
		return d.free(n, b)
	}
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		d.pairs(n, a, func(key, value *yaml.Node, b at) { out[key.Value] = below(value, b) })
		return out
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for i, e := range n.Content {
			out = append(out, below(e, a.element(i, e)))
		}
		return out
	}
	if isNull(n) || d.ambiguous(n, a) {
		return nil
	}
	switch n.Tag {
	case "!!bool":
		return strings.EqualFold(n.Value, "true")
	case "!!int":
		if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil && strconv.FormatInt(i, 10) == n.Value {
			return i
		}
		d.add(a.node, a.path, "write a decimal number, or put it in quotes", "%s is not a plain decimal number", show(n.Value))
		return nil
	case "!!float":
		f, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.add(a.node, a.path, "put it in quotes", "%s is not a JSON number", show(n.Value))
			return nil
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return int64(f)
		}
		return f
	default:
		return n.Value
	}
}

// ambiguous refuses words that are booleans in YAML 1.1 and text in YAML 1.2, where the type does not tell which is meant.
func (d *decoder) ambiguous(n *yaml.Node, a at) bool {
	b, ok := oldBoolean(n)
	if ok {
		d.add(a.node, a.path, "write "+b+", or "+strconv.Quote(n.Value)+" in quotes", "unquoted %s is a boolean in YAML 1.1 and text in YAML 1.2", n.Value)
	}
	return ok
}

// oldBoolean recognises yes, no, on and off, which are booleans in YAML 1.1.
func oldBoolean(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Style != 0 {
		return "", false
	}
	switch strings.ToLower(n.Value) {
	case "yes", "on", "y":
		return "true", true
	case "no", "off", "n":
		return "false", true
	}
	return "", false
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.Tag {
	case "!!null":
		return "null"
	case "!!bool":
		return "the boolean " + clip(n.Value)
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	default:
		return "the text " + show(n.Value)
	}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func fieldOf(t reflect.Type, name string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); jsonName(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// fieldNames lists the fields of an object in the order of the type.
func fieldNames(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		out = append(out, jsonName(t.Field(i)))
	}
	return out
}

// hintField helps with an unknown field: a similar name, or the object that has such a field, or the fields that exist.
func hintField(t reflect.Type, name string) string {
	if near := Nearest(name, fieldNames(t)); near != "" {
		return "did you mean " + show(near) + "?"
	}
	if objects := objectsWith(reflect.TypeFor[Document](), "", name); len(objects) > 0 {
		return "it belongs to " + strings.Join(objects, " or ")
	}
	return "the fields are " + strings.Join(fieldNames(t), ", ")
}

// objectsWith lists the paths of all objects that have a field of this name. The components count once, as COMPONENT.
func objectsWith(t reflect.Type, path, name string) []string {
	if t.Kind() == reflect.Slice {
		return objectsWith(t.Elem(), path, name)
	}
	if _, typed := formOf(t); typed || t.Kind() != reflect.Struct {
		return nil
	}
	var out []string
	if _, ok := fieldOf(t, name); ok && path != "" {
		out = append(out, path)
	}
	for i := range t.NumField() {
		f := t.Field(i)
		at := Child(path, jsonName(f))
		if f.Type == reflect.TypeFor[v1alpha1.Component]() {
			at = path + ".COMPONENT"
		}
		for _, object := range objectsWith(f.Type, at, name) {
			if !slices.Contains(out, object) {
				out = append(out, object)
			}
		}
	}
	return out
}
