// SPDX-License-Identifier: Apache-2.0

// Package render defines the output of every renderer: the files that represent one node's plan in another
// program's format, and the entries that the format cannot represent, with the reasons. It knows no format
// and touches no disk. Each format is a package below this one with
//
//	func Render(p plan.Plan) (render.Rendered, error)
//
// which is pure, sorted and deterministic, and accounts for every entry of the plan: see [Rendered.Missing].
//
// Read [File] and [Rendered] first.
//
//	Unit etcd  →  File{Path: "slipway-etcd.service", Mode: 0o644, Content: "[Unit]…", Refs: [unit/etcd]}
//	Cert ca    →  Omitted{Ref: cert/ca, Reason: "keys are generated on the node…"}
package render

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// File is one file of the output.
type File struct {
	// Path is relative to the output directory, with slashes and without "..".
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"` // permission bits
	Content []byte `json:"content"`
	// Refs are the entries that this file represents, completely or in part.
	Refs []plan.Ref `json:"refs,omitempty"`
}

// Omitted is an entry that the format cannot represent.
type Omitted struct {
	Ref    plan.Ref `json:"ref"`
	Reason string   `json:"reason"` // why, and who has to provide the entry instead
}

// Rendered is one node's plan in another format.
type Rendered struct {
	Files   []File    `json:"files"`             // sorted by path
	Omitted []Omitted `json:"omitted,omitempty"` // in the order of the plan
}

// Add appends a file that represents the entries refs.
func (r *Rendered) Add(name string, mode uint32, content string, refs ...plan.Ref) {
	r.Files = append(r.Files, File{Path: name, Mode: mode, Content: []byte(content), Refs: refs})
}

// Omit records an entry that the format cannot represent.
func (r *Rendered) Omit(ref plan.Ref, reason string) {
	r.Omitted = append(r.Omitted, Omitted{ref, reason})
}

// Finish sorts the files and checks the rules for every format: paths are clean, relative and unique, every
// omission has a reason, and no entry of the plan is missing. Renderers call it last.
func (r Rendered) Finish(p plan.Plan) (Rendered, error) {
	slices.SortFunc(r.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	var wrong []error
	for i, f := range r.Files {
		switch {
		case f.Path == "" || path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "." || f.Path == ".." || strings.HasPrefix(f.Path, "../"):
			wrong = append(wrong, fmt.Errorf("render file %q: the path is not clean and relative", f.Path))
		case i > 0 && r.Files[i-1].Path == f.Path:
			wrong = append(wrong, fmt.Errorf("render file %q: duplicate path", f.Path))
		}
	}
	for _, l := range r.Omitted {
		if l.Reason == "" {
			wrong = append(wrong, fmt.Errorf("omit %s: the reason is missing", l.Ref))
		}
	}
	for _, ref := range r.Missing(p) {
		wrong = append(wrong, fmt.Errorf("render %s: the entry is neither in a file nor omitted", ref))
	}
	return r, errors.Join(wrong...)
}

// Missing lists the entries of the plan that are neither in a file nor omitted.
func (r Rendered) Missing(p plan.Plan) []plan.Ref {
	covered := map[plan.Ref]bool{}
	for _, f := range r.Files {
		for _, ref := range f.Refs {
			covered[ref] = true
		}
	}
	for _, l := range r.Omitted {
		covered[l.Ref] = true
	}
	var out []plan.Ref
	for _, e := range p.Entries {
		if !covered[e.Ref] {
			out = append(out, e.Ref)
		}
	}
	return out
}
