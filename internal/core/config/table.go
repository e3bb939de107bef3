// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// defaults is what a component has before the user's overrides: one table per kind of setting.
type defaults struct {
	flags  []setting
	config []field // nil: the component has no configuration file
	env    []setting
}

// setting is one row of a table: a flag or a variable.
type setting struct {
	name, value string
	origin      Origin
}

// field is one leaf of a configuration file.
type field struct {
	path   string
	value  any // string, bool, int, []any, map[string]any
	origin Origin
}

// std is a default; the note tells why, where there is more to say than "it always was".
func std(note string) Origin { return Origin{From: Default, Note: note} }

// from is a value computed from others.
func from(what string) Origin { return Origin{From: Derived, Note: what} }

// component lays the tables out and merges the user's overrides over them, last.
func (d defaults) component(o spec.Component, at string, s spec.Cluster) Component {
	c := Component{Flags: make(map[string]Flag, len(d.flags)), Env: map[string]string{}, Origins: map[string]Origin{}}
	for _, f := range d.flags {
		c.Flags[f.name] = Flag{Values: []string{f.value}, Origin: f.origin}
	}
	for _, e := range d.env {
		c.setEnv(e.name, e.value, e.origin)
	}
	if d.config != nil {
		c.Config = map[string]any{}
		for _, f := range d.config {
			put(c.Config, spec.Split(f.path), normal(f.value))
			c.Origins[f.path] = f.origin
		}
	}
	c.override(o, "spec.components."+at, s)
	return c
}

func (c *Component) setEnv(name, value string, o Origin) {
	c.Env[name] = value
	c.Origins[envPath(name)] = o
}

func envPath(name string) string { return spec.Child("env", name) }

func put(tree map[string]any, keys []string, value any) {
	for _, k := range keys[:len(keys)-1] {
		child, ok := tree[k].(map[string]any)
		if !ok {
			child = map[string]any{}
			tree[k] = child
		}
		tree = child
	}
	tree[keys[len(keys)-1]] = value
}

// normal gives values the types that the decoder of package spec gives, so that they can be compared.
func normal(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []string:
		out := make([]any, 0, len(v))
		for _, s := range v {
			out = append(out, s)
		}
		return out
	case map[string]bool:
		out := make(map[string]any, len(v))
		for k, b := range v {
			out[k] = b
		}
		return out
	default:
		return v
	}
}

// clone copies a configuration tree, with every text passed through text.
func clone(v any, text func(string) string) any {
	switch v := v.(type) {
	case string:
		return text(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = clone(v[i], text)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = clone(v[k], text)
		}
		return out
	default:
		return v
	}
}

func (c Component) clone(text func(string) string) Component {
	out := Component{Flags: make(map[string]Flag, len(c.Flags)), Env: make(map[string]string, len(c.Env)), Origins: maps.Clone(c.Origins)}
	for name, f := range c.Flags {
		values := make([]string, len(f.Values))
		for i, v := range f.Values {
			values[i] = text(v)
		}
		out.Flags[name] = Flag{Values: values, Origin: f.Origin}
	}
	for name, v := range c.Env {
		out.Env[name] = text(v)
	}
	if c.Config != nil {
		out.Config, _ = clone(c.Config, text).(map[string]any)
	}
	return out
}

// smallHeap is for components whose heap is mostly garbage of their start and who are not what a start waits for.
func smallHeap() []setting {
	return []setting{{"GOGC", "50", std("a smaller heap for a little more CPU")}}
}
