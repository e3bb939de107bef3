// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"fmt"
	"slices"
	"strings"
)

// node is a line of a text and the lines below it that are indented further.
type node struct {
	mark     byte // in a difference only: ' ', '+', '-' or '~'
	indent   int
	text     string // without indentation
	children []*node
}

// key identifies a line among its siblings: the name of a YAML field, an item of a YAML list without its comment, or
// else all of the line.
func (n *node) key() string {
	if strings.HasPrefix(n.text, "- ") {
		item, _, _ := strings.Cut(n.text, " # ")
		return item
	}
	if before, _, ok := strings.Cut(n.text, ": "); ok {
		return before + ":"
	}
	return n.text
}

// Delta returns how text differs from base. Both are read as trees by their indentation. The difference has the
// shape of the text and only those of its lines that tell something, each after a mark:
//
//	  unchanged, shown as the parent of a change or as the line before an addition
//	- removed, with all lines below it
//	+ added
//	~ has another value; lines below it are the same unless shown
//
// Lines that are marked as unchanged or removed are shown without their value, so that a base with another value
// there makes the same difference.
func Delta(base, text string) string {
	var b strings.Builder
	from, to := &node{children: parse(base, false)}, &node{children: parse(text, false)}
	if diff := changed(from, to); len(diff) == 1 { // no difference, or one below the root
		write(&b, diff[0].children, true)
	} else if len(diff) > 1 {
		for _, n := range from.children {
			diff[0].children = append(diff[0].children, &node{mark: '-', text: n.key()})
		}
		write(&b, append(diff[0].children, diff[1].children...), true)
	}
	return b.String()
}

// Apply is the inverse of Delta: it returns the text that differs from base by delta.
func Apply(base, delta string) (string, error) {
	nodes, err := apply(parse(base, false), parse(delta, true))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	write(&b, nodes, false)
	return b.String(), nil
}

func parse(text string, marked bool) []*node {
	root := &node{indent: -1}
	open := []*node{root}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		n := &node{mark: ' '}
		if marked && line != "" {
			n.mark, line = line[0], strings.TrimPrefix(line[1:], " ")
		}
		n.text = strings.TrimLeft(line, " ")
		n.indent = len(line) - len(n.text)
		for n.indent <= open[len(open)-1].indent {
			open = open[:len(open)-1]
		}
		parent := open[len(open)-1]
		parent.children = append(parent.children, n)
		open = append(open, n)
	}
	return root.children
}

func write(b *strings.Builder, nodes []*node, marked bool) {
	for _, n := range nodes {
		if marked {
			b.WriteString(string(n.mark) + " ")
		}
		b.WriteString(strings.Repeat(" ", n.indent) + n.text + "\n")
		write(b, n.children, marked)
	}
}

// compare returns the difference of two lists of siblings, empty if there is none.
func compare(from, to []*node) []*node {
	common := commonKeys(from, to)
	var out []*node
	var previous *node // the sibling before, if the difference does not show it
	i, j := 0, 0
	for i < len(from) || j < len(to) {
		switch {
		case i < len(from) && common[i] < 0:
			out = append(out, &node{mark: '-', indent: from[i].indent, text: from[i].key()})
			previous = nil
			i++
		case i < len(from) && common[i] == j:
			n := changed(from[i], to[j])
			if n == nil {
				previous = &node{mark: ' ', indent: from[i].indent, text: from[i].key()}
			} else {
				out = append(out, n...)
				previous = nil
			}
			i, j = i+1, j+1
		default:
			if previous != nil {
				out = append(out, previous)
				previous = nil
			}
			out = append(out, marked(to[j], '+'))
			j++
		}
	}
	return out
}

// changed returns the difference of two nodes with the same key. Where siblings with equal keys would make it
// ambiguous, the node is removed and added.
func changed(from, to *node) []*node {
	children := compare(from.children, to.children)
	same := from.text == to.text && from.indent == to.indent
	if len(children) == 0 && same {
		return nil
	}
	if again, err := apply(from.children, children); err != nil || !slices.EqualFunc(again, to.children, equal) {
		return []*node{{mark: '-', indent: from.indent, text: from.key()}, marked(to, '+')}
	}
	n := &node{mark: ' ', indent: to.indent, text: to.key(), children: children}
	if !same {
		n.mark, n.text = '~', to.text
	}
	return []*node{n}
}

func equal(a, b *node) bool {
	return a.text == b.text && a.indent == b.indent && slices.EqualFunc(a.children, b.children, equal)
}

func marked(n *node, mark byte) *node {
	out := &node{mark: mark, indent: n.indent, text: n.text}
	for _, c := range n.children {
		out.children = append(out.children, marked(c, mark))
	}
	return out
}

// commonKeys returns for each node of from the index of its counterpart in to, or -1: a longest common subsequence.
func commonKeys(from, to []*node) []int {
	longest := make([][]int, len(from)+1)
	for i := range longest {
		longest[i] = make([]int, len(to)+1)
	}
	for i := len(from) - 1; i >= 0; i-- {
		for j := len(to) - 1; j >= 0; j-- {
			if from[i].key() == to[j].key() {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	out := slices.Repeat([]int{-1}, len(from))
	for i, j := 0, 0; i < len(from) && j < len(to); {
		switch {
		case from[i].key() == to[j].key():
			out[i] = j
			i, j = i+1, j+1
		case longest[i+1][j] >= longest[i][j+1]:
			i++
		default:
			j++
		}
	}
	return out
}

func apply(base, delta []*node) ([]*node, error) {
	var out []*node
	for _, d := range delta {
		if d.mark == '+' {
			out = append(out, d)
			continue
		}
		at := slices.IndexFunc(base, func(n *node) bool { return n.key() == d.key() && n.indent == d.indent })
		if at < 0 {
			return nil, fmt.Errorf("apply the difference: the base has no line %q there", d.text)
		}
		out = append(out, base[:at]...)
		if d.mark != '-' {
			children, err := apply(base[at].children, d.children)
			if err != nil {
				return nil, err
			}
			n := &node{indent: d.indent, text: base[at].text, children: children}
			if d.mark == '~' {
				n.text = d.text
			}
			out = append(out, n)
		}
		base = base[at+1:]
	}
	return append(out, base...), nil
}
