// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
		t.Errorf("logs of nothing: %v", none)
	}
}
