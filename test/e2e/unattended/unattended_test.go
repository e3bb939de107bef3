// SPDX-License-Identifier: Apache-2.0

// Package unattended_test replaces a dead worker by a blank machine that gets only user data, which cloud-init reads.
package unattended_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// The worker has the address of the kit's first bare machine.
const specText = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: x}
spec:
  pools:
  - {name: main, roles: [control-plane, worker]}
  - {name: cattle, replacement: ByAddress, machines: [{name: cattle-0, address: 10.89.0.50}]}
`

// stages are the commands of cloud-init's units. Unrelated modules may fail in a machine that shares its host's kernel, so the test checks
// only the node.
const stages = `export PATH=/usr/sbin:/usr/bin:/sbin:/bin
cloud-init init --local; cloud-init init; cloud-init modules --mode=config; cloud-init modules --mode=final
cloud-init status --long`

func TestADeadWorkerIsReplaced(t *testing.T) {
	if _, err := exec.LookPath("cloud-init"); err != nil {
		t.Skip("needs cloud-init (run make preflight)")
	}
	c := kit.New(t, "blank")
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(specText), 0o600); err != nil {
		t.Fatal(err)
	}
	c.MustUp("--file", file)
	nodes := c.AllReady(time.Minute, 1, 1)
	first := nodes["cattle-0"].Key
	data := c.Must("render", "--format", "cloud-init", "--node", "cattle-0", "--to", "-").Out
	if len(data) > 4096 || len(data) < 1000 {
		t.Errorf("size of the user data: got %d bytes, want 1000 to 4096:\n%s", len(data), data)
	}
	c.Machine("stop", "cattle-0")
	blank := c.Bare(0, "")
	blank.ExecIn(bytes.NewReader([]byte(data)), `set -e
mkdir -p /var/lib/cloud/seed/nocloud /etc/cloud/cloud.cfg.d
cat >/var/lib/cloud/seed/nocloud/user-data
echo 'instance-id: blank-0' >/var/lib/cloud/seed/nocloud/meta-data
echo 'network: {config: disabled}' >/etc/cloud/cloud.cfg.d/99-no-network.cfg
echo 'datasource_list: [NoCloud]' >/etc/cloud/cloud.cfg.d/99-source.cfg`)
	begun := time.Now()
	cloudInit := blank.TryExec(nil, stages)
	testkit.Until(t, 4*time.Minute, "the blank machine is cattle-0", func() error {
		nodes, err := c.Nodes()
		if err != nil {
			return err
		}
		if n := nodes["cattle-0"]; n.Key == first || !n.Ready || n.Waiting != "" {
			return fmt.Errorf("got %+v; %s; cloud-init: %s", n, blank.TryExec(nil, "systemctl status slipway-join.service --no-pager | tail -5").Out, cloudInit)
		}
		_, err = blank.TryProcess("kubelet") // the API may still show the state of the dead machine
		return err
	})
	t.Logf("the blank machine has replaced the dead one %.1f s after its boot", time.Since(begun).Seconds())
	if got := blank.Exec("ls /var/lib/slipway/store/blobs/sha256 | wc -l"); got == "0\n" {
		t.Error("component store of the blank machine: got no files")
	}
	c.Kubectl("wait", "--for=condition=Ready", "node/cattle-0", "--timeout=150s")
	c.Machine("start", "cattle-0") // the dead machine starts again
	testkit.Until(t, time.Minute, "the old machine is not the node", func() error {
		if n, err := c.Nodes(); err != nil || n["cattle-0"].Key == first {
			return fmt.Errorf("got %+v: %w", n["cattle-0"], err)
		}
		return nil
	})
}
