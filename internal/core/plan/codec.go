// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/slipway-project/slipway/internal/core/strictjson"
)

// MarshalJSON encodes the reference as a string.
func (r Ref) MarshalJSON() ([]byte, error) { return json.Marshal(r.id) }

// UnmarshalJSON decodes a reference. Decode checks that it refers to an entry.
func (r *Ref) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &r.id) }

// MarshalJSON adds the kind of the item.
func (e Entry) MarshalJSON() ([]byte, error) {
	type bare Entry // drops this method
	item, err := json.Marshal(e.Item)
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		bare
		Kind Kind            `json:"kind"`
		Item json.RawMessage `json:"item"`
	}{bare(e), e.Item.Kind(), item})
}

// UnmarshalJSON rejects unknown kinds and unknown fields.
func (e *Entry) UnmarshalJSON(data []byte) error {
	type bare Entry
	var w struct {
		bare
		Kind Kind            `json:"kind"`
		Item json.RawMessage `json:"item"`
	}
	if err := strictjson.Decode(data, &w); err != nil {
		return fmt.Errorf("entry %s: %w", w.Ref, err)
	}
	item, err := decodeItem(w.Kind, w.Item)
	if err != nil {
		return fmt.Errorf("entry %s: %w", w.Ref, err)
	}
	*e = Entry(w.bare)
	e.Item = item
	return nil
}

// decodeItem decodes an item of the given kind. An unknown kind is an error that asks for a newer agent.
func decodeItem(kind Kind, raw []byte) (Item, error) {
	if len(raw) == 0 {
		return nil, errors.New("no item")
	}
	switch kind {
	case KindDir:
		return decodeAs[Dir](raw)
	case KindFile:
		return decodeAs[File](raw)
	case KindArtifact:
		return decodeAs[Artifact](raw)
	case KindMount:
		return decodeAs[Mount](raw)
	case KindCert:
		return decodeAs[Cert](raw)
	case KindKubeconfig:
		return decodeAs[Kubeconfig](raw)
	case KindUnit:
		return decodeAs[Unit](raw)
	case KindStaticPod:
		return decodeAs[StaticPod](raw)
	case KindPrecondition:
		return decodeAs[Precondition](raw)
	}
	return nil, fmt.Errorf("unknown kind %q: the agent is older than the plan; update slipway on the node", kind)
}

func decodeAs[T Item](raw []byte) (Item, error) {
	var it T
	err := strictjson.Decode(raw, &it)
	return it, err
}

// Decode reads a plan and checks its version and that every entry's needs come before it. The version is
// checked first because other versions may give the remaining fields a different meaning.
func Decode(data []byte) (Plan, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	if head.Version != Version {
		return Plan{}, fmt.Errorf("decode plan: version %d, want %d (use the same slipway version on the operator's host and the node)", head.Version, Version)
	}
	var p Plan
	if err := strictjson.Decode(data, &p); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	seen := map[Ref]bool{}
	for _, e := range p.Entries {
		if e.Ref != RefOf(e.Item) || seen[e.Ref] {
			return Plan{}, fmt.Errorf("decode plan: entry %s: reference does not match the item or is used twice", e.Ref)
		}
		for _, n := range e.Needs {
			if !seen[n] {
				return Plan{}, fmt.Errorf("decode plan: entry %s: needs %s, which does not come before it", e.Ref, n)
			}
		}
		seen[e.Ref] = true
	}
	return p, nil
}

// Encode returns the plan's wire form. Equal plans have identical encodings.
func Encode(p Plan) ([]byte, error) { return json.MarshalIndent(p, "", " ") }

// Ticket is what init and join give a machine to make it a node. Like a plan it is a wire format without
// secrets. The secrets of a control plane travel separately, sealed, as additional files.
type Ticket struct {
	Version int          `json:"version"`
	Cluster string       `json:"cluster"` // the cluster's ID; empty for init, which creates it
	Plan    Plan         `json:"plan"`
	Control []byte       `json:"control,omitempty"` // the control role's document
	Files   []TicketFile `json:"files,omitempty"`
}

// TicketFile is a file that comes with a ticket: a permit, a CA certificate, the first roster. It is
// written once, before the plan is applied, and belongs to the node from then on.
type TicketFile struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode"`
	Content []byte `json:"content"`
}

// DecodeTicket reads a ticket as strictly as Decode reads a plan, and checks the paths of its files.
func DecodeTicket(data []byte) (Ticket, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Ticket{}, fmt.Errorf("decode ticket: %w", err)
	}
	if head.Version != Version {
		return Ticket{}, fmt.Errorf("decode ticket: version %d, want %d (use the same slipway version on all machines)", head.Version, Version)
	}
	var w struct {
		Ticket
		Plan json.RawMessage `json:"plan"`
	}
	if err := strictjson.Decode(data, &w); err != nil {
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

// DecodeTicketFiles reads the files that travel separately from a ticket, as strictly as DecodeTicket.
func DecodeTicketFiles(data []byte) ([]TicketFile, error) {
	var files []TicketFile
	if err := strictjson.Decode(data, &files); err != nil {
		return nil, fmt.Errorf("decode files: %w", err)
	}
	for _, f := range files {
		if err := f.Check(); err != nil {
			return nil, fmt.Errorf("decode files: %w", err)
		}
	}
	return files, nil
}

// Check rejects files outside the directories where nodes keep their state.
func (f TicketFile) Check() error {
	allowed := strings.HasPrefix(f.Path, "/etc/kubernetes/") || strings.HasPrefix(f.Path, "/var/lib/slipway/state/")
	if !allowed || path.Clean(f.Path) != f.Path || f.Mode&^0o777 != 0 {
		return fmt.Errorf("file %q with mode %o: a ticket may only contain files in /etc/kubernetes and /var/lib/slipway/state", f.Path, f.Mode)
	}
	return nil
}
