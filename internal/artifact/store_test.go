// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/durable"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAddAndTake(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	b, err := s.Add(t.Context(), strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	want := Blob{Digest: "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", Size: 5}
	if diff := cmp.Diff(want, b); diff != "" {
		t.Fatal(diff)
	}
	dst := filepath.Join(t.TempDir(), "bin")
	if err := s.Take(t.Context(), b.Digest, dst, 0o750); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dst)
	if err != nil || info.Mode() != 0o750 || info.Size() != 5 {
		t.Errorf("taken file: got %v, %v", info, err)
	}
}

func TestAddLeavesNoHalfFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if _, err := s.Add(t.Context(), iotest.TimeoutReader(strings.NewReader("hello"))); err == nil {
		t.Error("want the reader's error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Add(ctx, strings.NewReader("hello")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	for _, dir := range []string{s.blobs(), s.tmp()} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("files in %s: got %v, %v; want none", dir, left, err)
		}
	}
}

func TestTamperedBlobIsNeverTaken(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	b, err := s.Add(t.Context(), strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(b.Digest), []byte("jello"), 0o755); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "bin")
	if err := os.WriteFile(dst, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.Take(t.Context(), b.Digest, dst, 0o755); !errors.Is(err, ErrDamaged) {
		t.Errorf("Take: got %v, want ErrDamaged", err)
	}
	if text, err := os.ReadFile(dst); err != nil || string(text) != "old" {
		t.Errorf("dst: got %q, %v; want the old content", text, err)
	}
	if has(s, b) {
		t.Error("the damaged blob is still in place, so Build would not repair it")
	}
	if err := s.Verify(t.Context(), b.Digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Verify: got %v, want ErrNotExist", err)
	}
	if _, err := s.Add(t.Context(), strings.NewReader("hello")); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), b.Digest); err != nil {
		t.Errorf("Verify after Add: %v", err)
	}
}

func TestDigestFromOutsideIsNoPath(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	bad := []string{"", "sha256:", "sha256:../../etc/passwd", "sha512:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("A", 64)}
	for _, d := range bad {
		if _, err := ParseDigest(d); err == nil {
			t.Errorf("ParseDigest(%q): want an error", d)
		}
		if err := s.Verify(t.Context(), Digest(d)); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Verify(%q): got %v, want an error", d, err)
		}
	}
}

func TestRecordIsNeverTrustedBlindly(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	k, other := key(strings.Repeat("1", 64)), key(strings.Repeat("2", 64))
	files := map[string]Blob{"a": {Digest: Digest("sha256:" + strings.Repeat("0", 64)), Size: 1}}
	if err := s.saveRecord(k, "a 1", files); err != nil {
		t.Fatal(err)
	}
	got, ok, err := s.loadRecord(k)
	if diff := cmp.Diff(files, got); diff != "" || !ok || err != nil {
		t.Fatalf("loadRecord: got %v, %v\n%s", ok, err, diff)
	}
	if _, ok, err := s.loadRecord(other); ok || err != nil {
		t.Errorf("no record: got %v, %v", ok, err)
	}
	whole, err := os.ReadFile(s.recordPath(k))
	if err != nil {
		t.Fatal(err)
	}
	damaged := map[string][]byte{
		"empty": {}, "cut short": whole[:len(whole)/2], "size changed": []byte(strings.Replace(string(whole), `"size":1`, `"size":2`, 1)),
	}
	for name, text := range damaged {
		if err := os.WriteFile(s.recordPath(k), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := s.loadRecord(k); ok || !errors.Is(err, durable.ErrDamaged) {
			t.Errorf("%s: got %v, %v; want ErrDamaged", name, ok, err)
		}
	}
	if err := os.WriteFile(s.recordPath(other), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.loadRecord(other); !errors.Is(err, ErrDamaged) {
		t.Errorf("record of another key: got %v, want ErrDamaged", err)
	}
}

func TestGCKeepsTheBundle(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	keep, err := s.Add(t.Context(), strings.NewReader("keep"))
	if err != nil {
		t.Fatal(err)
	}
	drop, err := s.Add(t.Context(), strings.NewReader("garbage"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := GC(t.Context(), s); err == nil {
		t.Error("keeping nothing: want an error")
	}
	freed, err := GC(t.Context(), s, Bundle{Binaries: map[string]Blob{"a": keep}})
	if err != nil || freed != drop.Size || !has(s, keep) || has(s, drop) {
		t.Errorf("GC = %d, %v; keep exists %v, drop exists %v", freed, err, has(s, keep), has(s, drop))
	}
}

func has(s *Store, b Blob) bool {
	_, ok := s.metadata(b)
	return ok
}

func TestSound(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Add(t.Context(), strings.NewReader("content"))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) { // reads the blob
		t.Fatal("Sound of an intact blob: got false, want true")
	}
	if !s.Sound(t.Context(), b) { // checks the metadata only
		t.Fatal("Sound of an intact blob: got false, want true")
	}
	f, err := os.OpenFile(s.Path(b.Digest), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("C"), 0); err != nil { // keeps the size
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s.Sound(t.Context(), b) {
		t.Error("Sound of a changed blob: got true, want false")
	}
	if _, err := s.Add(t.Context(), strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) {
		t.Error("Sound of a repaired blob: got false, want true")
	}
	if err := os.WriteFile(s.verifiedPath(b.Digest), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) {
		t.Error("Sound with a damaged metadata record: got false, want true")
	}
}
