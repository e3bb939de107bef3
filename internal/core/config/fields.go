// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// fields checks what a user has written for a configuration file: its names, and the kinds of plain values.
func (k *knower) fields(o override) {
	if known := k.release.Fields(o.program); known != nil {
		k.object(o, known, "", "spec.components."+o.name+".config", o.Config)
	}
}

func (k *knower) object(o override, known map[string]catalog.FieldKind, prefix, at string, in map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		here, full := spec.Child(at, name), prefix+name
		kind, ok := known[full]
		switch {
		case k.full():
			return
		case !ok:
			k.say(here, didYouMean(name, siblings(known, prefix)), "the configuration of %s has no such field", o.program)
		case in[name] == nil: // takes the field away
		case kind == catalog.ObjectField:
			sub, isObject := in[name].(map[string]any)
			if !isObject {
				k.say(here, "", "must be an object")
				continue
			}
			k.object(o, known, full+".", here, sub)
		default:
			k.value(here, full, kind, in[name])
		}
	}
}

func siblings(known map[string]catalog.FieldKind, prefix string) []string {
	var names []string
	for path := range known {
		if name, ok := strings.CutPrefix(path, prefix); ok && !strings.Contains(name, ".") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (k *knower) value(at, path string, kind catalog.FieldKind, v any) {
	switch kind {
	case catalog.BoolField:
		if _, ok := v.(bool); !ok {
			k.say(at, "", "must be true or false")
		}
	case catalog.TextField:
		if _, ok := v.(string); !ok {
			k.say(at, "put it in quotes", "must be text")
		}
	case catalog.DurationField:
		s, ok := v.(string)
		if _, err := time.ParseDuration(s); !ok || err != nil {
			k.say(at, "write number and unit, such as 90s or 1m30s", "is no length of time")
		}
	case catalog.IntField:
		n, ok := whole(v)
		switch {
		case !ok:
			k.say(at, "write decimal digits", "must be a whole number")
		case path == "maxPods" && n < 0:
			k.say(at, "", "must not be negative")
		}
	case catalog.AnyField, catalog.ObjectField:
	}
}

func whole(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}
