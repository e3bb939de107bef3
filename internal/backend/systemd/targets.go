// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/reconcile"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// SetNodeReady starts or stops slipway.target. Services that need a working node can use
// WantedBy=slipway.target: they are started when the target is reached.
func (h *Host) SetNodeReady(ctx context.Context, ready bool) error {
	var services []string
	for _, u := range h.units.All() {
		u.mu.Lock()
		if u.rec.Unit.Name != "" && !u.rec.Unit.Oneshot { // the target would run it again
			services = append(services, u.service)
		}
		u.mu.Unlock()
	}
	return h.setTarget(ctx, h.nodeTarget(), render.NodeTargetUnit(services), ready)
}

// SetClusterReady starts or stops slipway-cluster.target.
func (h *Host) SetClusterReady(ctx context.Context, ready bool) error {
	return h.setTarget(ctx, h.conf.Prefix+"cluster.target", render.ClusterTargetUnit(h.nodeTarget()), ready)
}

func (h *Host) nodeTarget() string { return strings.TrimSuffix(h.conf.Prefix, "-") + ".target" }

// setTarget starts or stops a target if it is not in that state already.
func (h *Host) setTarget(ctx context.Context, target string, text []byte, ready bool) error {
	path := filepath.Join(unitDir, target)
	have, err := os.ReadFile(path)
	known := err == nil
	if ready && (!known || string(have) != string(text)) {
		if err := durable.WriteFile(path, 0o644, text); err != nil {
			return fmt.Errorf("write unit file: %w", err)
		}
		if known {
			if err := h.bus.reload(ctx); err != nil {
				return err
			}
		}
	}
	s, err := h.bus.read(ctx, target)
	if err != nil || (s.active == "active") == ready {
		return err
	}
	change := h.bus.stop
	if ready {
		if s.stale || s.load != "loaded" {
			if err := h.bus.reload(ctx); err != nil {
				return err
			}
		}
		change = h.bus.start
	}
	result, err := change(ctx, target)
	if err != nil {
		return err
	}
	select {
	case r := <-result:
		if r != "done" {
			return fmt.Errorf("change %s: job result %s", target, r)
		}
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), fmt.Errorf("change %s: no result yet", target))
	}
}

// targets are what other units of the machine can wait for; [Host] has them.
type targets interface {
	SetNodeReady(ctx context.Context, ready bool) error
	SetClusterReady(ctx context.Context, ready bool) error
}

var _ targets = (*Host)(nil)

const (
	// targetsGrace is how long a new agent may take to find out the state of the node. Until then it leaves the targets as
	// the previous agent left them.
	targetsGrace = 30 * time.Second
	targetsLimit = 20 * time.Second
	itemDNS      = "control/dns" // the end-to-end check, on the boards of control planes
)

// KeepTargets starts and stops the targets by what the board says, until ctx ends.
func (h *Host) KeepTargets(ctx context.Context, board *reconcile.Board) error {
	return keepTargets(ctx, board, h, h.conf.Log)
}

func keepTargets(ctx context.Context, board *reconcile.Board, t targets, log *slog.Logger) error {
	sub := board.Subscribe()
	defer sub.End()
	settled, grace, failed := false, time.NewTimer(targetsGrace), false
	defer grace.Stop()
	retry := time.NewTicker(5 * time.Second)
	defer retry.Stop()
	var set [2]bool
	for known := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-grace.C:
			settled = true
		case <-retry.C:
			if !failed {
				continue
			}
		case <-sub.C:
			sub.Take()
		}
		items, _ := board.All()
		now := ready(items)
		if settled = settled || now[0]; !settled || known && now == set && !failed {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, targetsLimit)
		err := t.SetNodeReady(limited, now[0])
		if err == nil {
			err = t.SetClusterReady(limited, now[1])
		}
		cancel()
		if failed = err != nil; failed && ctx.Err() == nil {
			log.Warn("targets not changed, trying again", "ready", now[0], "error", err)
		}
		known, set = true, now
	}
}

// ready reports whether this node is ready, and whether the whole cluster is, as far as this node knows.
func ready(items []reconcile.Status) (out [2]bool) {
	kinds := []plan.Kind{
		plan.KindDir, plan.KindFile, plan.KindArtifact, plan.KindMount, plan.KindCert, plan.KindKubeconfig, plan.KindUnit, plan.KindStaticPod, plan.KindPrecondition,
	}
	node, all, units, checked := true, true, 0, false
	for _, s := range items {
		kind, _, _ := strings.Cut(s.Ref, "/")
		ok := s.Phase == reconcile.Ready
		all = all && ok
		if slices.Contains(kinds, plan.Kind(kind)) {
			node = node && ok
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
