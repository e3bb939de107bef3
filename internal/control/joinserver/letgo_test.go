// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Only the end of a removal lets a machine go: while it lasts, its etcd may still count, and the removal may be taken back.
func TestLetGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := controlPlane(w)
	m.join(t)
	ask := func(limit time.Duration) (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return joinclient.LetGo(ctx, joinclient.SyncConfig{
			Endpoints: func() []netip.AddrPort { return []netip.AddrPort{w.endpoint} }, Pin: w.pin, Key: m.key, Node: "dev-main-1", Slipway: "0.3.0",
			Log: slog.New(slog.DiscardHandler), From: func() netip.Addr { return m.address },
		})
	}
	if gone, err := ask(time.Minute); gone || err != nil {
		t.Errorf("a node of the cluster: %t, %v", gone, err)
	}
	if _, err := w.registry.UpdateNode(t.Context(), "dev-main-1", func(n *admission.Node) error { n.Removing = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if gone, err := ask(time.Minute); gone || err == nil || !strings.Contains(err.Error(), "is being removed") {
		t.Errorf("while it is being removed: %t, %v", gone, err)
	}
	if err := w.registry.DeleteNode(t.Context(), "dev-main-1"); err != nil {
		t.Fatal(err)
	}
	if gone, err := ask(time.Minute); !gone || err != nil {
		t.Errorf("after its removal: %t, %v", gone, err)
	}
}
