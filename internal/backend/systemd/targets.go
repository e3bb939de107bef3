// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
	render "github.com/slipway-project/slipway/internal/render/systemd"
)

// NodeWorks has the handle of this node, slipway.target, reached or not. Services that only make sense on a node that works
// hang on it (WantedBy=slipway.target): they are started when it is reached.
func (h *Host) NodeWorks(ctx context.Context, works bool) error {
	var services []string
	for _, u := range h.units.All() {
		u.mu.Lock()
		if u.rec.Unit.Name != "" && !u.rec.Unit.Oneshot { // what has run to its end would be run again
			services = append(services, u.service)
		}
		u.mu.Unlock()
	}
	return h.reach(ctx, h.nodeTarget(), render.NodeTargetUnit(services), works)
}

// ClusterWorks has the handle of the cluster, slipway-cluster.target, reached or not.
func (h *Host) ClusterWorks(ctx context.Context, works bool) error {
	return h.reach(ctx, h.conf.Prefix+"cluster.target", render.ClusterTargetUnit(h.nodeTarget()), works)
}

func (h *Host) nodeTarget() string { return strings.TrimSuffix(h.conf.Prefix, "-") + ".target" }

// reach starts or stops a target, unless that is done.
func (h *Host) reach(ctx context.Context, target string, text []byte, works bool) error {
	path := filepath.Join(UnitDir, target)
	have, err := os.ReadFile(path)
	known := err == nil
	if works && (!known || string(have) != string(text)) {
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
	if err != nil || (s.active == "active") == works {
		return err
	}
	change := h.bus.stop
	if works {
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
			return fmt.Errorf("reach %s: systemd says %s", target, r)
		}
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), fmt.Errorf("reach %s: it takes too long", target))
	}
}
