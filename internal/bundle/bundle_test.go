// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// TestVerifyDistinguishes checks that parts that are not built, damaged or lost have different remedies.
func TestVerifyDistinguishes(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir()}
	store, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := store.Add(t.Context(), strings.NewReader("whole"))
	if err != nil {
		t.Fatal(err)
	}
	part := Part{Digest: blob.Digest.String(), Size: blob.Size}
	expect := func(p Part, want string) {
		t.Helper()
		got := ""
		if err := s.Verify(t.Context(), p); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect(Part{}, "not built")
	expect(part, "")
	if err := os.WriteFile(store.Path(blob.Digest), []byte("whale"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(part, "damaged, and now set aside")
	expect(part, "built, but its file is missing")
}

// TestCollectGarbageNeedsABundle checks that nothing is removed while it is unknown which bundles to keep.
func TestCollectGarbageNeedsABundle(t *testing.T) {
	t.Parallel()
	s := Store{Dir: filepath.Join(t.TempDir(), "store")}
	if _, _, err := s.CollectGarbage(t.Context()); !errors.Is(err, ErrNoStore) {
		t.Errorf("without a store: %v", err)
	}
	store, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := store.Add(t.Context(), strings.NewReader("of another slipway"))
	if err != nil {
		t.Fatal(err)
	}
	if freed, _, err := s.CollectGarbage(t.Context()); err == nil || freed != 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if err := store.Verify(t.Context(), blob.Digest); err != nil {
		t.Error(err)
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	x, y := artifact.Digest("sha256:"+strings.Repeat("a", 64)), artifact.Digest("sha256:"+strings.Repeat("b", 64))
	got := Digests(artifact.Bundle{
		Binaries: map[string]artifact.Blob{"kube": {Digest: x}}, Images: map[string]artifact.Blob{"example.org/pause:1": {Digest: y}},
	})
	if diff := cmp.Diff(planner.Components{"kube": x.String(), "example.org/pause:1": y.String()}, got); diff != "" {
		t.Errorf("digests (-want +got):\n%s", diff)
	}
}
