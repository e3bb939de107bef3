// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Shape is how many machines a cluster has, for users who write no spec. Nil leaves a number as it is.
type Shape struct {
	ControlPlanes, Workers *int
}

// IsZero reports whether the shape changes nothing.
func (s Shape) IsZero() bool { return s.ControlPlanes == nil && s.Workers == nil }

// unchanged is the number of machines that a shape leaves as it is.
const unchanged = -1

// WithShape returns a spec with the shape's counts: a new spec of this name if stored is nil, otherwise the stored spec with
// other counts and everything else as the user wrote it, with comments. A stored spec that has these counts already is
// returned byte for byte.
func WithShape(stored []byte, name string, shape Shape) ([]byte, error) {
	controlPlanes, workers := unchanged, unchanged
	if shape.ControlPlanes != nil {
		controlPlanes = *shape.ControlPlanes
		switch {
		case controlPlanes < 1:
			return nil, fmt.Errorf("%d control planes: a cluster has 1, 3 or 5", controlPlanes)
		case controlPlanes%2 == 0:
			return nil, fmt.Errorf("%d control planes: etcd decides by majority, so they tolerate no more failures than %d: choose 1, 3 or 5",
				controlPlanes, controlPlanes-1)
		}
	}
	if shape.Workers != nil {
		if workers = *shape.Workers; workers < 0 {
			return nil, fmt.Errorf("%d workers: choose 0 or more", workers)
		}
	}
	fresh := stored == nil
	if fresh {
		stored = fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", APIVersion, Kind, name)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(stored, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.Join(errors.New("change the counts of the stored spec: not a YAML object; pass a spec with --file"), err)
	}
	s := shaper{fresh: fresh}
	s.pools(doc.Content[0], controlPlanes, workers)
	if s.err != nil {
		return nil, fmt.Errorf("change the counts of the stored spec: %w; edit the spec and pass it with --file", s.err)
	}
	if !s.changed {
		return stored, nil
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&doc), enc.Close()); err != nil {
		return nil, fmt.Errorf("change the counts of the stored spec: %w", err)
	}
	return out.Bytes(), nil
}

// shaper edits the tree of a spec. It stops at the first error.
type shaper struct {
	fresh, changed bool
	err            error
}

func (s *shaper) refuse(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *shaper) pools(root *yaml.Node, controlPlanes, workers int) {
	pools := s.child(s.child(root, "spec", yaml.MappingNode), "pools", yaml.SequenceNode)
	if s.err != nil {
		return
	}
	if len(pools.Content) == 0 {
		roles := []string{RoleControlPlane, RoleWorker}
		if s.fresh && workers > 0 {
			roles = []string{RoleControlPlane}
		}
		s.add(pools, DefaultPool, roles, max(controlPlanes, 1))
	} else if controlPlanes != unchanged {
		s.count(s.only(pools, "control planes", isControlPlane), controlPlanes)
	}
	if workers == unchanged || s.err != nil {
		return
	}
	var has bool
	for _, p := range pools.Content {
		has = has || !isControlPlane(p, len(pools.Content))
	}
	switch {
	case has:
		s.count(s.only(pools, "workers", func(p *yaml.Node, n int) bool { return !isControlPlane(p, n) }), workers)
	case workers > 0:
		s.spellRoles(pools)
		s.add(pools, "worker", []string{RoleWorker}, workers)
	}
}

// spellRoles writes the default roles of pools that name none: another pool would change the default.
func (s *shaper) spellRoles(pools *yaml.Node) {
	for _, p := range pools.Content {
		if yamlField(p, "roles") == nil && p.Kind == yaml.MappingNode {
			p.Content = append(p.Content, yamlWord("roles"), yamlList(DefaultRoles(len(pools.Content))))
		}
	}
}

// only returns the only pool of that kind.
func (s *shaper) only(pools *yaml.Node, what string, is func(p *yaml.Node, pools int) bool) *yaml.Node {
	var found []*yaml.Node
	for _, p := range pools.Content {
		if is(p, len(pools.Content)) {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		s.refuse("it has %d pools of %s, and the number needs exactly one", len(found), what)
		return nil
	}
	return found[0]
}

func (s *shaper) count(pool *yaml.Node, n int) {
	if s.err != nil {
		return
	}
	if yamlField(pool, "machines") != nil {
		s.refuse("its pool %s lists its machines", yamlValue(yamlField(pool, "name")))
		return
	}
	if n == 0 {
		s.refuse("its pool %s cannot become empty: remove its machines with slipway node remove", yamlValue(yamlField(pool, "name")))
		return
	}
	now := yamlField(pool, "count")
	switch {
	case now == nil && n == 1:
	case now == nil:
		pool.Content = append(pool.Content, yamlWord("count"), yamlNumber(n))
		s.changed = true
	case yamlValue(now) != strconv.Itoa(n):
		now.Kind, now.Tag, now.Value, now.Style, now.Content = yaml.ScalarNode, "!!int", strconv.Itoa(n), 0, nil
		s.changed = true
	}
}

func (s *shaper) add(pools *yaml.Node, name string, roles []string, n int) {
	pools.Content = append(pools.Content, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
		yamlWord("name"), yamlWord(name), yamlWord("roles"), yamlList(roles), yamlWord("count"), yamlNumber(n),
	}})
	s.changed = true
}

// child returns the field of a mapping, and creates it if it is missing or null.
func (s *shaper) child(m *yaml.Node, name string, kind yaml.Kind) *yaml.Node {
	if s.err != nil {
		return nil
	}
	c := yamlField(m, name)
	if c == nil {
		c = &yaml.Node{Kind: kind}
		m.Content = append(m.Content, yamlWord(name), c)
		return c
	}
	if c.Kind == yaml.ScalarNode && c.Tag == "!!null" {
		c.Kind, c.Tag, c.Value = kind, "", ""
	}
	if c.Kind != kind {
		s.refuse("slipway cannot edit its %s: it is not written as plain YAML", name)
	}
	if len(c.Content) == 0 {
		c.Style = 0 // [] and {} would put everything that is added on one line
	}
	return c
}

func isControlPlane(p *yaml.Node, pools int) bool {
	roles := yamlField(p, "roles")
	if roles == nil {
		return slices.Contains(DefaultRoles(pools), RoleControlPlane)
	}
	return slices.ContainsFunc(roles.Content, func(r *yaml.Node) bool { return r.Value == RoleControlPlane })
}

func yamlField(m *yaml.Node, name string) *yaml.Node {
	if m.Kind != yaml.MappingNode {
		return nil
	}
	_, value := lookup(m, name)
	return value
}

func yamlValue(n *yaml.Node) string {
	if n == nil {
		return "?"
	}
	return n.Value
}

func yamlWord(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

func yamlNumber(n int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(n)}
}

func yamlList(words []string) *yaml.Node {
	l := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, w := range words {
		l.Content = append(l.Content, yamlWord(w))
	}
	return l
}
