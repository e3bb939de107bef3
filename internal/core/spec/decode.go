// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder fills Go values from YAML nodes by the json tags of the types. It has its own rules instead of yaml.v3's decoder
// so that every problem has a place and none is passed over.
type decoder struct {
	file     string
	problems []Problem
	places   map[string]Place
}

// at is where the decoder stands.
type at struct {
	path    string
	node    *yaml.Node // what to point at: the key, or an element of a list
	depth   int
	literal bool // scalars are taken as they are written: 1.40 stays 1.40
}

func (a at) key(key *yaml.Node) at {
	return at{path: Child(a.path, key.Value), node: key, depth: a.depth + 1, literal: a.literal}
}

func (a at) element(i int, n *yaml.Node) at {
	return at{path: Element(a.path, i), node: n, depth: a.depth + 1, literal: a.literal}
}

// problem keeps p. Nobody reads a thousand, and a bomb could make a million.
func (d *decoder) problem(p Problem) {
	if d.full() {
		return
	}
	p.File = d.file
	if d.problems = append(d.problems, p); d.full() {
		d.problems = append(d.problems, Problem{File: d.file, Msg: "there may be more problems", Hint: "mend the first thousand"})
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

// allowed refuses the parts of YAML that a spec has no use for.
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

func (d *decoder) decode(n *yaml.Node, v reflect.Value, a at) {
	d.places[a.path] = Place{Line: a.node.Line, Column: a.node.Column}
	if !d.allowed(n, a) {
		return
	}
	isNull := n.Kind == yaml.ScalarNode && n.Tag == "!!null"
	switch v.Kind() {
	case reflect.Struct, reflect.Map, reflect.Slice:
		if isNull { // "labels:" with every line below it commented out
			delete(d.places, a.path)
			return
		}
	case reflect.String, reflect.Bool, reflect.Pointer:
		if isNull {
			d.add(a.node, a.path, "give it one, or leave the field away", "has no value")
			return
		}
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(n, v, a)
	case reflect.Map:
		d.mapping(n, v, a)
	case reflect.Slice:
		d.list(n, v, a)
	case reflect.Pointer: // *int is the only one
		d.integer(n, v, a)
	case reflect.String:
		d.text(n, v, a)
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

// pairs calls f for each key of an object, duplicates and odd keys refused.
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
		d.wrong(a, n, "an object", "its fields: "+strings.Join(names(v.Type()), ", "))
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

func (d *decoder) integer(n *yaml.Node, v reflect.Value, a at) {
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || strconv.Itoa(i) != n.Value || n.Tag != "!!int" {
		hint := "write decimal digits"
		if err == nil && n.Tag == "!!str" {
			hint = "leave the quotes away"
		}
		d.wrong(a, n, "a whole number", hint)
		return
	}
	v.Set(reflect.New(v.Type().Elem()))
	v.Elem().SetInt(int64(i))
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
		hint = "leave the quotes away"
	}
	d.wrong(a, n, "true or false", hint)
}

func (d *decoder) text(n *yaml.Node, v reflect.Value, a at) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.wrong(a, n, "text", "")
	case a.literal && d.ambiguous(n, a):
	case n.Tag == "!!str", n.Tag == "!!timestamp", a.literal:
		v.SetString(n.Value)
	default:
		d.wrong(a, n, "text", "put it in quotes: "+strconv.Quote(clip(n.Value)))
	}
}
