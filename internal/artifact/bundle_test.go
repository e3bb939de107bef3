// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

func TestExportThenImport(t *testing.T) {
	t.Parallel()
	first := newStore(t)
	want := build(t, first)
	file := export(t, first)
	if !bytes.Equal(file, export(t, first)) {
		t.Error("two exports differ")
	}
	second := newStore(t)
	got, err := importSmall(t, second, file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if found, ok, err := Lookup(t.Context(), second, small(t)); !ok || err != nil || !cmp.Equal(want, found) {
		t.Errorf("Lookup after import: got %v, %v, %v", found, ok, err)
	}
}

func TestExportOfNothing(t *testing.T) {
	t.Parallel()
	err := Export(t.Context(), newStore(t), small(t), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "build it first") {
		t.Errorf("got %v", err)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	build(t, s)
	good := export(t, s)
	cases := map[string]struct {
		change func(h *tar.Header, body []byte) []byte
		want   string
	}{
		"climbing path": {func(h *tar.Header, b []byte) []byte { h.Name = blobPrefix + "../../../evil"; return b }, "not a blob of this bundle"},
		"link": {func(h *tar.Header, _ []byte) []byte {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, "/etc/passwd", 0
			return nil
		}, "not a blob of this bundle"},
		"directory":      {func(h *tar.Header, _ []byte) []byte { h.Typeflag, h.Name, h.Size = tar.TypeDir, "x/", 0; return nil }, "not a blob of this bundle"},
		"other size":     {func(h *tar.Header, b []byte) []byte { h.Size++; return append(b, 0) }, "not a blob of this bundle"},
		"one byte off":   {func(_ *tar.Header, b []byte) []byte { b[len(b)/2] ^= 1; return b }, "damaged"},
		"unknown digest": {func(h *tar.Header, b []byte) []byte { h.Name = blobPrefix + strings.Repeat("0", 64); return b }, "not a blob of this bundle"},
	}
	for name, c := range cases {
		target := newStore(t)
		_, err := importSmall(t, target, rewrite(t, good, 1, c.change))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if left, err := os.ReadDir(target.records()); err != nil || len(left) > 0 {
			t.Errorf("%s: got records %v, %v; want none", name, left, err)
		}
	}
	if _, err := importSmall(t, newStore(t), good[:len(good)/2]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("truncated: got %v", err)
	}
}

func TestImportRefusesForeignManifest(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	build(t, s)
	good := export(t, s)
	for old, change := range map[string]struct{ new, want string }{
		`"version": 1`:   {`"version": 9`, "version 9, want 1"},
		`"bundle"`:       {`"bunble"`, "unknown field"},
		`"pause": {`:     {`"pauze": {`, "do not match those of Kubernetes"},
		`"about": "paus`: {`"abort": "paus`, "unknown field"},
	} {
		file := rewrite(t, good, 0, func(_ *tar.Header, b []byte) []byte {
			return bytes.Replace(b, []byte(old), []byte(change.new), 1)
		})
		if _, err := importSmall(t, newStore(t), file); err == nil || !strings.Contains(err.Error(), change.want) {
			t.Errorf("%s: got %v, want %q", old, err, change.want)
		}
	}
	// The complete release has more records than this file, which has one component.
	if _, err := Import(t.Context(), newStore(t), bytes.NewReader(good), nil); err == nil {
		t.Error("import of a part of a release: got nil, want an error")
	}
}

func export(t *testing.T, s *Store) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := Export(t.Context(), s, small(t), &file); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func importSmall(t *testing.T, s *Store, file []byte) (Bundle, error) {
	t.Helper()
	find := func(string) (catalog.Release, error) { return small(t), nil }
	return importFor(t.Context(), s, bytes.NewReader(file), func(Event) {}, find)
}

// rewrite copies a tar file and calls change for the entry with that number.
func rewrite(t *testing.T, file []byte, number int, change func(*tar.Header, []byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	r, w := tar.NewReader(bytes.NewReader(file)), tar.NewWriter(&out)
	for n := 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if n == number {
			body = change(h, body)
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
