// SPDX-License-Identifier: Apache-2.0

// Package bare boots local machines as somebody else would have set them up: systemd, an SSH server of their own, and nothing of
// slipway's; and it makes the operator who logs in to them. What is then done with them is the caller's affair, as is taking them away
// again. It serves tests and the benchmark; code that ships never imports it.
//
// Read [Boot] and [Operator] first.
//
//	operator, err := bare.NewOperator(ctx, bare.Config{Home: folder, Root: "/var/lib/slipway", Cluster: "far", Binary: "bin/slipway"})
//	err = bare.Boot(ctx, machines, bare.Machine{Cluster: "far", Name: "far-bare-0", Index: 40, Binary: "bin/slipway", Authorized: operator.Public})
//	line := operator.Line("apply", "-f", operator.Path("cluster.yaml"), "--yes") // for exec.Command
package bare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/machine"
)

// Machine is one that is wanted.
type Machine struct {
	Cluster    string // whose network it is in, and what slipway down takes it away with
	Name       string
	Index      int
	Binary     string // slipway's, to boot with; it is not there afterwards
	Authorized string // the SSH key that may log in as root, as in authorized_keys; none if it is empty
}

const (
	bootLimit = 2 * time.Minute // far more than it takes, on a host that does other things too
	askEvery  = 50 * time.Millisecond
)

// Boot returns when the machine's SSH server is started. The host must have the package openssh-server.
func Boot(ctx context.Context, machines *machine.Local, m Machine) error {
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		return fmt.Errorf("find an SSH server: %w: apt-get install openssh-server", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if _, err := machines.Ensure(ctx, machine.Spec{
		Cluster: m.Cluster, Name: m.Name, Index: m.Index, Binary: m.Binary, Init: machine.Systemd, Bare: true,
	}); err != nil {
		return err
	}
	if err := stands(ctx, machines, m); err != nil {
		return fmt.Errorf("wait for systemd of %s: %w", m.Name, err)
	}
	if _, err := do(ctx, machines, m, prepare, m.Authorized); err != nil {
		return fmt.Errorf("start SSH server of %s: %w", m.Name, err)
	}
	return nil
}

const prepare = `set -e
rm -f /opt/slipway/bin/* /etc/ssh/ssh_host_*
ssh-keygen -q -A
mkdir -p -m 700 /root/.ssh
cat >/root/.ssh/authorized_keys
systemctl start ssh.service`

// stands waits until systemd says that the machine has booted.
func stands(ctx context.Context, machines *machine.Local, m Machine) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		said, err := do(ctx, machines, m, "systemctl is-system-running", "")
		if err == nil && said == "running" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("it says %q", said), err)
		case <-tick.C:
		}
	}
}

// do runs a script in the machine and returns what it says.
func do(ctx context.Context, machines *machine.Local, m Machine, script, in string) (said string, err error) {
	var out, complaint bytes.Buffer
	code, err := machines.Exec(ctx, m.Cluster, m.Name, machine.Command{
		Args: []string{"sh", "-c", script}, Stdin: strings.NewReader(in), Stdout: &out, Stderr: &complaint,
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("it ended with %d: %s", code, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(out.String()), err
}
