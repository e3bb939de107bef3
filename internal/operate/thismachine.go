// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
)

// MachineIdentity is how the machine that this program runs on is identified.
type MachineIdentity struct {
	Key     pin.Pin    `json:"key"`               // of the machine
	Address string     `json:"address,omitempty"` // empty: it has none of its own
	Phase   lock.Phase `json:"lock"`
	Cluster string     `json:"cluster,omitempty"`
	Node    string     `json:"node,omitempty"`
}

// Identity asks the agent at that socket of this machine.
func Identity(ctx context.Context, socket string) (id MachineIdentity, err error) {
	if !agentclient.IsSocket(socket) {
		return id, fmt.Errorf("no agent is running on this machine (no %s): run this on the machine in question", socket)
	}
	t := agentclient.Target{Machine: "this machine", Dial: agentclient.Socket(socket)}
	err = t.With(ctx, func(ctx context.Context, a *agentclient.Agent) error {
		i, err := a.Info(ctx)
		id = MachineIdentity{Key: i.Key, Phase: i.Phase, Cluster: i.Cluster, Node: i.Node}
		if i.Facts.Address.IsValid() {
			id.Address = i.Facts.Address.String()
		}
		return err
	})
	return id, err
}

// CreateInitSecret creates the secret by which this machine recognizes its initializer, once. The machine stores only its hash,
// below stateDir. With replace, an unused secret is invalidated and replaced.
func CreateInitSecret(ctx context.Context, socket, stateDir string, replace bool) (secret string, id MachineIdentity, err error) {
	if id, err = Identity(ctx, socket); err != nil {
		return "", id, err
	}
	if id.Phase != lock.Free {
		state := string(id.Phase)
		if id.Node != "" {
			state = fmt.Sprintf("node %s of cluster %s", id.Node, id.Cluster)
		}
		return "", id, fmt.Errorf("create init secret: this machine is %s: only a free machine can be initialized (slipway node reset)", state)
	}
	path := filepath.Join(stateDir, provider.InitSecret)
	switch _, err := os.Lstat(path); {
	case err == nil && !replace:
		return "", id, fmt.Errorf("create init secret: the machine has one already: use it, or invalidate it with --replace (%s)", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", id, fmt.Errorf("create init secret: %w", err)
	}
	secret, file := initserver.NewSecret()
	if err := durable.WriteFile(path, 0o600, file); err != nil {
		return "", id, fmt.Errorf("create init secret: %w", err)
	}
	return secret, id, nil
}

// JoinOptions say which cluster this machine is to join.
type JoinOptions struct {
	Socket string // of the machine's agent
	agentclient.JoinRequest
	Wait    bool // until the machine is a member
	Timeout time.Duration
	Report  report.Func
}

// Check finds invalid options before any request is sent.
func (o JoinOptions) Check() error {
	if len(o.Endpoints) == 0 {
		return errors.New("name a join service: --endpoint ADDRESS:9440")
	}
	for _, e := range o.Endpoints {
		if a, err := netip.ParseAddrPort(e); err != nil || a.Port() == 0 {
			return fmt.Errorf("--endpoint %q: use ADDRESS:PORT, such as 10.0.0.4:9440", e)
		}
	}
	return CheckPin("--pin", string(o.Pin))
}

// CheckPin checks the form of a pin that was passed in that flag.
func CheckPin(flag, text string) error {
	if _, err := pin.Parse(text); err != nil {
		return fmt.Errorf("%s %q: use sha256: and 64 hex digits", flag, text)
	}
	return nil
}

// Join tells this machine's agent which cluster to join. The agent stores that and keeps trying on its own.
func Join(ctx context.Context, o JoinOptions) (m agentclient.Membership, err error) {
	if err := o.Check(); err != nil {
		return m, err
	}
	if !agentclient.IsSocket(o.Socket) {
		return m, fmt.Errorf("join a cluster: no agent is running on this machine (no %s): run this on the machine that is to join", o.Socket)
	}
	t := agentclient.Target{Machine: "this machine", Dial: agentclient.Socket(o.Socket)}
	err = t.With(ctx, func(ctx context.Context, a *agentclient.Agent) error {
		if err := a.Join(ctx, o.JoinRequest); err != nil {
			return fmt.Errorf("join a cluster: %w", agentclient.Plain(errors.Unwrap(err)))
		}
		if !o.Wait {
			i, err := a.Info(ctx)
			m = i.Membership
			return err
		}
		var err error
		m, err = awaitCommitted(ctx, a, o)
		return err
	})
	return m, err
}

// awaitCommitted follows the agent until the machine belongs to a cluster.
func awaitCommitted(ctx context.Context, a *agentclient.Agent, o JoinOptions) (agentclient.Membership, error) {
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	to := o.Report.Since(time.Now())
	var last agentclient.Membership
	reason := ""
	// The watch reports items, not the commit: check after each event, and every second.
	committed := func() bool {
		i, err := a.Info(limited)
		if err == nil {
			last = i.Membership
		}
		return err == nil && i.Phase == lock.Committed
	}
	for !committed() {
		second, cancel := context.WithTimeout(limited, time.Second)
		err := a.Watch(second, func(s reconcile.Status, _ bool, _ int) bool {
			to(report.Item("", s))
			if s.Phase != reconcile.Ready {
				reason = cmp.Or(s.Error, s.What)
			}
			return committed()
		})
		cancel()
		if limited.Err() != nil {
			break
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return last, err
		}
	}
	switch {
	case last.Phase == lock.Committed:
		return last, nil
	case ctx.Err() != nil:
		return last, ctx.Err()
	}
	return last, &report.Error{Kind: report.TimedOut, Err: fmt.Errorf("the machine has not joined after %s (%s); its agent keeps trying: see slipway logs agent",
		o.Timeout, cmp.Or(reason, string(last.Phase)))}
}
