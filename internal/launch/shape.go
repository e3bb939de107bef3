// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// asItIs is the number of machines that nobody has named.
const asItIs = -1

// Shape is how many machines a cluster shall have, for those who write no spec. Nil leaves a number as it is.
type Shape struct {
	ControlPlanes, Workers *int
}

// given reports whether anything is asked for.
func (s Shape) given() bool { return s.ControlPlanes != nil || s.Workers != nil }

func orAsItIs(n *int) int {
	if n == nil {
		return asItIs
	}
	return *n
}

// shapeSpec is a spec with that many machines: a new one when nothing was kept, else the kept one with other counts and all the
// rest as the user wrote it, comments too. A kept spec that has these counts already comes back byte for byte.
func shapeSpec(kept []byte, name string, controlPlanes, workers int) ([]byte, error) {
	if err := checkCounts(controlPlanes, workers); err != nil {
		return nil, err
	}
	fresh := kept == nil
	if fresh {
		kept = fmt.Appendf(nil, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: %s\n", name)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(kept, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.Join(errors.New("change the counts of the kept spec: it is no YAML object; name a spec with --file"), err)
	}
	s := shaper{fresh: fresh}
	s.pools(doc.Content[0], controlPlanes, workers)
	if s.err != nil {
		return nil, fmt.Errorf("change the counts of the kept spec: %w; change the spec yourself and name it with --file", s.err)
	}
	if !s.changed {
		return kept, nil
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&doc), enc.Close()); err != nil {
		return nil, fmt.Errorf("change the counts of the kept spec: %w", err)
	}
	return out.Bytes(), nil
}

// checkCounts refuses what no cluster should be.
func checkCounts(controlPlanes, workers int) error {
	switch {
	case controlPlanes != asItIs && controlPlanes < 1:
		return fmt.Errorf("%d control planes: a cluster has 1, 3 or 5", controlPlanes)
	case controlPlanes != asItIs && controlPlanes%2 == 0:
		return fmt.Errorf("%d control planes: etcd decides by majority, so %d survive the loss of no more of them than %d do, and are more that can fail: "+
			"choose 1, 3 or 5", controlPlanes, controlPlanes, controlPlanes-1)
	case workers < asItIs:
		return fmt.Errorf("%d workers: name a number from 0 on", workers)
	}
	return nil
}

// shaper edits the tree of a spec. The first thing that it cannot do ends it.
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
		roles := []string{spec.ControlPlane, spec.Worker}
		if s.fresh && workers > 0 {
			roles = []string{spec.ControlPlane}
		}
		s.add(pools, spec.DefaultPool, roles, max(controlPlanes, 1))
	} else if controlPlanes != asItIs {
		s.count(s.only(pools, "control-plane pool", isControlPlane), controlPlanes)
	}
	if workers == asItIs || s.err != nil {
		return
	}
	var has bool
	for _, p := range pools.Content {
		has = has || !isControlPlane(p, len(pools.Content))
	}
	switch {
	case has:
		s.count(s.only(pools, "worker pool", func(p *yaml.Node, n int) bool { return !isControlPlane(p, n) }), workers)
	case workers > 0:
		s.spellRoles(pools)
		s.add(pools, "worker", []string{spec.Worker}, workers)
	}
}

// spellRoles writes down the roles of pools that leave them to the default, which another pool would change.
func (s *shaper) spellRoles(pools *yaml.Node) {
	for _, p := range pools.Content {
		if yamlField(p, "roles") == nil && p.Kind == yaml.MappingNode {
			p.Content = append(p.Content, yamlWord("roles"), yamlList(spec.DefaultRoles(len(pools.Content))))
		}
	}
}

// only finds the one pool of that kind.
func (s *shaper) only(pools *yaml.Node, what string, is func(p *yaml.Node, pools int) bool) *yaml.Node {
	var found []*yaml.Node
	for _, p := range pools.Content {
		if is(p, len(pools.Content)) {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		s.refuse("it has %s, and the number is for one", Plural(len(found), what))
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
		s.refuse("its pool %s cannot become empty: take its machines out with slipway node remove", yamlValue(yamlField(pool, "name")))
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

// child is the field of a mapping, made when it is missing or null.
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
		s.refuse("its %s is written in a way that slipway does not edit", name)
	}
	if len(c.Content) == 0 {
		c.Style = 0 // [] and {} would hold all that is added in one line
	}
	return c
}

func isControlPlane(p *yaml.Node, pools int) bool {
	roles := yamlField(p, "roles")
	if roles == nil {
		return slices.Contains(spec.DefaultRoles(pools), spec.ControlPlane)
	}
	return slices.ContainsFunc(roles.Content, func(r *yaml.Node) bool { return r.Value == spec.ControlPlane })
}

func yamlField(m *yaml.Node, name string) *yaml.Node {
	if m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return m.Content[i+1]
		}
	}
	return nil
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
