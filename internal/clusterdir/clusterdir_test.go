// SPDX-License-Identifier: Apache-2.0

package clusterdir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestClusters(t *testing.T) {
	t.Parallel()
	d := Dir{Root: filepath.Join(t.TempDir(), "root")}
	names, err := d.Clusters()
	if err != nil || len(names) != 0 {
		t.Errorf("got %v, %v: want nothing", names, err)
	}
	if err := d.Check("dev"); !errors.Is(err, ErrNoCluster) {
		t.Errorf("a cluster that does not exist: got %v, want ErrNoCluster", err)
	}
	if _, err := os.Stat(d.Root); err == nil {
		t.Error("listing created the root directory")
	}
	for _, dir := range []string{"clusters/b", "machines/b", "machines/a", "machines/.hidden"} {
		if err := os.MkdirAll(filepath.Join(d.Root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	names, err = d.Clusters()
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %v, %v: want a and b", names, err)
	}
}
