// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// elected takes part in the election and leads when it is its turn.
//
//	waiting ──API server──► starting ──another leads──► ready, follows it ─┐
//	                           │ ▲                           │             │
//	                           │ └────────lost, why──────────┼─────────────┤
//	                           └───────its turn──────────────┴──► leads ───┘
func (r Role) elected(ctx context.Context, d Desired) error {
	cluster, err := r.connect(ctx, config.SuperAdminConf, unfenced)
	if err != nil {
		return err
	}
	return cluster.Lead(ctx, d.Self, func(holder, why string) { r.standing(d.Self, holder, why) },
		func(leading context.Context, fence Fence) error {
			err := r.term(leading, d, fence)
			if leading.Err() != nil && ctx.Err() == nil {
				r.withdraw()
			}
			return err
		})
}

// standing puts on the board whom this control plane follows. The leader's own words come from its work.
func (r Role) standing(self, holder, why string) {
	switch {
	case holder == self:
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: "the cluster's objects"}})
	case holder != "":
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Ready, For: wait.For{What: "follows " + holder}})
	default:
		r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: "a leader: " + why, Who: "kube-apiserver"}})
	}
}

// term leads until ctx ends, which is before another may lead.
func (r Role) term(ctx context.Context, d Desired, fence Fence) error {
	r.announceLead(d)
	r.Log.Info("this control plane leads", "node", d.Self)
	return r.lead(ctx, d, fence)
}

// withdraw takes off this board what another answers for from now on.
func (r Role) withdraw() {
	r.Board.Set(reconcile.Status{Ref: itemRole, Phase: reconcile.Starting, For: wait.For{What: "a leader"}})
	statuses, _ := r.Board.All()
	for _, s := range statuses {
		if strings.HasPrefix(s.Ref, itemAddOn("")) || strings.HasPrefix(s.Ref, itemNode("")) || s.Ref == itemDNS || s.Ref == itemRecords {
			r.Board.Drop(s.Ref)
		}
	}
}

// beside runs a service for as long as ctx lasts.
func (r Role) beside(ctx context.Context, d Desired, s Service) error {
	return r.persist(ctx, itemService(s.Name), func(ctx context.Context) error {
		i := &item{board: r.Board, ref: itemService(s.Name), provider: "the agent of this machine"}
		return s.Run(ctx, d, i.say)
	})
}
