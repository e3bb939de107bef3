// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/machine"
)

// TestFindCommand checks that an unknown command is reported without calling runc, and that links are resolved in the machine.
func TestFindCommand(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "opt"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"usr/bin/tool": 0o755, "usr/bin/data": 0o644, "opt/run": 0o755} {
		if err := os.WriteFile(filepath.Join(root, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"bin": "usr/bin", "usr/bin/inside": "/opt/run", "usr/bin/outside": filepath.Join(root, "opt/run")} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		command machine.Command
		code    int // 0: it is there
	}{
		"in PATH":              {machine.Command{Args: []string{"tool", "-x"}}, 0},
		"nowhere":              {machine.Command{Args: []string{"nosuch"}}, 127},
		"in PATH, no execute":  {machine.Command{Args: []string{"data"}}, 127},
		"by path":              {machine.Command{Args: []string{"/bin/tool"}}, 0},
		"by path, nowhere":     {machine.Command{Args: []string{"/bin/nosuch"}}, 127},
		"by path, no execute":  {machine.Command{Args: []string{"/bin/data"}}, 126},
		"by path, a directory": {machine.Command{Args: []string{"/usr"}}, 126},
		"from a directory":     {machine.Command{Args: []string{"./run"}, Dir: "/opt"}, 0},
		"a link inside":        {machine.Command{Args: []string{"inside"}}, 0},
		"a link to the host":   {machine.Command{Args: []string{"outside"}}, 127},
		"with another PATH":    {machine.Command{Args: []string{"nosuch"}, Env: []string{"PATH=/x"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := findCommand(root, test.command)
			var absent *NoCommandError
			switch {
			case test.code == 0 && err != nil:
				t.Errorf("got %v", err)
			case test.code != 0 && (!errors.As(err, &absent) || absent.Code != test.code):
				t.Errorf("got %v, want code %d", err, test.code)
			}
		})
	}
}

func TestPodLogs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, file := range []string{
		"kube-system_etcd-dev-main-0_aa/etcd/0.log", "kube-system_etcd-dev-main-0_aa/etcd/9.log", "kube-system_etcd-dev-main-0_aa/etcd/10.log",
		"kube-system_kube-scheduler-dev-main-0_old/kube-scheduler/4.log", "kube-system_kube-scheduler-dev-main-0_new/kube-scheduler/0.log",
		"kube-system_coredns-6f-x_bb/coredns/0.log", "default_etcd-dev-main-0_cc/etcd/0.log", "kube-system_kube-proxy-dev-main-0_dd/kube-proxy/0.log.20260101-000000",
	} {
		path := filepath.Join(dir, file)
		at := time.Unix(int64(1000+i), 0)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"etcd":           filepath.Join(dir, "kube-system_etcd-dev-main-0_aa/etcd/10.log"),
		"kube-scheduler": filepath.Join(dir, "kube-system_kube-scheduler-dev-main-0_new/kube-scheduler/0.log"),
	}
	if diff := cmp.Diff(want, podLogs(dir, "dev-main-0")); diff != "" {
		t.Errorf("logs (-want +got):\n%s", diff)
	}
	if none := podLogs(filepath.Join(dir, "absent"), "dev-main-0"); len(none) != 0 {
		t.Errorf("logs of an empty directory: got %v, want none", none)
	}
}
