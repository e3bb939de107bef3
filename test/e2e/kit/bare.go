// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/test/bare"
)

// Bare boots a machine with systemd, an SSH server of its own, and nothing of slipway, as somebody else would. The key may log in as
// root. The host must have the package openssh-server.
func (c *Cluster) Bare(i int, authorized string) *Cluster {
	c.T.Helper()
	local, err := machine.New(machine.Config{Root: Root, Runc: Component(c.T, "runc"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.T.Fatal(err)
	}
	name := fmt.Sprintf("%s-bare-%d", c.Name, i)
	if err := bare.Boot(c.T.Context(), local, bare.Machine{
		Cluster: c.Name, Name: name, Index: extras + i, Binary: c.Bin, Authorized: authorized,
	}); err != nil {
		c.T.Fatal(err)
	}
	return c.On(name)
}

// Operator is somebody at a computer in the machines' network, with an SSH key and folders of their own.
type Operator struct {
	*Cluster
	who bare.Operator

	Home   string
	Public string // key, as in authorized_keys
}

// NewOperator has the component store of this host.
func (c *Cluster) NewOperator() Operator {
	c.T.Helper()
	who, err := bare.NewOperator(c.T.Context(), bare.Config{Home: c.T.TempDir(), Root: Root, Cluster: c.Name, Binary: c.Bin})
	if err != nil {
		c.T.Fatal(err)
	}
	return Operator{Cluster: c, who: who, Home: who.Home, Public: who.Public}
}

// Path is a file of the operator's.
func (o Operator) Path(name string) string { return o.who.Path(name) }

// Slipway runs a sub-command at the operator's computer.
func (o Operator) Slipway(args ...string) Result {
	o.T.Helper()
	line := o.who.Line(args...)
	return run(o.T, 6*time.Minute, nil, line[0], line[1:]...)
}

// Start begins a sub-command that the test wants to disturb.
func (o Operator) Start(args ...string) Running {
	o.T.Helper()
	file, err := os.CreateTemp(o.T.TempDir(), "said")
	if err != nil {
		o.T.Fatal(err)
	}
	defer file.Close()
	line := o.who.Line(args...)
	cmd := exec.Command(line[0], line[1:]...) //nolint:noctx // the test signals it, and waits for it
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		o.T.Fatal(err)
	}
	o.T.Cleanup(func() { _ = cmd.Process.Kill() })
	return Running{cmd, file.Name()}
}

// Address is the machine's in the cluster's network.
func (c *Cluster) Address() string {
	c.T.Helper()
	f := strings.Fields(c.Exec("ip -4 -oneline address show eth0"))
	before, _, _ := strings.Cut(f[3], "/")
	return before
}
