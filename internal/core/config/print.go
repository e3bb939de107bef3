// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Print writes the configuration as a spec that leaves nothing to defaults, with the origin of each value as a comment.
// Parsing and completing the result for the same release prints the same bytes.
func Print(c Cluster) []byte {
	root, _ := tree(c)
	head := "# Complete for Kubernetes " + c.Release + ". The comments are the origins of the values: default, derived from another value, or user.\n"
	return append([]byte(head), encode(root)...)
}

// value is a value of the spec that has an origin.
type value struct {
	path   string
	node   *yaml.Node
	origin Origin
}

// tree returns the configuration as YAML, and its values that have an origin, in the order of the spec.
func tree(c Cluster) (*yaml.Node, []value) {
	doc := spec.Document{
		APIVersion: spec.APIVersion, Kind: spec.Kind, Metadata: spec.Metadata{Name: c.Name},
		Spec: spec.Spec{
			KubernetesVersion: c.Minor, Networking: c.Networking, ControlPlane: c.ControlPlane, FeatureGates: c.FeatureGates, Components: c.Components,
			AddOns: c.AddOns, OS: c.OS, Hooks: c.Hooks, StaticPods: c.StaticPods, FileAssets: c.FileAssets,
		},
	}
	for _, p := range c.Pools {
		doc.Spec.Pools = append(doc.Spec.Pools, p.Pool)
	}
	for _, u := range c.Units {
		doc.Spec.Units = append(doc.Spec.Units, placement.Escaped(u))
	}
	p := printer{origins: c.Origins}
	return p.node("", reflect.ValueOf(doc)), p.values
}

// PrintUnits writes a spec that has nothing but units.
func PrintUnits(cluster string, units []spec.Unit) []byte {
	doc := spec.Document{APIVersion: spec.APIVersion, Kind: spec.Kind, Metadata: spec.Metadata{Name: cluster}}
	for _, u := range slices.SortedFunc(slices.Values(units), func(a, b spec.Unit) int { return strings.Compare(a.Name, b.Name) }) {
		doc.Spec.Units = append(doc.Spec.Units, placement.Escaped(u))
	}
	p := printer{}
	return encode(p.node("", reflect.ValueOf(doc)))
}

func encode(root *yaml.Node) []byte {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(root), enc.Close()); err != nil {
		panic("config: " + err.Error()) // plain nodes always encode
	}
	return b.Bytes()
}

type printer struct {
	origins map[string]Origin
	values  []value
}

// node returns v as YAML. Fields of structs are printed if they are not zero or have an origin.
func (p *printer) node(path string, v reflect.Value) *yaml.Node {
	switch x := v.Interface().(type) {
	case nil:
		return scalar("!!null", "null")
	case string:
		return text(x)
	case fs.FileMode:
		return text(fmt.Sprintf("%04o", uint32(x)))
	case fmt.Stringer:
		return text(x.String())
	case bool:
		return scalar("!!bool", strconv.FormatBool(x))
	case int:
		return scalar("!!int", strconv.Itoa(x))
	case int64:
		return scalar("!!int", strconv.FormatInt(x, 10))
	case float64:
		return scalar("!!float", strconv.FormatFloat(x, 'g', -1, 64))
	case spec.Values:
		switch len(x) {
		case 0:
			return scalar("!!null", "null")
		case 1:
			return text(x[0])
		}
	}
	switch v.Kind() {
	case reflect.Interface:
		return p.node(path, v.Elem())
	case reflect.Slice:
		out := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i := range v.Len() {
			child := p.node(spec.Element(path, i), v.Index(i))
			out.Content = append(out.Content, child)
			isObject := child.Kind == yaml.MappingNode && v.Type().Elem().Kind() == reflect.Struct
			if isObject || v.Type().Elem().Kind() == reflect.String && child.Style == yaml.LiteralStyle {
				out.Style = 0
			}
		}
		return out
	case reflect.Struct:
		out := &yaml.Node{Kind: yaml.MappingNode}
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			f, at := v.Field(i), spec.Child(path, name)
			_, hasOrigin := p.origins[at]
			isEmpty := f.IsZero() || (f.Kind() == reflect.Map || f.Kind() == reflect.Slice) && f.Len() == 0
			if isEmpty && !hasOrigin {
				continue
			}
			p.add(out, at, name, f)
		}
		if len(out.Content) == 0 {
			out.Style = yaml.FlowStyle
		}
		return out
	case reflect.Map:
		out := &yaml.Node{Kind: yaml.MappingNode}
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			p.add(out, spec.Child(path, k.String()), k.String(), v.MapIndex(k))
		}
		if len(out.Content) == 0 {
			out.Style = yaml.FlowStyle
		}
		return out
	default:
		panic("config: no YAML for " + v.Type().String())
	}
}

// add appends a field to an object, with its origin as a comment.
func (p *printer) add(object *yaml.Node, path, name string, v reflect.Value) {
	origin, ok := p.origins[path]
	at := len(p.values)
	if ok {
		p.values = append(p.values, value{path: path, origin: origin})
	}
	key, n := text(name), p.node(path, v)
	object.Content = append(object.Content, key, n)
	if !ok {
		return
	}
	p.values[at].node = n
	comment := "# " + string(origin.From)
	if origin.From != User && origin.Note != "" { // the user's line is left out: the text must not change when lines move
		comment += ": " + origin.Note
	}
	if n.Kind != yaml.ScalarNode && n.Style&yaml.FlowStyle == 0 {
		key.LineComment = comment
	} else {
		n.LineComment = comment
	}
}

