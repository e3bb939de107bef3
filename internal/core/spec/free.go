// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// free decodes a value of any shape: nil, bool, int64, float64, string, []any or map[string]any. Whole floats become int64,
// as JSON does not tell them apart. Literal scalars stay text.
func (d *decoder) free(n *yaml.Node, a at) any {
	switch n.Kind {
	case yaml.MappingNode:
		if a.literal {
			d.wrong(a, n, "text, a number, true, false, a list or null", "")
			return nil
		}
		out := make(map[string]any, len(n.Content)/2)
		d.pairs(n, a, func(key, value *yaml.Node, b at) { out[key.Value] = d.freeAt(value, b) })
		return out
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for i, e := range n.Content {
			out = append(out, d.freeAt(e, a.element(i, e)))
		}
		return out
	default:
		return d.scalar(n, a)
	}
}

func (d *decoder) freeAt(n *yaml.Node, a at) any {
	d.places[a.path] = Place{Line: a.node.Line, Column: a.node.Column}
	if !d.allowed(n, a) {
		return nil
	}
	return d.free(n, a)
}

func (d *decoder) scalar(n *yaml.Node, a at) any {
	switch {
	case n.Tag == "!!null":
		return nil
	case d.ambiguous(n, a):
		return nil
	case a.literal:
		return n.Value
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
			d.add(a.node, a.path, "put it in quotes", "%s is not a number that JSON has", show(n.Value))
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

// ambiguous refuses words that are booleans to YAML 1.1 and text to YAML 1.2, where the type does not tell which is meant.
func (d *decoder) ambiguous(n *yaml.Node, a at) bool {
	b, ok := oldBoolean(n)
	if ok {
		d.add(a.node, a.path, "write "+b+", or "+strconv.Quote(n.Value)+" in quotes", "unquoted %s is a boolean to some and text to others", n.Value)
	}
	return ok
}

// oldBoolean: yes, no, on and off were booleans in YAML 1.1.
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
		return "nothing"
	case "!!bool":
		return "the boolean " + clip(n.Value)
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	default:
		return "the text " + show(n.Value)
	}
}

// show quotes a value for a message, shortened.
func show(s string) string { return strconv.Quote(clip(s)) }

func clip(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
