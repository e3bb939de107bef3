// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MarshalJSON writes the reference as its text.
func (r Ref) MarshalJSON() ([]byte, error) { return json.Marshal(r.id) }

// UnmarshalJSON reads a reference; Decode checks that it points somewhere.
func (r *Ref) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &r.id) }

// MarshalJSON adds the kind beside the item.
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

// UnmarshalJSON refuses unknown kinds and unknown fields.
func (e *Entry) UnmarshalJSON(data []byte) error {
	type bare Entry
	var w struct {
		bare
		Kind Kind            `json:"kind"`
		Item json.RawMessage `json:"item"`
	}
	if err := strict(data, &w); err != nil {
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

func decodeItem(kind Kind, raw []byte) (Item, error) {
	if len(raw) == 0 {
		return nil, errors.New("it has no item")
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
	return nil, fmt.Errorf("unknown kind %q: this agent is older than the plan, update slipway on the node", kind)
}

func decodeAs[T Item](raw []byte) (Item, error) {
	var it T
	err := strict(raw, &it)
	return it, err
}

// Decode reads a plan and checks that its version is known and that its graph is sound. The version comes first: what another
// version means by the rest nobody here can say.
func Decode(data []byte) (Plan, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	if head.Version != Version {
		return Plan{}, fmt.Errorf("decode plan: version %d, want %d: use the same slipway on operator and node", head.Version, Version)
	}
	var p Plan
	if err := strict(data, &p); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	seen := map[Ref]bool{}
	for _, e := range p.Entries {
		if e.Ref != RefOf(e.Item) || seen[e.Ref] {
			return Plan{}, fmt.Errorf("decode plan: entry %s: reference is wrong or used twice", e.Ref)
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

// Encode writes the plan's wire form: the same plan always gives the same bytes.
func Encode(p Plan) ([]byte, error) { return json.MarshalIndent(p, "", " ") }

func strict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}
