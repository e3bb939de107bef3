// SPDX-License-Identifier: Apache-2.0

package launch

import (
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
