// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// ReportMachine examines the machine that this runs on, for slipway apply. It changes nothing. The agent's files are below
// stateDir; there may be none.
func ReportMachine(ctx context.Context, stateDir, slipway string, controlPlane bool) (Report, error) {
	found, err := facts.Find()
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Slipway: slipway, Arch: Arch(), Now: time.Now().UTC(), Facts: found, Lock: string(lock.Free),
	}
	if r.Hostname, err = os.Hostname(); err != nil {
		return Report{}, err
	}
	if r.Addresses, err = addresses(); err != nil {
		return Report{}, err
	}
	state := filepath.Join(stateDir, "state")
	if _, err := os.Stat(state); err == nil {
		journal, err := lock.Open(filepath.Join(state, "lock"))
		if err != nil {
			return Report{}, err
		}
		now := journal.State()
		r.Lock, r.Cluster, r.Node = string(now.Phase), now.Cluster, now.Node
	}
	r.Findings = RunNode(ctx, NodeOptions{
		Root: stateDir, ControlPlane: controlPlane, Ours: r.Lock != string(lock.Free),
	})
	return r, nil
}

// addresses are the machine's IPv4 addresses other than loopback.
func addresses() ([]string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			out = append(out, n.IP.String())
		}
	}
	return out, nil
}
