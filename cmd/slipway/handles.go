// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// handles are what others on the machine can wait for. A supervisor may have them.
type handles interface {
	SetNodeReady(ctx context.Context, works bool) error
	SetClusterReady(ctx context.Context, works bool) error
}

const (
	// A new agent finds out how the node is, and until then leaves the handles as the one before it has left them.
	handleGrace = 30 * time.Second
	handleLimit = 20 * time.Second
	itemDNS     = "control/dns" // the check from end to end, on the boards of control planes
)

// keepHandles has the handles say what the board says, until ctx ends.
func keepHandles(ctx context.Context, board *reconcile.Board, h handles, log *slog.Logger) error {
	sub := board.Subscribe()
	defer sub.End()
	settled, first, wrong := false, time.NewTimer(handleGrace), false
	defer first.Stop()
	again := time.NewTicker(5 * time.Second)
	defer again.Stop()
	var said [2]bool
	for known := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-first.C:
			settled = true
		case <-again.C:
			if !wrong {
				continue
			}
		case <-sub.C:
			sub.Take()
		}
		items, _ := board.All()
		now := works(items)
		if settled = settled || now[0]; !settled || known && now == said && !wrong {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, handleLimit)
		err := h.SetNodeReady(limited, now[0])
		if err == nil {
			err = h.SetClusterReady(limited, now[1])
		}
		cancel()
		if wrong = err != nil; wrong && ctx.Err() == nil {
			log.Warn("handle of the node not changed, trying again", "works", now[0], "error", err)
		}
		known, said = true, now
	}
}

// works tells whether this node does, and whether the whole cluster does as far as this node knows.
func works(items []reconcile.Status) (out [2]bool) {
	kinds := []plan.Kind{
		plan.KindDir, plan.KindFile, plan.KindArtifact, plan.KindMount, plan.KindCert, plan.KindKubeconfig, plan.KindUnit, plan.KindStaticPod, plan.KindPrecondition,
	}
	node, all, units, checked := true, true, 0, false
	for _, s := range items {
		kind, _, _ := strings.Cut(s.Ref, "/")
		ready := s.Phase == reconcile.Ready
		all = all && ready
		if slices.Contains(kinds, plan.Kind(kind)) {
			node = node && ready
		}
		if plan.Kind(kind) == plan.KindUnit {
			units++
		}
		checked = checked || s.Ref == itemDNS
	}
	out[0] = node && units > 0
	out[1] = out[0] && all && checked
	return out
}
