// SPDX-License-Identifier: Apache-2.0

package enrol_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-project/slipway/internal/node/enrol"
)

// A key is created once. If a node has lost its key, that is recorded before another one is created.
func TestMachineKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "machine.key")
	lost := func() bool {
		_, err := os.Stat(enrol.LostKey(path))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	_, first, err := enrol.MachineKey(path, false)
	if err != nil || lost() {
		t.Fatalf("the first key: lost %t, %v", lost(), err)
	}
	if _, again, err := enrol.MachineKey(path, true); err != nil || again != first || lost() {
		t.Errorf("the key of a node: %s, was %s, lost %t, %v", again, first, lost(), err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := enrol.MachineKey(path, true); err == nil || lost() {
		t.Errorf("a damaged key: lost %t, %v", lost(), err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, next, err := enrol.MachineKey(path, true); err != nil || next == first || !lost() {
		t.Errorf("a lost key: %s after %s, lost %t, %v", next, first, lost(), err)
	}
}
