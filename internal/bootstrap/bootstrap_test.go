// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"os"
	"path/filepath"
	"testing"
)

// Down with an invalid name deletes nothing, in particular no directory outside the clusters.
func TestDownRefusesNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "../..", "a/b", "-x", "A"} {
		root := filepath.Join(t.TempDir(), "slipway")
		kept := filepath.Join(root, "clusters", "dev", "cluster.yaml")
		if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Down(t.Context(), newInventory(root), name, true, nil); err == nil {
			t.Errorf("%q was removed", name)
		}
		if _, err := os.Stat(kept); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
