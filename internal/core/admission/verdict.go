// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Request is what is known about a machine that asks to join or to connect. Key and Address are proven by its connection,
// Evidence by a verifier. The machine only claims the rest.
type Request struct {
	Key         pin.Pin // pin of the machine's key
	ClaimedNode string  // the name that the machine expects to have; may be empty
	Kubernetes  string  // version on the machine, "1.36.4"; empty, as from all of today's agents: it will install the cluster's
	Address     netip.Addr
	Facts       machine.Facts
	Evidence    Evidence
	Gone        netip.Addr // the recorded address of this key, or Address, if the machine there is known to be unreachable; zero: unknown
}

// Evidence is what a verifier has found proven in addition to the key.
type Evidence struct {
	TokenID string // the machine knows the text of this token; empty: only the key is proven
}

// Policy is what the cluster allows.
type Policy struct {
	Cluster       string // the cluster's name: the prefix of new nodes' names
	APIServer     string // version of the API server, "1.36.4"
	PodCIDR       netip.Prefix
	NodePodPrefix int
	ServiceCIDR   netip.Prefix
	Pools         map[string]Pool
	Reserved      []netip.Addr // addresses where clients connect to the API: a worker must not take one of them
}

// Pool describes the machines of a pool.
type Pool struct {
	ControlPlane bool
	ByAddress    bool // a machine that connects from the address of an unreachable machine of the pool replaces that machine
}

// Verdict is one of three: a refusal if Refusal is set, a wait if Wait is set, and otherwise an admission. The caller stores
// it before it answers the machine: first the token's use, then the record, with [Records.Replace]. Of the refusals, only
// those that must be remembered have a record.
type Verdict struct {
	Refusal  *Refusal
	Wait     *wait.For
	Node     Node // the record to store
	UseToken bool // set the token's UsedBy to the machine's key
}

// Refusal says why a machine is refused. The text is for the audit log and is never sent to an unauthenticated client.
type Refusal struct {
	Reason Reason
	Text   string // quotes what the machine has sent
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Reason, r.Text) }

// Reason identifies why a machine is refused. The values are stable: audit logs and tests compare them.
type Reason string

// The reasons.
const (
	BadKey            Reason = "bad-key"             // the machine's key is malformed
	KeyUnknown        Reason = "key-unknown"         // no record has the key, and the request has no token
	KeyRemoved        Reason = "key-removed"         // the machine was removed; only a new token for this very key admits it again
	NodeRemoving      Reason = "node-removing"       // the node is being removed
	TokenUnknown      Reason = "token-unknown"       // the token never existed, or it was revoked or deleted after it had expired
	TokenWrong        Reason = "token-wrong"         // the secret does not match the token with its ID
	TokenExpired      Reason = "token-expired"       // the token has expired
	TokenClock        Reason = "token-clock"         // the token expires later than a token may: a control plane's clock is wrong
	TokenUsed         Reason = "token-used"          // another machine has used the token
	TokenOtherKey     Reason = "token-other-key"     // the token is bound to another machine
	PoolUnknown       Reason = "pool-unknown"        // the token's pool is not in the spec
	PoolOther         Reason = "pool-other"          // the named node is in another pool than the token's
	NameInvalid       Reason = "name-invalid"        // the name is not a valid node name
	NameOther         Reason = "name-other"          // the machine claims a name that differs from its record
	NameContested     Reason = "name-contested"      // a third machine already waits for the name
	NodeAlive         Reason = "node-alive"          // the machine has another key than the node at its address, which is reachable, or its state is unknown
	AddressInvalid    Reason = "address-invalid"     // the address is not a valid address of a machine
	AddressReserved   Reason = "address-reserved"    // the address is in the range of pods or Services, or clients connect to the API there
	AddressTaken      Reason = "address-taken"       // another node has the address
	KeyInUse          Reason = "key-in-use"          // a machine with this key is reachable at another address, or its state is unknown: one of the two may be a copy of the other's disk
	AddressMoved      Reason = "address-moved"       // a control plane's address must not change: etcd's members know it by that address
	VersionBad        Reason = "version-bad"         // the version cannot be parsed
	VersionNewer      Reason = "version-newer"       // the machine's Kubernetes is newer than the API server
	VersionOlder      Reason = "version-older"       // the machine's Kubernetes is more than three minor versions older than the API server
	PodCIDRsExhausted Reason = "pod-cidrs-exhausted" // all node pod CIDRs of the cluster's podCIDR are in use
)
