// SPDX-License-Identifier: Apache-2.0

// Package bare boots local machines with systemd and an SSH server, but without slipway, and creates the operator who logs in to them. The
// caller removes the machines. It serves tests and the benchmark; shipping code never imports it.
//
// Read [Boot] and [Operator] first.
//
//	operator, err := bare.NewOperator(ctx, bare.Config{Home: dir, Root: "/var/lib/slipway", Cluster: "far", Binary: "bin/slipway"})
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

// Machine describes a machine to boot.
type Machine struct {
	Cluster    string // the machine uses its network, and slipway down of it removes the machine
	Name       string
	Index      int
	Binary     string // path of slipway, which boots the machine and is deleted there afterwards
	Authorized string // SSH key that may log in as root, a line of authorized_keys; may be empty
}

const (
	bootLimit = 2 * time.Minute // far longer than a boot takes, even on a loaded host
	askEvery  = 50 * time.Millisecond
)

// Boot boots a machine and returns when its SSH server has started. The host must have the package openssh-server.
func Boot(ctx context.Context, machines *machine.Local, m Machine) error {
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		return fmt.Errorf("find SSH server: %w (run make preflight)", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if _, err := machines.Ensure(ctx, machine.Spec{
		Cluster: m.Cluster, Name: m.Name, Index: m.Index, Binary: m.Binary, Init: machine.Systemd, Bare: true,
	}); err != nil {
		return err
	}
	if err := booted(ctx, machines, m); err != nil {
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

// booted waits until systemd reports that the machine has booted.
func booted(ctx context.Context, machines *machine.Local, m Machine) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		state, err := do(ctx, machines, m, "systemctl is-system-running", "")
		if err == nil && state == "running" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("its state is %q", state), err)
		case <-tick.C:
		}
	}
}

// do runs a script in the machine and returns its standard output.
func do(ctx context.Context, machines *machine.Local, m Machine, script, in string) (output string, err error) {
	var out, complaint bytes.Buffer
	code, err := machines.Exec(ctx, m.Cluster, m.Name, machine.Command{
		Args: []string{"sh", "-c", script}, Stdin: strings.NewReader(in), Stdout: &out, Stderr: &complaint,
	})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(out.String()), err
}
