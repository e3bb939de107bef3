// SPDX-License-Identifier: Apache-2.0

// Package rendertest has helpers for the tests of the renderers: comparison with golden files, a rendering as
// text, and sample user data. Only tests may import it.
//
// Read [Golden] first.
//
//	rendertest.Golden(t, *update, "every-kind.txt", rendertest.Text(r))
package rendertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// Golden compares got with the file testdata/NAME. If update is set, it first writes the file.
func Golden(t *testing.T, update bool, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: run with -update if the change is intended (-want +got):\n%s", path, diff)
	}
}

// Text formats a rendering as one readable file.
func Text(r render.Rendered) string {
	var b strings.Builder
	for _, f := range r.Files {
		fmt.Fprintf(&b, "-- %s %04o --\n%s", f.Path, f.Mode, f.Content)
	}
	b.WriteString("-- omitted --\n")
	for _, l := range r.Omitted {
		fmt.Fprintf(&b, "%s: %s\n", l.Ref, l.Reason)
	}
	return b.String()
}

// UserData is that of a machine in a cluster of 100 nodes and three control planes, with names of the maximum
// length.
func UserData() userdata.Data {
	d := userdata.Data{
		Cluster: strings.Repeat("c", 40), Node: strings.Repeat("n", 63), Plan: "sha256:" + strings.Repeat("1", 64), Pin: pin.Pin("sha256:" + strings.Repeat("2", 64)),
		Program: "sha256:" + strings.Repeat("3", 64), Agent: string(systemd.AgentService(userdata.Program)),
	}
	for _, a := range []string{"192.168.100.101", "192.168.100.102", "192.168.100.103"} {
		d.Endpoints, d.Stores = append(d.Endpoints, a+":9440"), append(d.Stores, a+":9442")
	}
	return d
}
