// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/core/userdata"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// FirstBoot is a form that a machine reads at its first boot, to join a cluster that stands. The plan it gets then.
func (l *Launcher) FirstBoot(name, summary, file string, form func(d userdata.Data) ([]byte, error)) Form {
	return Form{Name: name, Summary: summary, Render: func(ctx context.Context, p Planned) (render.Rendered, error) {
		if p.Node.Pool.Replacement != spec.ByAddress {
			return render.Rendered{}, fmt.Errorf("node %s is in pool %s, whose machines come in with a token or by a key that is known, and neither belongs in user data: "+
				"let the pool have replacement: ByAddress (slipway spec explain spec.pools.replacement), or use slipway token create and slipway join", p.Plan.Node, p.Node.Pool.Name)
		}
		d, err := l.firstBoot(ctx, p)
		if err != nil {
			return render.Rendered{}, err
		}
		text, err := form(d)
		if err != nil {
			return render.Rendered{}, err
		}
		var r render.Rendered
		r.Add(file, 0o644, string(text))
		for _, e := range p.Plan.Entries {
			r.Omit(e.Ref, "a control plane gives the machine its plan when it joins")
		}
		return r.Finish(p.Plan)
	}}
}

// firstBoot asks a control plane what a machine has to know.
func (l *Launcher) firstBoot(ctx context.Context, p Planned) (userdata.Data, error) {
	var inv *controlv1.InviteReply
	err := l.askControl(ctx, p.Cluster.Name, func(ctx context.Context, c controlv1.ControlClient) (err error) {
		inv, err = c.Invite(ctx, &controlv1.InviteRequest{})
		return err
	})
	if err != nil {
		return userdata.Data{}, fmt.Errorf("ask the cluster how a machine joins: %w: it has to stand first (slipway up, slipway apply)", err)
	}
	wire, err := plan.Encode(p.Plan)
	if err != nil {
		return userdata.Data{}, err
	}
	sum := sha256.Sum256(wire)
	return userdata.Data{
		Cluster: p.Cluster.Name, Node: p.Plan.Node, Plan: "sha256:" + hex.EncodeToString(sum[:]), Pin: pin.Pin(inv.GetPin()), Endpoints: inv.GetEndpoints(),
		Stores: inv.GetStores(), Program: inv.GetProgram(), Agent: string(systemd.AgentService(userdata.Program)),
	}, nil
}