func scalar(tag, text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text}
}

// text returns a text as YAML. The encoder quotes what YAML 1.2 takes for something else.
func text(s string) *yaml.Node {
	n := scalar("!!str", s)
	switch strings.ToLower(s) {
	case "yes", "no", "on", "off", "y", "n", "=", "<<": // not text in YAML 1.1
		n.Style = yaml.DoubleQuotedStyle
	}
	if strings.Contains(s, "\n") {
		n.Style = yaml.DoubleQuotedStyle
		if isBlock(s) {
			n.Style = yaml.LiteralStyle
		}
	}
	return n
}

// isBlock reports whether a literal block keeps a text of several lines byte by byte.
func isBlock(s string) bool {
	body := strings.TrimSuffix(s, "\n")
	for _, line := range strings.Split(body, "\n") {
		if line != "" && strings.TrimSpace(line) == "" {
			return false
		}
	}
	return body != "" && !strings.ContainsAny(body[:1], " \t\n") && !strings.HasSuffix(body, "\n") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && r != '\t' && !strconv.IsPrint(r) })
}

// Answer is a value and its origin.
type Answer struct {
	Path   string // the field's path in the spec
	Value  string // as [Print] writes it; "null" for what the user removed
	Origin Origin
}

// String is "spec.components.apiserver.flags.audit-log-path: null (user, cluster.yaml:41)".
func (a Answer) String() string {
	value := a.Value
	if strings.Contains(value, "\n") {
		value = "\n" + strings.TrimSuffix(value, "\n") + "\n"
	}
	note := ""
	if a.Origin.Note != "" {
		note = ": " + a.Origin.Note
		if a.Origin.From == User {
			note = ", " + a.Origin.Note
		}
	}
	return fmt.Sprintf("%s: %s (%s%s)", a.Path, value, a.Origin.From, note)
}

// Why returns a value and its origin. The path may omit "spec." and "components.": apiserver.flags.secure-port.
func Why(c Cluster, path string) (Answer, error) {
	_, all := tree(c)
	asked := dotted(path)
	var below []string
	for _, above := range []string{"", "spec.", "spec.components."} {
		for _, v := range all {
			known := dotted(v.path)
			if known == above+asked {
				return Answer{Path: v.path, Value: plain(v.node), Origin: v.origin}, nil
			}
			if strings.HasPrefix(known, above+asked+".") {
				below = append(below, v.path)
			}
		}
	}
	if len(below) > 0 {
		const most = 8
		if len(below) > most {
			below = append(below[:most], "…")
		}
		return Answer{}, fmt.Errorf("explain %s: it holds several values: ask for one of %s", path, strings.Join(below, ", "))
	}
	return Answer{}, notFound(path, all)
}

// plain returns a value as text, without comments.
func plain(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "\n") {
		return n.Value
	}
	var strip func(n *yaml.Node) *yaml.Node
	strip = func(n *yaml.Node) *yaml.Node {
		out := *n
		out.LineComment, out.Content = "", nil
		for _, child := range n.Content {
			out.Content = append(out.Content, strip(child))
		}
		return &out
	}
	out, err := yaml.Marshal(strip(n))
	if err != nil {
		panic("config: " + err.Error()) // plain nodes always encode
	}
	return strings.TrimSuffix(string(out), "\n")
}

// notFound suggests a similar name in the same object, or a similar object. A flag that is not set has an answer of its own.
func notFound(path string, all []value) error {
	asked := shorten(path)
	object, name := cutLast(asked)
	var names, objects []string
	for _, v := range all {
		o, n := cutLast(shorten(v.path))
		if o == object {
			names = append(names, n)
		}
		objects = append(objects, o)
	}
	if near := spec.Nearest(name, names); near != "" {
		return fmt.Errorf("explain %s: not set: did you mean %q?", path, object+"."+near)
	}
	if near := spec.Nearest(object, slices.Compact(objects)); near != "" && near != object {
		return fmt.Errorf("explain %s: no such value: did you mean %q?", path, near)
	}
	for _, x := range components(&spec.Components{}) {
		if name, ok := strings.CutPrefix(asked, x.name+".flags."); ok {
			return fmt.Errorf("explain %s: not set: %s uses its own default; set spec.components.%s.flags.%s to change it", path, x.name, x.name, name)
		}
	}
	return fmt.Errorf("explain %s: no such value: ask for one such as apiserver.flags.secure-port", path)
}

// dotted returns a path without brackets and quotes, so that users need none.
func dotted(path string) string { return strings.Join(spec.Split(path), ".") }

func shorten(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(dotted(path), "spec."), "components.")
}

func cutLast(path string) (object, name string) {
	i := max(strings.LastIndexByte(path, '.'), 0)
	return path[:i], strings.TrimPrefix(path[i:], ".")
}
