// SPDX-License-Identifier: Apache-2.0

// Package render is what every renderer gives: the files that stand for one node's plan in another program's form, and what
// that form cannot say, with the reason. It knows no form and touches no disk. Each form is a package below this one with
//
//	func Render(p plan.Plan) (render.Rendered, error)
//
// which is pure, sorted and deterministic, and silent about nothing: see [Rendered.Missing].
//
// Read [File] and [Rendered] first.
//
//	Unit etcd  →  File{Path: "slipway-etcd.service", Mode: 0o644, Content: "[Unit]…", Refs: [unit/etcd]}
//	Cert ca    →  Left{Ref: cert/ca, Reason: "keys are born on the node"}
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

// File is one file of a rendered form.
type File struct {
	// Path is relative to the folder that is rendered to, with slashes and without "..".
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"` // permission bits
	Content []byte `json:"content"`
	// Refs are the entries that this file stands for, as a whole or in part.
	Refs []plan.Ref `json:"refs,omitempty"`
}

// Left is an entry that the form does not say.
type Left struct {
	Ref    plan.Ref `json:"ref"`
	Reason string   `json:"reason"` // why, and who has to do it instead
}

// Rendered is one node's plan in another form.
type Rendered struct {
	Files []File `json:"files"`          // by path
	Left  []Left `json:"left,omitempty"` // in the order of the plan
}

// Add appends a file that stands for the entries refs.
func (r *Rendered) Add(name string, mode uint32, content string, refs ...plan.Ref) {
	r.Files = append(r.Files, File{Path: name, Mode: mode, Content: []byte(content), Refs: refs})
}

// Leave notes an entry that the form does not say.
func (r *Rendered) Leave(ref plan.Ref, reason string) { r.Left = append(r.Left, Left{ref, reason}) }

// Finish sorts the files and checks what is true of every form: clean relative paths, none twice, a reason for what is left, and no
// entry of the plan forgotten. A renderer ends with it.
func (r Rendered) Finish(p plan.Plan) (Rendered, error) {
	slices.SortFunc(r.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	var wrong []error
	for i, f := range r.Files {
		switch {
		case f.Path == "" || path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "." || f.Path == ".." || strings.HasPrefix(f.Path, "../"):
			wrong = append(wrong, fmt.Errorf("render file %q: its path is not clean and relative", f.Path))
		case i > 0 && r.Files[i-1].Path == f.Path:
			wrong = append(wrong, fmt.Errorf("render file %q: it is there twice", f.Path))
		}
	}
	for _, l := range r.Left {
		if l.Reason == "" {
			wrong = append(wrong, fmt.Errorf("leave out %s: there is no reason", l.Ref))
		}
	}
	for _, ref := range r.Missing(p) {
		wrong = append(wrong, fmt.Errorf("render %s: it is in no file and not left out", ref))
	}
	return r, errors.Join(wrong...)
}

// Missing are the entries of the plan that are neither in a file nor left out.
func (r Rendered) Missing(p plan.Plan) []plan.Ref {
	said := map[plan.Ref]bool{}
	for _, f := range r.Files {
		for _, ref := range f.Refs {
			said[ref] = true
		}
	}
	for _, l := range r.Left {
		said[l.Ref] = true
	}
	var out []plan.Ref
	for _, e := range p.Entries {
		if !said[e.Ref] {
			out = append(out, e.Ref)
		}
	}
	return out
}
