// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestVerifyPartTellsTheCase: not built, damaged and lost have different remedies in the reader's mind.
func TestVerifyPartTellsTheCase(t *testing.T) {
	t.Parallel()
	l := &Launcher{Root: t.TempDir()}
	store, err := l.Store()
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
		if err := l.VerifyPart(t.Context(), p); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect(Part{}, "it is not built")
	expect(part, "")
	if err := os.WriteFile(store.Path(blob.Digest), []byte("whale"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(part, "it is damaged, and set aside now")
	expect(part, "it was built, and its file is gone")
}

// TestCollectGarbageNeedsABundle: with nothing known to be worth keeping, nothing is removed.
func TestCollectGarbageNeedsABundle(t *testing.T) {
	t.Parallel()
	l := &Launcher{Root: t.TempDir()}
	if _, _, err := l.CollectGarbage(t.Context()); !errors.Is(err, ErrNoStore) {
		t.Errorf("without a store: %v", err)
	}
	store, err := l.Store()
	if err != nil {
		t.Fatal(err)
	}
	blob, err := store.Add(t.Context(), strings.NewReader("of another slipway"))
	if err != nil {
		t.Fatal(err)
	}
	if freed, _, err := l.CollectGarbage(t.Context()); err == nil || freed != 0 {
		t.Errorf("freed %d, %v", freed, err)
	}
	if err := store.Verify(t.Context(), blob.Digest); err != nil {
		t.Error(err)
	}
}
