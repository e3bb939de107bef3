// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/machine"
)

// Bare boots a machine with systemd, an SSH server of its own, and nothing of slipway, as somebody else would. The key may log in as
// root. The host must have the package openssh-server.
func (c *Cluster) Bare(i int, authorized string) *Cluster {
	c.T.Helper()
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		c.T.Fatalf("%v: apt-get install openssh-server", err)
	}
	local, err := machine.New(machine.Config{Root: Root, Runc: Component(c.T, "runc"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.T.Fatal(err)
	}
	name := fmt.Sprintf("%s-bare-%d", c.Name, i)
	_, err = local.Ensure(c.T.Context(), machine.Spec{Cluster: c.Name, Name: name, Index: extras + i, Binary: c.Bin, Init: machine.Systemd, Bare: true})
	if err != nil {
		c.T.Fatal(err)
	}
	m := c.On(name)
	Until(c.T, 30*time.Second, "systemd of "+name+" stands", func() error {
		if r := m.TryExec(nil, "systemctl is-system-running"); !strings.Contains(r.Out, "running") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	m.ExecIn(strings.NewReader(authorized), `set -e
rm -f /opt/slipway/bin/* /etc/ssh/ssh_host_*
ssh-keygen -q -A
mkdir -p -m 700 /root/.ssh
cat >/root/.ssh/authorized_keys
systemctl start ssh.service`)
	return m
}

// Operator is somebody at a computer in the machines' network, with an SSH key and folders of their own.
type Operator struct {
	*Cluster
	Home   string
	Public string // key, as in authorized_keys
}

// NewOperator has the component store of this host.
func (c *Cluster) NewOperator() Operator {
	c.T.Helper()
	o := Operator{Cluster: c, Home: c.T.TempDir()}
	if err := os.MkdirAll(filepath.Join(o.Home, ".ssh"), 0o700); err != nil {
		c.T.Fatal(err)
	}
	if err := os.MkdirAll(o.root(), 0o700); err != nil {
		c.T.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(Root, "store"), filepath.Join(o.root(), "store")); err != nil {
		c.T.Fatal(err)
	}
	key := filepath.Join(o.Home, ".ssh", "id_ed25519")
	if r := Run(c.T, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); r.Code != 0 {
		c.T.Fatal(r)
	}
	text, err := os.ReadFile(key + ".pub")
	if err != nil {
		c.T.Fatal(err)
	}
	o.Public = string(text)
	return o
}

func (o Operator) root() string { return filepath.Join(o.Home, "state") }

// Path is a file of the operator's.
func (o Operator) Path(name string) string { return filepath.Join(o.Home, name) }

// args are those of slipway at the operator's computer: a process in the network of the machines' switch.
func (o Operator) args(args []string) []string {
	pin := filepath.Join(Root, "machines", o.Name, "switch")
	return append([]string{"--net=" + pin, "env", "HOME=" + o.Home, "SSH_AUTH_SOCK=", o.Bin, args[0], "--root=" + o.root()}, args[1:]...)
}

// Slipway runs a sub-command at the operator's computer.
func (o Operator) Slipway(args ...string) Result {
	o.T.Helper()
	return run(o.T, 6*time.Minute, nil, "nsenter", o.args(args)...)
}

// Start begins a sub-command that the test wants to disturb.
func (o Operator) Start(args ...string) Running {
	o.T.Helper()
	file, err := os.CreateTemp(o.T.TempDir(), "said")
	if err != nil {
		o.T.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("nsenter", o.args(args)...) //nolint:noctx // the test signals it, and waits for it
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
