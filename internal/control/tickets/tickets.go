// SPDX-License-Identifier: Apache-2.0

// Package tickets makes what a machine needs that has been let in: its plan, the files that come with it, and for a control plane
// what all of them share. It decides neither who is let in nor as what: that stands in the record it is given.
//
// Read [Maker.For].
package tickets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// Maker makes tickets on a control plane.
type Maker struct {
	ID      string // of the cluster
	Desired control.Desired
	// Roster is the newest signed roster, or nil while there is none.
	Roster func() []byte
	Root   string // in front of every path of this machine; empty but for tests
}

// For makes the ticket of the machine with this record. secret is what must not travel in the open: only control planes get any.
func (m Maker) For(ctx context.Context, r admission.Node) (t plan.Ticket, secret []plan.TicketFile, err error) {
	if err := ctx.Err(); err != nil {
		return t, nil, err
	}
	node, want, err := compose.Node(m.Desired.Config, r, planner.Components(m.Desired.Components))
	if err != nil {
		return t, nil, fmt.Errorf("make ticket of %s: %w", r.Name, err)
	}
	t = plan.Ticket{Version: plan.Version, Cluster: m.ID, Plan: want}
	if t.Files, err = m.common(); err != nil {
		return t, nil, fmt.Errorf("make ticket of %s: %w", r.Name, err)
	}
	if !slices.Contains(node.Pool.Roles, config.RoleControlPlane) {
		return t, nil, nil
	}
	doc := m.Desired.Document
	doc.Self = r.Name
	if t.Control, err = json.Marshal(doc); err != nil {
		return t, nil, err
	}
	secret, err = m.shared(want)
	return t, secret, err
}

// common is what every node is given: whom to trust, and where the others are.
func (m Maker) common() ([]plan.TicketFile, error) {
	var files []plan.TicketFile
	for _, path := range []string{config.ClusterCA + ".crt", config.JoinCA + ".crt"} {
		f, err := m.read(path, 0o644)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	roster := m.Roster()
	if roster == nil {
		return nil, errors.New("there is no roster yet")
	}
	return append(files, plan.TicketFile{Path: config.RosterFile, Mode: 0o600, Content: roster}), nil
}

// shared is the key material that all control planes have in common: what is no leaf.
func (m Maker) shared(p plan.Plan) (files []plan.TicketFile, err error) {
	for _, e := range p.Entries {
		c, ok := e.Item.(plan.Cert)
		if !ok || c.Want.Kind == pki.Leaf {
			continue
		}
		for path, mode := range map[string]uint32{c.Want.CertPath: 0o644, c.Want.KeyPath: 0o600} {
			if path == "" || path == config.ClusterCA+".crt" || path == config.JoinCA+".crt" {
				continue // common to all nodes
			}
			f, err := m.read(path, mode)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
	}
	return files, nil
}

func (m Maker) read(path string, mode uint32) (plan.TicketFile, error) {
	content, err := os.ReadFile(m.Root + path)
	if err != nil {
		return plan.TicketFile{}, fmt.Errorf("read what the machine is given: %w", err)
	}
	return plan.TicketFile{Path: path, Mode: mode, Content: content}, nil
}
