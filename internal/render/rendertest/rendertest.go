// SPDX-License-Identifier: Apache-2.0

// Package rendertest is what the tests of the renderers have in common: the comparison with a golden file, a rendering as text,
// and the user data of a machine. It is never part of what ships.
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

	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// Golden compares with a file of the test's folder testdata, which it writes anew first if update is set.
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
		t.Errorf("%s: rewrite with -update if that is meant (-want +got):\n%s", path, diff)
	}
}

// Text shows a rendering as one file for people.
func Text(r render.Rendered) string {
	var b strings.Builder
	for _, f := range r.Files {
		fmt.Fprintf(&b, "-- %s %04o --\n%s", f.Path, f.Mode, f.Content)
	}
	b.WriteString("-- left --\n")
	for _, l := range r.Left {
		fmt.Fprintf(&b, "%s: %s\n", l.Ref, l.Reason)
	}
	return b.String()
}

// UserData is for a machine of a cluster of 100 nodes and three control planes, with names as long as they may be.
func UserData() userdata.Data {
	d := userdata.Data{
		Cluster: strings.Repeat("c", 40), Node: strings.Repeat("n", 63), Plan: "sha256:" + strings.Repeat("1", 64), Pin: "sha256:" + strings.Repeat("2", 64),
		Program: "sha256:" + strings.Repeat("3", 64), Agent: string(systemd.AgentService(userdata.Program)),
	}
	for _, a := range []string{"192.168.100.101", "192.168.100.102", "192.168.100.103"} {
		d.Endpoints, d.Stores = append(d.Endpoints, a+":9440"), append(d.Stores, a+":9442")
	}
	return d
}
