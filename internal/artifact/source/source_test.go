// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"os"
	"testing"
	"testing/fstest"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

func TestArchiveIsFresh(t *testing.T) {
	t.Parallel()
	packed, err := Pack(os.DirFS("../../../components"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(packed, archive) {
		t.Error("components.txtar is stale: run go generate ./internal/artifact/source")
	}
}

func TestEveryCatalogueSourceIsInside(t *testing.T) {
	t.Parallel()
	for _, r := range catalog.Releases() {
		for _, c := range r.Components {
			files, err := Component(c.Source)
			if err != nil || len(files) == 0 {
				t.Errorf("%s: %v", c.Source, err)
			}
		}
	}
	if _, err := Component("nothing"); err == nil {
		t.Error("Component(nothing): want an error")
	}
}

func TestPackRefusesWhatTextWouldChange(t *testing.T) {
	t.Parallel()
	_, err := Pack(fstest.MapFS{"a/go.mod": {Data: []byte("module a")}})
	if err == nil {
		t.Error("pack without a final newline: got nil, want an error")
	}
}
