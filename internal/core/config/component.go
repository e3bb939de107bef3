// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

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
	value  any // string, bool, int, []string
	origin Origin
}

// std is the origin of a default. The note is the reason where there is one to give.
func std(note string) Origin { return Origin{From: Default, Note: note} }

// from is the origin of a value computed from others.
func from(what string) Origin { return Origin{From: Derived, Note: what} }

// component returns a component with its defaults and the user's overrides. name is its name in the spec.
func (m *maker) component(name string, d defaults, o spec.Component) spec.Component {
	at := "spec.components." + name
	c := spec.Component{Flags: make(map[string]spec.Values, len(d.flags)), Env: map[string]string{}}
	for _, f := range d.flags {
		c.Flags[f.name] = spec.Values{f.value}
		m.out.Origins[spec.Child(at+".flags", f.name)] = f.origin
	}
	for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
		values := o.Flags[name]
		old, had := c.Flags[name]
		if !had && values == nil || had && slices.Equal(old, values) {
			continue
		}
		c.Flags[name] = values
		m.user(spec.Child(at+".flags", name))
	}
	for _, e := range d.env {
		c.Env[e.name] = e.value
		m.out.Origins[spec.Child(at+".env", e.name)] = e.origin
	}
	for _, name := range slices.Sorted(maps.Keys(o.Env)) {
		if v, had := c.Env[name]; !had || v != o.Env[name] {
			c.Env[name] = o.Env[name]
			m.user(spec.Child(at+".env", name))
		}
	}
	if d.config == nil {
		return c
	}
	c.Config = map[string]any{}
	for _, f := range d.config {
		put(c.Config, spec.Split(f.path), normal(f.value))
		path := at + ".config"
		for _, key := range spec.Split(f.path) {
			path = spec.Child(path, key)
		}
		m.out.Origins[path] = f.origin
	}
	m.patch(c.Config, o.Config, at+".config")
	return c
}

// patch applies a JSON merge patch (RFC 7386) and records the user as the origin of what it changes. A removed field stays
// as nil, so that it is printed as null; [ForNode] drops it. A value equal to the default changes nothing, not even the
// origin.
func (m *maker) patch(target, patch map[string]any, path string) {
	for _, k := range slices.Sorted(maps.Keys(patch)) {
		at := spec.Child(path, k)
		old, had := target[k]
		switch v := patch[k].(type) {
		case nil:
			if had {
				target[k] = nil
				m.replaced(at, old)
			}
		case map[string]any:
			child, ok := old.(map[string]any)
			if !ok {
				child = map[string]any{}
				m.replaced(at, old) // until it has leaves of its own
				target[k] = child
			}
			m.patch(child, v, at)
			if len(child) > 0 {
				delete(m.out.Origins, at)
			}
		default:
			if !had || !reflect.DeepEqual(old, v) {
				target[k] = clone(v, func(s string) string { return s })
				m.replaced(at, old)
			}
		}
	}
}

// replaced makes the user the origin of at, and forgets the origins below it if there was an object.
func (m *maker) replaced(at string, old any) {
	if _, ok := old.(map[string]any); ok {
		maps.DeleteFunc(m.out.Origins, func(path string, _ Origin) bool {
			return strings.HasPrefix(path, at+".") || strings.HasPrefix(path, at+"[")
		})
	}
	m.user(at)
}

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

// normal gives a table's values the types that package spec decodes, so that they can be compared.
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
	default:
		return v
	}
}

// clone copies a configuration tree and passes every text through text.
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

// dropRemoved deletes the fields that the user removed.
func dropRemoved(tree map[string]any) {
	for k, v := range tree {
		if v == nil {
			delete(tree, k)
		} else if child, ok := v.(map[string]any); ok {
			dropRemoved(child)
		}
	}
}

// cloneComponent copies a component, passes every text through text, and drops what the user removed.
func cloneComponent(c spec.Component, text func(string) string) spec.Component {
	out := spec.Component{Flags: make(map[string]spec.Values, len(c.Flags)), Env: make(map[string]string, len(c.Env))}
	for name, values := range c.Flags {
		for _, v := range values {
			out.Flags[name] = append(out.Flags[name], text(v))
		}
	}
	for name, v := range c.Env {
		out.Env[name] = text(v)
	}
	if c.Config != nil {
		out.Config, _ = clone(c.Config, text).(map[string]any)
		dropRemoved(out.Config)
	}
	return out
}
