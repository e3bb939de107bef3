// SPDX-License-Identifier: Apache-2.0

// Package tickets makes the ticket of an admitted machine: its plan, the files that it needs, and for a control plane the secrets that
// all control planes share. It does not decide which machines are admitted, or with which role: the machine's record says that.
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
	ID      string // the cluster's ID
	Desired control.Desired
	// Roster returns the newest signed roster, or nil if there is none yet.
	Roster func() []byte
	Root   string // prefix of every path on this machine; for tests
}

// For makes the ticket of the machine with this record. The caller must encrypt secret, which only control planes get. After an error
// the results must not be used.
func (m Maker) For(ctx context.Context, r admission.Node) (t plan.Ticket, secret []plan.TicketFile, err error) {
	if err := ctx.Err(); err != nil {
		return t, nil, err
	}
	node, want, err := compose.Node(m.Desired.Config, r, planner.Components(m.Desired.Components))
	if err != nil {
		return t, nil, fmt.Errorf("make ticket of %s: %w", r.Name, err)
	}
	t = plan.Ticket{Version: plan.Version, Cluster: m.ID, Plan: want}
	if t.Files, err = m.commonFiles(); err != nil {
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
	secret, err = m.sharedSecrets(want)
	return t, secret, err
}

// commonFiles returns the files of every node: the CAs that it trusts, and the roster.
func (m Maker) commonFiles() ([]plan.TicketFile, error) {
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
		return nil, errors.New("no roster yet")
	}
	return append(files, plan.TicketFile{Path: config.RosterFile, Mode: 0o600, Content: roster}), nil
}

// sharedSecrets returns the keys and certificates that all control planes share: those that are not leaf certificates.
func (m Maker) sharedSecrets(p plan.Plan) (files []plan.TicketFile, err error) {
	for _, e := range p.Entries {
		c, ok := e.Item.(plan.Cert)
		if !ok || c.Want.Kind == pki.Leaf {
			continue
		}
		for path, mode := range map[string]uint32{c.Want.CertPath: 0o644, c.Want.KeyPath: 0o600} {
			if path == "" || path == config.ClusterCA+".crt" || path == config.JoinCA+".crt" {
				continue // among the common files
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
		return plan.TicketFile{}, fmt.Errorf("read file for the machine: %w", err)
	}
	return plan.TicketFile{Path: path, Mode: mode, Content: content}, nil
}
