// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestFields(t *testing.T) {
	t.Parallel()
	r := Default()
	for _, x := range []struct {
		program, field string
		want           FieldKind
	}{
		{"kubelet", "maxPods", IntField},
		{"kubelet", "authentication", ObjectField},
		{"kubelet", "authentication.webhook.cacheTTL", DurationField},
		{"kubelet", "evictionHard", AnyField},
		{"kubelet", "apiVersion", TextField},
		{"kubelet", "maxPodz", ""},
		{"kube-proxy", "nftables.masqueradeAll", BoolField},
		{"kube-scheduler", "enableProfiling", BoolField}, // of an inlined type
		{"etcd", "name", ""},
	} {
		if got := r.Fields(x.program)[x.field]; got != x.want {
			t.Errorf("%s %s: %q, want %q", x.program, x.field, got, x.want)
		}
	}
	if r.Fields("etcd") != nil {
		t.Error("etcd has a table")
	}
}

func TestFieldsAreCurrent(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "fields.txt")
	if text, err := exec.CommandContext(t.Context(), "go", "run", "./genfields", "../../../components/kubernetes-1.36", out).CombinedOutput(); err != nil {
		t.Skipf("the modules are not here: %s", text)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fieldFiles.ReadFile("fields/1.36.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("fields/1.36.txt is stale: run go generate ./internal/core/catalog")
	}
}
