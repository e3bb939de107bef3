// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a spec.
type Problem struct {
	File         string
	Path         string // "spec.pools[0].roles"; empty when the document as a whole is meant
	Line, Column int    // from 1; 0 when there is no place to point at
	Msg          string
	Hint         string // what to do about it, if known
}

// String is "cluster.yaml:7:5: spec.pools[0].roles: unknown role "contol-plane": did you mean "control-plane"?".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	for _, s := range []string{p.Path, p.Msg, p.Hint} {
		if s == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	return b.String()
}

// Report builds a problem at the place of a field, or of the nearest field around it that the document holds.
func (c Cluster) Report(path, hint, format string, args ...any) Problem {
	p := Problem{File: c.File, Path: path, Msg: fmt.Sprintf(format, args...), Hint: hint}
	for at := path; ; at = parent(at) {
		if place, ok := c.Places[at]; ok {
			p.Line, p.Column = place.Line, place.Column
			return p
		}
		if at == "" {
			return p
		}
	}
}

// Sort orders problems by place, then by text.
func Sort(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Msg, b.Msg))
	})
}
