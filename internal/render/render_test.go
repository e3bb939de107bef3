// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

func TestFinish(t *testing.T) {
	t.Parallel()
	var b plan.Builder
	dir, file := b.Add(plan.Dir{Path: "/a"}), b.Add(plan.File{Path: "/a/f"})
	p := b.Plan("c", "n", "r")
	for name, tc := range map[string]struct {
		make func(r *render.Rendered)
		want string
	}{
		"all covered": {func(r *render.Rendered) { r.Add("z", 0o644, "", dir); r.Omit(file, "why") }, ""},
		"nothing":     {func(*render.Rendered) {}, "render dir//a: the entry is neither in a file nor omitted\nrender file//a/f: the entry is neither in a file nor omitted"},
		"no reason": {
			func(r *render.Rendered) { r.Omit(dir, ""); r.Omit(file, "why") }, "omit dir//a: the reason is missing",
		},
		"twice": {
			func(r *render.Rendered) { r.Add("z", 0o644, "", dir); r.Add("a", 0, ""); r.Add("z", 0o644, "", file) },
			`render file "z": duplicate path`,
		},
		"above":    {func(r *render.Rendered) { r.Add("../z", 0o644, "", dir, file) }, `render file "../z": the path is not clean and relative`},
		"absolute": {func(r *render.Rendered) { r.Add("/z", 0o644, "", dir, file) }, `render file "/z": the path is not clean and relative`},
		"unclean":  {func(r *render.Rendered) { r.Add("a//z", 0o644, "", dir, file) }, `render file "a//z": the path is not clean and relative`},
		"unnamed":  {func(r *render.Rendered) { r.Add("", 0o644, "", dir, file) }, `render file "": the path is not clean and relative`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r render.Rendered
			tc.make(&r)
			got := ""
			if _, err := r.Finish(p); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFinishSortsFiles(t *testing.T) {
	t.Parallel()
	var r render.Rendered
	r.Add("b", 0, "")
	r.Add("a/z", 0, "")
	r.Add("a", 0, "")
	r, err := r.Finish(plan.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range r.Files {
		got = append(got, f.Path)
	}
	if diff := cmp.Diff([]string{"a", "a/z", "b"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
