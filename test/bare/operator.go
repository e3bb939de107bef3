// SPDX-License-Identifier: Apache-2.0

package bare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Config describes an operator. All fields are required.
type Config struct {
	Home    string // an empty directory; the caller creates and removes it
	Root    string // slipway's root directory on this host; the operator uses only its component store
	Cluster string // the operator uses its network
	Binary  string // path of slipway
}

// Operator runs slipway in the machines' network, with its own SSH key and home directory.
type Operator struct {
	Config
	Public string // its public key, a line of authorized_keys
}

// NewOperator creates the key and the directories.
func NewOperator(ctx context.Context, c Config) (Operator, error) {
	o := Operator{Config: c}
	for _, dir := range []string{filepath.Join(o.Home, ".ssh"), o.root()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return o, fmt.Errorf("create operator's directory: %w", err)
		}
	}
	if err := os.Symlink(filepath.Join(o.Root, "store"), filepath.Join(o.root(), "store")); err != nil {
		return o, fmt.Errorf("link operator's component store: %w", err)
	}
	key := filepath.Join(o.Home, ".ssh", "id_ed25519")
	if out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		return o, fmt.Errorf("create operator's key: %w: %s", err, out)
	}
	text, err := os.ReadFile(key + ".pub")
	if err != nil {
		return o, fmt.Errorf("read operator's key: %w", err)
	}
	o.Public = string(text)
	return o, nil
}

func (o Operator) root() string { return filepath.Join(o.Home, "state") }

// Path returns the path of a file in the operator's home directory.
func (o Operator) Path(name string) string { return filepath.Join(o.Home, name) }

// Line returns the command line that runs slipway as the operator, in the network namespace of the machines' switch. The switch exists
// after the first machine has booted.
func (o Operator) Line(args ...string) []string {
	network := filepath.Join(o.Root, "machines", o.Cluster, "switch")
	return append([]string{"nsenter", "--net=" + network, "env", "HOME=" + o.Home, "SSH_AUTH_SOCK=", o.Binary, args[0], "--root=" + o.root()}, args[1:]...)
}
