// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Difference is what lies between a node and a plan.
type Difference struct {
	Steps   []Change `json:"steps"`
	Unknown []Change `json:"unknown,omitempty"` // items of which nobody knows the state; they have no verb
	Objects bool     `json:"objects"`           // the cluster's own objects or the machines' records differ
}

// Change is a step as it is shown.
type Change struct {
	Verb string `json:"verb,omitempty"`
	Ref  string `json:"ref"`
	Why  string `json:"why"`
}

// None reports whether there is nothing to do and nothing unknown.
func (d Difference) None() bool { return len(d.Steps) == 0 && len(d.Unknown) == 0 && !d.Objects }

// diffLimit bounds the look at all items of a plan, each of which takes milliseconds.
const diffLimit = time.Minute

// Diff asks the node's agent what applying the plan would do. Nothing is done.
func (l *Launcher) Diff(ctx context.Context, p Planned) (Difference, error) {
	if len(p.Assumed) > 0 {
		return Difference{}, fmt.Errorf("compare with the machine: %s: run slipway up --name %s first", strings.Join(p.Assumed, "; "), p.Cluster.Name)
	}
	wire, err := plan.Encode(p.Plan)
	if err != nil {
		return Difference{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, diffLimit)
	defer cancel()
	all, err := l.survey(ctx, p.Cluster.Config)
	if err != nil {
		return Difference{}, err
	}
	defer all.close()
	d, err := all.decide(p.Cluster.Config, p.Node.Name, p.have)
	if err != nil {
		return Difference{}, err
	}
	agent, err := dialAgent(p.agent)
	if err != nil {
		return Difference{}, err
	}
	defer agent.Close()
	r, err := agent.client.Diff(ctx, &nodev1.DiffRequest{Plan: wire, Control: d.doc}, grpc.WaitForReady(true))
	if err != nil {
		return Difference{}, fmt.Errorf("compare with the machine: %w", err)
	}
	return Difference{Steps: changes(r.GetSteps()), Unknown: changes(r.GetUnknown()), Objects: r.GetControlChanged()}, nil
}

func changes(steps []*nodev1.Step) []Change {
	out := make([]Change, 0, len(steps))
	for _, s := range steps {
		out = append(out, Change{s.GetVerb(), s.GetRef(), s.GetWhy()})
	}
	return out
}
