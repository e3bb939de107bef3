// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const ownKubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: dev, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: QQ==}}
users:
- {name: admin, user: {client-key-data: QQ==}}
contexts:
- {name: x, context: {cluster: dev, user: admin, namespace: shop}}
current-context: x
`

const merged = `apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: QQ==
    server: https://127.0.0.1:6443
  name: slipway-dev
contexts:
- context:
    cluster: slipway-dev
    namespace: shop
    user: slipway-dev
  name: slipway-dev
current-context: slipway-dev
kind: Config
users:
- name: slipway-dev
  user:
    client-key-data: QQ==
`

func TestMergeKubeconfig(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		theirs, want, problem string
	}{
		"no file":       {want: merged},
		"an empty file": {theirs: "\n", want: merged},
		"a second time": {theirs: merged, want: merged},
		"beside others": {
			theirs: `
preferences: {colors: true}
clusters:
- {name: prod, cluster: {server: "https://prod"}}
- {name: slipway-dev, cluster: {server: "https://old"}}
`,
			want: strings.Replace(strings.Replace(merged, "clusters:\n", "clusters:\n- cluster:\n    server: https://prod\n  name: prod\n", 1),
				"kind: Config\n", "kind: Config\npreferences:\n  colors: true\n", 1),
		},
		"no YAML":       {theirs: "{", problem: "read kubeconfig"},
		"another kind":  {theirs: "kind: Pod", problem: "kind Pod, want Config"},
		"a wrong shape": {theirs: "clusters: 7", problem: "clusters is not a list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kube", "config")
			if test.theirs != "" {
				writeKubeconfig(t, path, test.theirs)
			}
			err := MergeKubeconfig(path, "slipway-dev", []byte(ownKubeconfig))
			want := test.want
			if test.problem != "" {
				want = test.theirs // left alone
				if err == nil || !strings.Contains(err.Error(), test.problem) || !strings.Contains(err.Error(), path) {
					t.Errorf("got %v, want %q and the path", err, test.problem)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("file (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMergeThroughLink: a kubeconfig that is a link stays one, and nobody else can read what was merged.
func TestMergeThroughLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	writeKubeconfig(t, file, "kind: Config\n")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := MergeKubeconfig(link, "slipway-dev", []byte(ownKubeconfig)); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(link); err != nil || target != file {
		t.Errorf("the link is %q, %v", target, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != int64(len(merged)) {
		t.Errorf("got %v, %v: want %d bytes with mode 0600", info, err, len(merged))
	}
}

func writeKubeconfig(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
