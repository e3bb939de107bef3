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
