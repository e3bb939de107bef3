// SPDX-License-Identifier: Apache-2.0

package bare

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOperator(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("needs ssh-keygen (run make preflight)")
	}
	c := Config{Home: t.TempDir(), Root: t.TempDir(), Cluster: "far", Binary: "/bin/slipway"}
	o, err := NewOperator(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(o.Public, "ssh-ed25519 ") {
		t.Errorf("public key: got %q, want ssh-ed25519 …", o.Public)
	}
	if store, err := os.Readlink(filepath.Join(c.Home, "state", "store")); err != nil || store != filepath.Join(c.Root, "store") {
		t.Errorf("store: got link to %s, %v", store, err)
	}
	want := []string{
		"nsenter", "--net=" + c.Root + "/machines/far/switch", "env", "HOME=" + c.Home, "SSH_AUTH_SOCK=",
		"/bin/slipway", "apply", "--root=" + c.Home + "/state", "-f", o.Path("cluster.yaml"),
	}
	if diff := cmp.Diff(want, o.Line("apply", "-f", c.Home+"/cluster.yaml")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := NewOperator(t.Context(), c); err == nil {
		t.Error("second operator with the same home: got no error")
	}
}
