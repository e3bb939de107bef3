// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// Diff lists the steps that lie between the machine and a plan, and the items of which nobody knows the state. It observes
// and does nothing; while the loop is at work the answer is a moment's.
func (a *Agent) Diff(ctx context.Context, want plan.Plan) (steps, unknown []plan.Step, err error) {
	now := a.current()
	before := merge(now.Want.Plan, now.Before.Plan)
	have := plan.Observed{}
	look := func(e plan.Entry) {
		s, err := a.cfg.Host.Observe(ctx, e)
		switch {
		case err != nil:
			unknown = append(unknown, plan.Step{Ref: e.Ref, Why: err.Error()})
		case s.Existence == plan.Unknown && e.Item.Kind() != plan.KindPrecondition:
			unknown = append(unknown, plan.Step{Ref: e.Ref, Why: s.Detail})
		default:
			have[e.Ref] = s
		}
	}
	for _, e := range plan.Removed(want, before) {
		look(e)
	}
	stepped := map[plan.Ref]bool{}
	for _, e := range want.Entries { // in order: a unit can be observed only after its inputs
		look(e)
		restarts(e, have, stepped)
		if _, ok := plan.Next(e, have[e.Ref]); ok {
			stepped[e.Ref] = true
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
	return plan.Diff(want, before, have), unknown, nil
}

// restarts marks a unit whose input is about to change: what lies on the disk now does not show it yet.
func restarts(e plan.Entry, have plan.Observed, stepped map[plan.Ref]bool) {
	s := have[e.Ref]
	if s.Existence != plan.Present || !s.Matches {
		return
	}
	for _, in := range plan.Inputs(e.Item) {
		if stepped[in] {
			s.Matches, s.Detail = false, "its input "+in.String()+" changes"
			have[e.Ref] = s
			return
		}
	}
}

// Diff translates between the wire and [Agent.Diff].
func (s *service) Diff(ctx context.Context, r *nodev1.DiffRequest) (*nodev1.DiffReply, error) {
	want, err := plan.Decode(r.GetPlan())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	steps, unknown, err := s.agent.Diff(ctx, want)
	if err != nil {
		return nil, err
	}
	return &nodev1.DiffReply{
		Steps: wireSteps(steps), Unknown: wireSteps(unknown), ControlChanged: !bytes.Equal(s.agent.current().Control, r.GetControl()),
	}, nil
}

func wireSteps(steps []plan.Step) []*nodev1.Step {
	var out []*nodev1.Step
	for _, s := range steps {
		out = append(out, &nodev1.Step{Verb: string(s.Verb), Ref: s.Ref.String(), Why: s.Why})
	}
	return out
}
