// SPDX-License-Identifier: Apache-2.0

package bare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Config is what an operator begins with. All fields are required.
type Config struct {
	Home    string // an empty folder; who makes it takes it away
	Root    string // slipway's on this host: the operator has its component store, and nothing else of it
	Cluster string // whose network the operator's computer is in
	Binary  string // slipway
}

// Operator is somebody at a computer in the machines' network, with an SSH key and folders of their own.
type Operator struct {
	Config
	Public string // key, as in authorized_keys
}

// NewOperator makes the key and the folders.
func NewOperator(ctx context.Context, c Config) (Operator, error) {
	o := Operator{Config: c}
	for _, folder := range []string{filepath.Join(o.Home, ".ssh"), o.root()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return o, fmt.Errorf("make operator's folder: %w", err)
		}
	}
	if err := os.Symlink(filepath.Join(o.Root, "store"), filepath.Join(o.root(), "store")); err != nil {
		return o, fmt.Errorf("give operator the component store: %w", err)
	}
	key := filepath.Join(o.Home, ".ssh", "id_ed25519")
	if said, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		return o, fmt.Errorf("make operator's key: %w: %s", err, said)
	}
	text, err := os.ReadFile(key + ".pub")
	if err != nil {
		return o, fmt.Errorf("read operator's key: %w", err)
	}
	o.Public = string(text)
	return o, nil
}

func (o Operator) root() string { return filepath.Join(o.Home, "state") }

// Path is a file of the operator's.
func (o Operator) Path(name string) string { return filepath.Join(o.Home, name) }

// Line is the command line of slipway at the operator's computer: a process in the network of the machines' switch, which is there once
// the first of them has booted.
func (o Operator) Line(args ...string) []string {
	network := filepath.Join(o.Root, "machines", o.Cluster, "switch")
	return append([]string{"nsenter", "--net=" + network, "env", "HOME=" + o.Home, "SSH_AUTH_SOCK=", o.Binary, args[0], "--root=" + o.root()}, args[1:]...)
}
