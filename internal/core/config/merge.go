// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// override merges what the user wrote over the defaults. A value equal to what is there already changes nothing, not even
// the origin: that is what makes a completed spec complete to itself.
func (c *Component) override(o spec.Component, at string, s spec.Cluster) {
	for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
		values := o.Flags[name]
		old, had := c.Flags[name]
		if !had && values == nil || had && slices.Equal(old.Values, values) {
			continue
		}
		where := Origin{From: User, Note: s.Where(spec.Child(at+".flags", name))}
		c.Flags[name] = Flag{Values: values, Origin: where}
	}
	if o.Config != nil && c.Config != nil {
		p := patcher{c: c, said: func(path string) Origin {
			return Origin{From: User, Note: s.Where(at + ".config." + path)}
		}}
		p.patch(c.Config, o.Config, "")
	}
	for _, name := range slices.Sorted(maps.Keys(o.Env)) {
		if v, had := c.Env[name]; !had || v != o.Env[name] {
			c.setEnv(name, o.Env[name], Origin{From: User, Note: s.Where(spec.Child(at+".env", name))})
		}
	}
}

// patcher applies a JSON merge patch (RFC 7386) and keeps the origins of leaves true. A removed field keeps an origin
// although it has no value, so that it can be printed as null.
type patcher struct {
	c    *Component
	said func(path string) Origin
}

func (p patcher) patch(target, patch map[string]any, path string) {
	for _, k := range slices.Sorted(maps.Keys(patch)) {
		at := spec.Child(path, k)
		old, had := target[k]
		switch v := patch[k].(type) {
		case nil:
			if had {
				delete(target, k)
				p.mark(at, old)
			}
		case map[string]any:
			p.patchObject(target, k, v, at)
		default:
			if !had || !reflect.DeepEqual(old, v) {
				target[k] = clone(v, verbatim)
				p.mark(at, old)
			}
		}
	}
}

func (p patcher) patchObject(target map[string]any, k string, patch map[string]any, at string) {
	child, ok := target[k].(map[string]any)
	if !ok {
		child = map[string]any{}
		p.mark(at, nil) // until it has leaves of its own
		target[k] = child
	}
	p.patch(child, patch, at)
	if len(child) > 0 {
		delete(p.c.Origins, at)
	}
}

// mark makes the user the origin of at and forgets what was below it, if old had anything below.
func (p patcher) mark(at string, old any) {
	if _, ok := old.(map[string]any); ok {
		maps.DeleteFunc(p.c.Origins, func(path string, _ Origin) bool {
			return strings.HasPrefix(path, at+".") || strings.HasPrefix(path, at+"[")
		})
	}
	p.c.Origins[at] = p.said(at)
}

func verbatim(s string) string { return s }
