// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"os/exec"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/machine"
)

// runcPath is the runc of the newest release that the store has; with none, whatever the host has, so that a cluster can be
// taken down when its components are gone.
func (l *Launcher) runcPath(ctx context.Context) string {
	store, err := l.Store()
	if err == nil {
		for _, r := range catalog.Releases() {
			if bundle, ok, err := artifact.Lookup(ctx, store, r); ok && err == nil {
				return store.Path(bundle.Binaries["runc"].Digest)
			}
		}
	}
	path, _ := exec.LookPath("runc")
	return path
}

func (l *Launcher) stopProxy(string) error { return nil }

func (u *up) reachable(context.Context, *machine.Local, string) error { return nil }

func (u *up) preflight(context.Context) error { return nil }

func (u *up) agentSocket(m *machine.Local, name string) string {
	return m.RunDir(u.cluster.Name, name) + "/agent.sock"
}
