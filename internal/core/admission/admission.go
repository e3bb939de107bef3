// SPDX-License-Identifier: Apache-2.0

// Package admission decides who may become a node, and as what: from the cluster's records, a token, and what a machine has
// proven. It is pure: it decides, and whoever asks writes down what was decided. What a machine says of itself never widens
// what the record says.
//
// Read [Node], [Token] and [Decide].
//
//	v := admission.Decide(admission.Request{Key: pin, Address: from, Evidence: admission.Evidence{TokenID: id}}, records, &token, policy, now)
//	v.Node // {Name: "dev-worker-0", Pool: "worker", Index: 255, PodCIDR: 10.244.255.0/24, …}: to be written before the machine is told
package admission

import (
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Node is the cluster's record of a machine. Its name, roles and range come from the spec or from a token, its key from the
// machine's first proof.
type Node struct {
	Name        string        `json:"name"`
	Pool        string        `json:"pool"`
	Index       int           `json:"index"` // the share of the pod range; never changes
	PodCIDR     netip.Prefix  `json:"podCIDR"`
	Address     netip.Addr    `json:"address"`              // zero until it has joined, unless the spec names it
	Key         pin.Pin       `json:"key,omitempty"`        // pin of the machine's key; empty: nobody has come yet
	PendingKey  pin.Pin       `json:"pendingKey,omitempty"` // another machine that asked for the name: waits for approval
	PendingAt   time.Time     `json:"pendingAt,omitzero"`
	Elsewhere   netip.Addr    `json:"elsewhere,omitzero"` // where its key was shown while its machine was alive at Address: refused until somebody approves it
	ElsewhereAt time.Time     `json:"elsewhereAt,omitzero"`
	Kubernetes  string        `json:"kubernetes,omitempty"` // version that it was let in with
	Facts       machine.Facts `json:"facts"`                // as the machine reported them when it joined; Address above is the address that counts
	JoinedAt    time.Time     `json:"joinedAt,omitzero"`
	Removing    bool          `json:"removing,omitempty"` // it is being taken out: it is not let in again
}

// Token lets one machine in, once, soon. Its secret is not in it.
type Token struct {
	ID      string    `json:"id"`
	Hash    string    `json:"hash"`           // SHA-256 of the whole token's text, hex
	Pool    string    `json:"pool"`           // decides the roles
	Node    string    `json:"node,omitempty"` // the only name that it is good for; empty: a new name in the pool
	Key     pin.Pin   `json:"key,omitempty"`  // pin of the only machine that may use it; empty: the first
	Expires time.Time `json:"expires"`
	UsedBy  pin.Pin   `json:"usedBy,omitempty"` // pin of the machine that has used it
}

// MaxTTL is the longest that a token may live.
const MaxTTL = 15 * time.Minute

// clocksApart is how far the clocks of two control planes may be apart.
const clocksApart = 5 * time.Minute
