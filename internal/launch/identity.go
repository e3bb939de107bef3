// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/initserver"
)

// Identity is who the machine is that this program runs on.
type Identity struct {
	Key     string `json:"key"`               // pin of the machine's key
	Address string `json:"address,omitempty"` // empty: it has none of its own
	Lock    string `json:"lock"`              // free, claimed or committed
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
}

// Identity asks the machine's own agent.
func (l *Launcher) Identity(ctx context.Context, socket string) (id Identity, err error) {
	if !isSocket(socket) {
		return id, fmt.Errorf("no agent runs on this machine (no %s): run this on the machine that is meant", socket)
	}
	err = withAgent(ctx, target{"this machine", toSocket(socket)}, func(ctx context.Context, a *Agent) error {
		r, err := a.client.Facts(ctx, &nodev1.FactsRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("ask the agent for facts: %w", plain(err))
		}
		facts, err := machine.DecodeFacts(r.GetFacts())
		if err != nil {
			return fmt.Errorf("ask the agent for facts: %w", err)
		}
		id = Identity{Key: r.GetKey(), Lock: r.GetLock(), Cluster: r.GetCluster(), Node: r.GetNode()}
		if facts.Address.IsValid() {
			id.Address = facts.Address.String()
		}
		return nil
	})
	return id, err
}

// CreateInitSecret makes the secret by which this machine will know its initialiser, once; the machine keeps its hash only. replace:
// another secret that nobody has used is worthless from then on.
func (l *Launcher) CreateInitSecret(ctx context.Context, socket string, replace bool) (secret string, id Identity, err error) {
	if id, err = l.Identity(ctx, socket); err != nil {
		return "", id, err
	}
	if id.Lock != freePhase {
		return "", id, fmt.Errorf("make init secret: this machine is %s: only one that belongs to nobody takes an init (slipway node reset)", id.state())
	}
	path := filepath.Join(l.Root, machineSecret)
	switch _, err := os.Lstat(path); {
	case err == nil && !replace:
		return "", id, fmt.Errorf("make init secret: the machine has one already: use that, or make it worthless with --replace (%s)", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", id, fmt.Errorf("make init secret: %w", err)
	}
	secret, file := initserver.NewSecret()
	if err := durable.WriteFile(path, 0o600, file); err != nil {
		return "", id, fmt.Errorf("make init secret: %w", err)
	}
	return secret, id, nil
}

func (i Identity) state() string {
	if i.Node != "" {
		return fmt.Sprintf("node %s of cluster %s", i.Node, i.Cluster)
	}
	return i.Lock
}
