// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Ticket is what init and join hand a machine: all that makes it a node for good. Like a plan it is a wire format and holds no
// secret; secrets of a control plane travel beside it, sealed, as more files.
type Ticket struct {
	Version int          `json:"version"`
	Cluster string       `json:"cluster"` // the cluster's id; empty for init, which makes it
	Plan    Plan         `json:"plan"`
	Control []byte       `json:"control,omitempty"` // the control role's document
	Files   []TicketFile `json:"files,omitempty"`
}

// TicketFile is a file that a ticket brings. It is written once, before the plan is begun, and belongs to the node from then on: a
// permit, a CA's certificate, the first roster.
type TicketFile struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Content []byte `json:"content"`
}

// DecodeTicket reads a ticket as strictly as Decode reads a plan.
func DecodeTicket(data []byte) (Ticket, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Ticket{}, fmt.Errorf("decode ticket: %w", err)
	}
	if head.Version != Version {
		return Ticket{}, fmt.Errorf("decode ticket: version %d, want %d: use the same slipway on all machines", head.Version, Version)
	}
	var w struct {
		Ticket
		Plan json.RawMessage `json:"plan"`
	}
	if err := strict(data, &w); err != nil {
		return Ticket{}, fmt.Errorf("decode ticket: %w", err)
	}
	p, err := Decode(w.Plan)
	if err != nil {
		return Ticket{}, fmt.Errorf("decode ticket: %w", err)
	}
	t := w.Ticket
	t.Plan = p
	for _, f := range t.Files {
		if err := f.Check(); err != nil {
			return Ticket{}, fmt.Errorf("decode ticket: %w", err)
		}
	}
	return t, nil
}

// DecodeTicketFiles reads the secrets that travel beside a ticket, with the same strictness.
func DecodeTicketFiles(data []byte) ([]TicketFile, error) {
	var files []TicketFile
	if err := strict(data, &files); err != nil {
		return nil, fmt.Errorf("decode files: %w", err)
	}
	for _, f := range files {
		if err := f.Check(); err != nil {
			return nil, fmt.Errorf("decode files: %w", err)
		}
	}
	return files, nil
}

// Check lets files lie only where nodes keep what is theirs.
func (g TicketFile) Check() error {
	ours := slices.ContainsFunc([]string{"/etc/kubernetes/", "/var/lib/slipway/state/"}, func(dir string) bool { return strings.HasPrefix(g.Path, dir) })
	if !ours || path.Clean(g.Path) != g.Path || g.Mode&^0o777 != 0 {
		return fmt.Errorf("file %q with mode %o: a ticket brings files below /etc/kubernetes and /var/lib/slipway/state only", g.Path, g.Mode)
	}
	return nil
}
