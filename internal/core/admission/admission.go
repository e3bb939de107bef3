// SPDX-License-Identifier: Apache-2.0

// Package admission decides which machine may join the cluster, and as which node, from the cluster's records, a token and
// what the machine has proven. It is pure: the caller stores the decision. Information that the machine only claims never
// gives it more than its record or token allows.
//
// Decide checks the Kubernetes version of a machine against the API server's, but today's agents send no version: a joining machine
// installs the components that its ticket names. The check is for machines that keep their components when they join again.
//
// Read [Node], [Token] and [Decide].
//
//	v := admission.Decide(admission.Request{Key: pin, Address: from, Evidence: admission.Evidence{TokenID: id}}, records, &token, policy, now)
//	v.Node // {Name: "dev-worker-0", Pool: "worker", Index: 255, PodCIDR: 10.244.255.0/24, …}: stored before the machine gets an answer
package admission

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Node is the cluster's record of a machine. Its name, pool and pod CIDR come from the spec or from a token. Its key is the
// first one that was proven for the name.
type Node struct {
	Name    string       `json:"name"`
	Pool    string       `json:"pool"`
	Index   int          `json:"index"` // of the pod CIDR in the cluster's; never changes
	PodCIDR netip.Prefix `json:"podCIDR"`

	Address netip.Addr `json:"address"`       // zero until the machine has joined, unless the spec sets it
	Key     pin.Pin    `json:"key,omitempty"` // pin of the machine's key; empty until a machine has claimed the name

	// PendingKey is the key of another machine that asked for the name at PendingAt and waits for approval.
	PendingKey pin.Pin   `json:"pendingKey,omitempty"`
	PendingAt  time.Time `json:"pendingAt,omitzero"`

	// Elsewhere is a second address from which a machine with Key tried to connect at ElsewhereAt while the machine at
	// Address was reachable. It is refused until an operator approves it.
	Elsewhere   netip.Addr `json:"elsewhere,omitzero"`
	ElsewhereAt time.Time  `json:"elsewhereAt,omitzero"`

	Kubernetes string        `json:"kubernetes,omitempty"` // version at the time of admission, "1.36.4"
	Facts      machine.Facts `json:"facts"`                // as reported at the join; their Address is not used
	JoinedAt   time.Time     `json:"joinedAt,omitzero"`
	Removing   bool          `json:"removing,omitempty"` // the node is being removed and is not admitted again
}

// AsksElsewhere reports whether a machine with the node's key tried to connect from a second address within [MaxTTL].
func (n Node) AsksElsewhere(now time.Time) bool {
	return n.Elsewhere.IsValid() && now.Before(n.ElsewhereAt.Add(MaxTTL))
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidName reports whether a node may have this name. It refuses "kubernetes" and "localhost": clients use these names for
// the API server and for themselves, and a node's certificate would be valid for them.
func ValidName(name string) bool {
	return nodeName.MatchString(name) && name != "kubernetes" && name != "localhost"
}

// Token admits one machine, once, until it expires. It does not contain its secret.
type Token struct {
	ID      string    `json:"id"`
	Hash    string    `json:"hash"`           // SHA-256 of the token's text, hex
	Pool    string    `json:"pool"`           // decides the roles
	Node    string    `json:"node,omitempty"` // the only node name that it is valid for; empty: a new name in the pool
	Key     pin.Pin   `json:"key,omitempty"`  // pin of the only machine that may use it; empty: the first machine that does
	Expires time.Time `json:"expires"`
	UsedBy  pin.Pin   `json:"usedBy,omitempty"` // pin of the machine that has used it
}

// MaxTTL is the longest lifetime of a token. A pending key and a second address are forgotten after the same time.
const MaxTTL = 15 * time.Minute

// maxClockSkew is the tolerated difference between the clocks of two control planes.
const maxClockSkew = 5 * time.Minute

// TokenRandom is the number of random bytes in a token: 5 for its ID and 20 (160 bits) for its secret.
const TokenRandom = 25

const idBytes = 5

var tokenText = regexp.MustCompile(`^slipway\.[a-z2-7]{8}\.[a-z2-7]{32}$`)

// TokenText returns the ID and the text of a token, "slipway.ID.SECRET", made from random bytes. Only the text's hash is
// stored: the text cannot be shown again.
func TokenText(random [TokenRandom]byte) (id, text string) {
	code := base32.StdEncoding.WithPadding(base32.NoPadding)
	id = strings.ToLower(code.EncodeToString(random[:idBytes]))
	return id, "slipway." + id + "." + strings.ToLower(code.EncodeToString(random[idBytes:]))
}

// ReadToken returns the ID in a token's text and the hash of the text, as in [Token]. It does not check either of them. The
// error never contains the text.
func ReadToken(text string) (id, hash string, err error) {
	if !tokenText.MatchString(text) {
		return "", "", errors.New("read token: want the form slipway.ID.SECRET")
	}
	sum := sha256.Sum256([]byte(text))
	return text[len("slipway.") : len("slipway.")+8], hex.EncodeToString(sum[:]), nil
}
