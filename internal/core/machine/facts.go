// SPDX-License-Identifier: Apache-2.0

// Package machine holds the vocabulary for machines that several packages share: the facts that a machine reports of itself,
// and the labels and taints of its Node.
//
// Read [Facts] and [NodeLabels] first. A new fact is one field of [Facts], its gathering in internal/node/facts, and its use.
package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
)

// Facts are what a machine reports of itself. They choose details of its configuration and never grant a right: an
// unauthenticated machine may have sent them. The zero value of a field means that the fact is false or unknown.
//
// Facts travel and are stored as JSON, and are comparable with ==.
type Facts struct {
	Address     netip.Addr `json:"address,omitzero"`      // the node's own address; zero: the machine has no address that it could choose
	CgroupV1    bool       `json:"cgroupV1,omitempty"`    // the memory controller is on a v1 hierarchy
	OOMScoreAdj bool       `json:"oomScoreAdj,omitempty"` // processes may lower their oom_score_adj (CAP_SYS_RESOURCE)
	MTU         int        `json:"mtu,omitempty"`         // of the default route, 0: there is none
	UpstreamDNS bool       `json:"upstreamDNS,omitempty"` // /etc/resolv.conf names a server beyond loopback, which pods can ask too
	ProductUUID string     `json:"productUUID,omitempty"` // of the firmware (DMI); empty: it has none
	MachineID   string     `json:"machineID,omitempty"`   // of the operating system (/etc/machine-id); empty: it has none
}

// MaxFacts is the limit for encoded facts, in bytes.
const MaxFacts = 4 << 10

// Encode returns the form that [DecodeFacts] reads.
func (f Facts) Encode() []byte {
	data, _ := json.Marshal(f) // cannot fail: the fields are plain values
	return data
}

// DecodeFacts reads encoded facts, which an unauthenticated machine may have sent: at most [MaxFacts] bytes, one JSON object,
// every known field of its type and within its bounds. Unknown fields are ignored, so that a machine with a newer Slipway can join a cluster whose
// control planes do not know its latest facts yet.
func DecodeFacts(data []byte) (Facts, error) {
	if len(data) > MaxFacts {
		return Facts{}, fmt.Errorf("decode facts: got %d bytes, the limit is %d", len(data), MaxFacts)
	}
	var f *Facts // null is not an object
	if err := json.Unmarshal(bytes.TrimSpace(data), &f); err != nil {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	if f == nil {
		return Facts{}, fmt.Errorf("decode facts: got null, want an object")
	}
	if !idForm.MatchString(f.ProductUUID) || !idForm.MatchString(f.MachineID) || f.MTU < 0 || f.MTU > maxMTU {
		return Facts{}, fmt.Errorf("decode facts: productUUID, machineID or mtu is not valid")
	}
	f.Address = f.Address.Unmap()
	return *f, nil
}

// idForm bounds the ids, which are stored in the record of the node.
var idForm = regexp.MustCompile(`^[0-9A-Za-z-]{0,64}$`)

const maxMTU = 65536
