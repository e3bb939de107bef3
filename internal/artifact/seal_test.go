// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"os"
	"strings"
	"testing"
)

func TestSound(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Add(t.Context(), strings.NewReader("what it says"))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) { // read
		t.Fatal("a whole blob is not sound")
	}
	if !s.Sound(t.Context(), b) { // by its seal
		t.Fatal("a whole blob is not sound")
	}
	f, err := os.OpenFile(s.Path(b.Digest), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("W"), 0); err != nil { // the size stays
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s.Sound(t.Context(), b) {
		t.Error("a changed byte was not noticed")
	}
	if _, err := s.Add(t.Context(), strings.NewReader("what it says")); err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) {
		t.Error("made again, and not sound")
	}
	if err := os.WriteFile(s.sealPath(b.Digest), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !s.Sound(t.Context(), b) {
		t.Error("a damaged seal makes a whole blob unsound")
	}
}
