// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const canary = "Y2FuYXJ5LWtleQ==" // "canary-key"

func clusterConf(cluster, server string) []byte {
	return []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"` + cluster + `","user":"kubernetes-admin"}}],
"clusters":[{"name":"` + cluster + `","cluster":{"server":"` + server + `"}}],"users":[{"name":"kubernetes-admin","user":{"client-key-data":"` + canary + `"}}]}`)
}

// contents returns the content of a kubeconfig in a comparable form.
func contents(t *testing.T, path string) (current string, lines []string) {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range c.Contexts {
		lines = append(lines, "context "+name+" = "+x.Cluster+"/"+x.AuthInfo+"/"+x.Namespace)
	}
	for name, x := range c.Clusters {
		lines = append(lines, "cluster "+name+" = "+x.Server)
	}
	for name := range c.AuthInfos {
		lines = append(lines, "user "+name)
	}
	slices.Sort(lines)
	return c.CurrentContext, lines
}

const others = `{"apiVersion":"v1","kind":"Config","current-context":"work","contexts":[{"name":"work","context":{"cluster":"dev","user":"kubernetes-admin","namespace":"team"}}],
"clusters":[{"name":"dev","cluster":{"server":"https://work.example.test"}}],"users":[{"name":"kubernetes-admin","user":{"token":"t"}}]}`

func TestMergeKubeconfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dst, link := filepath.Join(dir, "real", "config"), filepath.Join(dir, "config")
	if err := os.Mkdir(filepath.Dir(dst), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dst, others, 0o644)
	if err := os.Symlink(dst, link); err != nil {
		t.Fatal(err)
	}
	merge := func(name string, conf []byte) {
		t.Helper()
		if err := MergeKubeconfig(t.Context(), link, name, conf); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	merge("slipway-dev", clusterConf("dev", "https://127.0.0.1:1"))
	merge("slipway-two", clusterConf("two", "https://127.0.0.1:2"))
	err := editKubeconfig(t.Context(), dst, func(c *api.Config) error {
		c.Contexts["slipway-dev"].Namespace = "shop" // kubectl config set-context --namespace
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	merge("slipway-dev", clusterConf("dev", "https://127.0.0.1:3")) // the cluster was created again

	kept := []string{"cluster dev = https://work.example.test", "context work = dev/kubernetes-admin/team", "user kubernetes-admin"}
	want := append([]string{
		"cluster slipway-dev = https://127.0.0.1:3", "cluster slipway-two = https://127.0.0.1:2", "context slipway-dev = slipway-dev/slipway-dev/shop",
		"context slipway-two = slipway-two/slipway-two/", "user slipway-dev", "user slipway-two",
	}, kept...)
	slices.Sort(want)
	current, got := contents(t, dst)
	if diff := cmp.Diff(want, got); diff != "" || current != "slipway-dev" {
		t.Errorf("current context %s, want slipway-dev; entries (-want +got):\n%s", current, diff)
	}
	if info, err := os.Stat(dst); err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, error %v, want 0600", info.Mode(), err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the symbolic link was replaced: %v", err)
	}
}

func TestMergeKubeconfigCreatesTheFile(t *testing.T) {
	t.Parallel()
	dst := filepath.Join(t.TempDir(), ".kube", "config")
	if err := MergeKubeconfig(t.Context(), dst, "slipway-dev", clusterConf("dev", "https://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	if current, _ := contents(t, dst); current != "slipway-dev" {
		t.Errorf("current context: got %q, want slipway-dev", current)
	}
}

func TestMergeKubeconfigRefuses(t *testing.T) {
	t.Parallel()
	foreign := strings.ReplaceAll(others, "work", "slipway-dev")
	tests := map[string]struct {
		there   string
		conf    []byte
		lock    bool
		wantErr string
	}{
		"context of another cluster": {there: foreign, conf: clusterConf("dev", "https://x"), wantErr: "its context slipway-dev is for another cluster"},
		"damaged file":               {there: "{" + canary, conf: clusterConf("dev", "https://x"), wantErr: "cannot be parsed and was not changed"},
		"damaged source":             {there: others, conf: []byte("{" + canary), wantErr: "it cannot be parsed"},
		"source without its context": {there: others, conf: []byte(`{"apiVersion":"v1","kind":"Config","current-context":"gone"}`), wantErr: `current context "gone" is missing`},
		"source without its user":    {there: others, conf: []byte(strings.Replace(string(clusterConf("dev", "x")), `"user":"kub`, `"user":"x`, 1)), wantErr: "the cluster or the user of its context"},
		"locked":                     {there: others, conf: clusterConf("dev", "https://x"), lock: true, wantErr: "config.lock exists: wait until kubectl exits"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dst := filepath.Join(t.TempDir(), "config")
			write(t, dst, tt.there, 0o600)
			ctx := t.Context()
			if tt.lock {
				write(t, dst+".lock", "", 0)
				cancelled, cancel := context.WithCancel(ctx)
				cancel()
				ctx = cancelled
			}
			err := MergeKubeconfig(ctx, dst, "slipway-dev", tt.conf)
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("got %v, want %q", err, tt.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("the error contains a key: %q", err)
			}
			if data, _ := os.ReadFile(dst); string(data) != tt.there {
				t.Errorf("the file was changed: got %s", data)
			}
			if _, err := os.Stat(dst + ".lock"); (err == nil) != tt.lock {
				t.Errorf("lock file: got %v, want it to exist: %t", err, tt.lock)
			}
		})
	}
}

func TestMergeKubeconfigConcurrently(t *testing.T) {
	t.Parallel()
	dst := filepath.Join(t.TempDir(), "config")
	names := []string{"a", "b", "c", "d", "e", "f"}
	var g errgroup.Group
	for _, name := range names {
		g.Go(func() error {
			return MergeKubeconfig(t.Context(), dst, name, clusterConf(name, "https://x"))
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, lines := contents(t, dst); len(lines) != 3*len(names) {
		t.Errorf("got %d entries for %d clusters, want three each", len(lines), len(names))
	}
}

// root merges into the file of a user, who must still be able to read it.
func TestMergeKubeconfigKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to change the owner of a file")
	}
	const uid, gid = 65534, 65533
	dst := filepath.Join(t.TempDir(), "config")
	write(t, dst, others, 0o640)
	if err := os.Chown(dst, uid, gid); err != nil {
		t.Fatal(err)
	}
	if err := MergeKubeconfig(t.Context(), dst, "slipway-dev", clusterConf("dev", "https://x")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dst)
	if err != nil {
		t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != uid || owner.Gid != gid {
		t.Errorf("got owner %+v, want %d:%d", owner, uid, gid)
	}
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
